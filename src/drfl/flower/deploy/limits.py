"""Limits of what sites may claim, proposed from what they reported when the last run began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from drfl.core.audit_log import read
from drfl.core.errors import Notice
from drfl.core.files import read_text
from drfl.flower.deploy import edit_settings
from drfl.flower.deploy.paths import DeploymentFolder
from drfl.flower.settings import ServerSettings, read_server, share_limit

Limits = Mapping[str, Mapping[str, int | float]]
"""Site → limit → its value, as the keys of ``[[sites]]``."""


@dataclass(frozen=True)
class Proposal:
    """Limits that server.toml lacks.

    Args:
        limits: Those to add; empty if there is nothing to add.
        notices: Why others are not among them.
    """

    limits: Limits
    notices: tuple[Notice, ...] = ()

    def toml(self) -> str:
        """Write the lines to add, each site's below its header and name."""
        tables = (tomli_w.dumps({"name": name, **values}) for name, values in self.limits.items())
        return "\n".join(f"[[sites]]\n{table}" for table in tables)  # tomli_w would write one inline array


def propose(folder: DeploymentFolder) -> Proposal:
    """Propose the limits that server.toml lacks: twice the rows of today, the classes of today, and a share.

    A value that server.toml has is never proposed anew.

    Raises:
        InputError: server.toml or the audit log cannot be read.
    """
    settings = read_server(folder.settings)
    today = reported(folder, settings)
    names = [site.name for site in settings.sites]
    unknown = [name for name in names if name not in today]
    if unknown:
        text = (
            f"{', '.join(unknown)} did not report rows and classes yet: check again after the first run, or set the "
            "limits that 'drfl deploy check' shows at the site"
        )
        if settings.audit is None:
            text = 'sites report rows and classes to the audit log: add audit = "audit.jsonl" to server.toml'
        return Proposal({}, (Notice(text, "no-reports", "sites"),))
    total = sum(rows for rows, _ in today.values())
    classes = max(needed for _, needed in today.values())
    share, notices, limits = share_limit(len(names)), [], {}
    for site in settings.sites:
        rows, _ = today[site.name]
        # Propose twice today's rows, so that a site can grow before its limit has to change.
        wanted: dict[str, int | float | None] = {"rows": 2 * rows, "classes": classes or None, "max_share": share}
        if share is not None and site.max_share is None and rows > share * total:
            text = f"{site.name} has {rows / total:.0%} of all rows, more than {share:g}: set its max_share yourself"
            notices.append(Notice(text, "large-share", "max_share"))
            wanted["max_share"] = None
        new = {key: value for key, value in wanted.items() if value is not None and getattr(site, key) is None}
        if new:
            limits[site.name] = new
    return Proposal(limits, tuple(notices))


def reported(folder: DeploymentFolder, settings: ServerSettings) -> dict[str, tuple[int, int]]:
    """Each site's rows and classes when it last joined a run, by the server's audit log; 0 classes if not logged.

    Raises:
        InputError: The log was changed.
    """
    path = folder.root / settings.audit if settings.audit is not None else Path()
    if settings.audit is None or not path.exists():
        return {}
    names = {site.name for site in settings.sites}
    found: dict[str, tuple[int, int]] = {}
    for record in read(path).records:
        name, rows, classes = record.get("site"), record.get("rows"), record.get("classes", 0)
        if record["event"] == "joined" and name in names and isinstance(rows, int) and isinstance(classes, int):
            # Later reports replace earlier ones.
            found[str(name)] = rows, classes
    return found


def write(folder: DeploymentFolder, limits: Limits) -> Path:
    """Add limits to server.toml, and keep the file before.

    Returns:
        The copy of the file before.

    Raises:
        InputError: It cannot be edited or written to.
    """
    text = edit_settings.with_limits(read_text(folder.settings), limits)
    return edit_settings.replace(folder.settings, text)
