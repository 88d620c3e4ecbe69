"""Suggest limits on the sites' reports, computed from the reports at the start of the last run."""

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
from drfl.flower.settings import ServerSettings, read_server

Limits = Mapping[str, Mapping[str, int | float]]
"""For each site, the new keys of its ``[[sites]]`` table with their values."""

SHARE = 0.5
"""The ``max_share`` that is suggested if there are many sites."""


@dataclass(frozen=True)
class ProposedLimits:
    """Limits that ``server.toml`` lacks.

    Args:
        limits: The limits to add; empty if there are none.
        notices: The reasons why other limits are missing from ``limits``.
    """

    limits: Limits
    notices: tuple[Notice, ...] = ()

    def toml(self) -> str:
        """Format the limits as ``[[sites]]`` tables."""
        tables = (tomli_w.dumps({"name": name, **values}) for name, values in self.limits.items())
        # Join the tables by hand, because tomli_w would write them as one inline array.
        return "\n".join(f"[[sites]]\n{table}" for table in tables)


def propose(folder: DeploymentFolder) -> ProposedLimits:
    """Suggest the limits that ``server.toml`` lacks: twice the present rows, the present classes, and a share.

    Limits that ``server.toml`` already has are not suggested again.
    """
    settings = read_server(folder.settings)
    reports = read_reports(folder, settings)
    names = [site.name for site in settings.sites]
    unknown = [name for name in names if name not in reports]
    if unknown:
        text = (
            f"{', '.join(unknown)}: rows and classes are unknown before the first run. Check again after it, or set "
            "the limits that 'drfl deploy check' prints at the site"
        )
        if settings.audit is None:
            text = 'the audit log records rows and classes of the sites: add audit = "audit.jsonl" to server.toml'
        return ProposedLimits({}, (Notice(text, "no-reports", "sites"),))
    total = sum(rows for rows, _ in reports.values())
    classes = max(needed for _, needed in reports.values())
    # Twice the share of equal sites leaves room for sites that differ in size. One or two sites get no limit.
    share = max(SHARE, round(2 / len(names), 3)) if len(names) > 2 else None
    notices, limits = [], {}
    for site in settings.sites:
        rows, _ = reports[site.name]
        # Suggest twice the present rows, so that a site can grow before its limit has to change.
        suggested: dict[str, int | float | None] = {"rows": 2 * rows, "classes": classes or None, "max_share": share}
        # A limit below the present share would stop the next run.
        if share is not None and site.max_share is None and rows > share * total:
            text = f"{site.name} has {rows / total:.0%} of all rows, more than {share:g}. Set its max_share yourself"
            notices.append(Notice(text, "large-share", "max_share"))
            suggested["max_share"] = None
        new = {key: value for key, value in suggested.items() if value is not None and getattr(site, key) is None}
        if new:
            limits[site.name] = new
    return ProposedLimits(limits, tuple(notices))


def read_reports(folder: DeploymentFolder, settings: ServerSettings) -> dict[str, tuple[int, int]]:
    """Read each site's last report of its rows and classes from the server's audit log.

    Returns:
        For each site its training rows and classes when it last joined a run. Classes are 0 if they were not logged.
    """
    path = folder.root / settings.audit if settings.audit is not None else Path()
    if settings.audit is None or not path.exists():
        return {}
    names = {site.name for site in settings.sites}
    reports: dict[str, tuple[int, int]] = {}
    for record in read(path).records:
        name, rows, classes = record.get("site"), record.get("rows"), record.get("classes", 0)
        if record["event"] == "joined" and name in names and isinstance(rows, int) and isinstance(classes, int):
            # Later reports replace earlier ones.
            reports[str(name)] = rows, classes
    return reports


def write(folder: DeploymentFolder, limits: Limits) -> Path:
    """Add limits to ``server.toml``, and keep a copy of the previous file.

    Returns:
        The path of the copy.
    """
    text = edit_settings.add_limits(read_text(folder.settings), limits)
    return edit_settings.replace(folder.settings, text)
