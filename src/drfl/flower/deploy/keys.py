"""Sites' keys: revoked, so that a site can take part no more, and exchanged for new ones."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from drfl.core.audit_signatures import read_public_key
from drfl.core.errors import DrflError, InputError, Notice, unknown
from drfl.core.files import read_text, read_toml
from drfl.flower.deploy import edit_settings
from drfl.flower.deploy.check_network import revoked_twin
from drfl.flower.deploy.flower_cli import GONE, ask, node_states
from drfl.flower.deploy.paths import DeploymentFolder, SitePaths

FEWEST = 2
"""Sites that must remain: of one alone nothing can be compared or averaged."""


class Revoked(NamedTuple):
    """What revoking a site's key came to.

    Args:
        key: The file of the public key among those revoked.
        settings: The copy of server.toml as it was; None if the site stayed in it.
        notices: What else to look at before the next run.
    """

    key: Path
    settings: Path | None
    notices: tuple[Notice, ...] = ()


def revoke(folder: DeploymentFolder, name: str, key_only: bool = False) -> Revoked:
    """Have the SuperLink refuse a site's key from now on, keep the key among those revoked, and take the site out.

    Nothing changes unless the SuperLink agrees, and a call that was cut off can be repeated.

    Args:
        folder: Of the deployment.
        name: Of the site.
        key_only: Leave the site in server.toml, for a new key to come.

    Raises:
        InputError: There is no such site, it is not registered, too few sites would remain, or server.toml cannot be
            edited.
        DrflError: The SuperLink does not answer, or refuses.
    """
    site = _site(folder, name)
    # First what may fail: a key is revoked only if the rest can follow.
    text = None
    if not key_only:
        left = [site.name for site in folder.sites() if site.name != name]
        if len(left) < FEWEST:
            raise InputError(
                f"without {name} the deployment would have {len(left)} site{'s' * (len(left) != 1)}, and a run needs "
                f"{FEWEST}: exchange its key with 'drfl deploy rotate', or revoke the key alone with --key-only",
                code="too-few-sites",
                field="SITE",
            )
        text = edit_settings.without_site(read_text(folder.settings), name)
    if site.node.exists():
        node = _node(site)
        try:
            ask(folder.home, ["supernode", "unregister", node])
        except DrflError:
            # An earlier call that was cut off may have unregistered the site already.
            if node_states(folder.home).get(node, GONE[0]) not in GONE:
                raise
    elif not _revoked_before(site):
        raise InputError(
            f"{name} is not registered from this folder: {site.node} is missing; see 'flwr supernode list'",
            code="not-registered",
            field="SITE",
        )
    key = _put_away(site)
    if text is None:
        return Revoked(key, None)
    return Revoked(key, edit_settings.replace(folder.settings, text), tuple(_consequences(folder)))


def rotate(folder: DeploymentFolder, name: str, key: Path) -> str:
    """Register a site's new key, then revoke the one before: at no time is neither known.

    Args:
        folder: of the deployment.
        name: of the site.
        key: file with its new public key.

    Returns:
        The number that the SuperLink gave the site.

    Raises:
        InputError: there is no such site, the file holds no public key that Flower takes, or the key was revoked.
        DrflError: the SuperLink does not answer, or has the key already.
    """
    site = _site(folder, name)
    read_public_key(key)
    twin = revoked_twin(_revoked(site), key)
    if twin is not None:
        raise InputError(
            f"this key was revoked, see {twin}: the site needs a new one from ssh-keygen -t ecdsa -b 384",
            code="revoked-key",
            field="--key",
        )
    answer = ask(folder.home, ["supernode", "register", str(key.absolute())])
    node = str(answer.get("node-id") or "")
    if not node:
        raise DrflError(
            f"the SuperLink registered {name} without a number: see 'flwr supernode list'",
            code="superlink-failed",
            field=name,
        )
    if site.node.exists():
        try:
            ask(folder.home, ["supernode", "unregister", _node(site)])
        except DrflError:
            # Else the next try would find the new key in use.
            with suppress(DrflError):
                ask(folder.home, ["supernode", "unregister", node])
            raise
        _put_away(site)
    site.public_key.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(key, site.public_key)
    site.node.write_text(f"{node}\n", encoding="utf-8")
    return node


def _site(folder: DeploymentFolder, name: str) -> SitePaths:
    if folder.address().insecure:
        raise InputError("this deployment is insecure: its sites have no keys", code="insecure-deployment")
    sites = {site.name: site for site in folder.sites()}
    if name in sites:
        return sites[name]
    if _revoked_before(SitePaths(name, folder.keys / f"{name}.pub", folder.keys / f"{name}.node")):
        raise InputError(
            f"{name} was revoked, and is not in server.toml: to bring it back, put its table [[sites]] back from a "
            "copy server.toml.* and give it a new key, by 'drfl deploy rotate' or './make-keys.sh --renew'",
            code="revoked-site",
            field="SITE",
        )
    raise unknown("site", name, sites)


def _consequences(folder: DeploymentFolder) -> list[Notice]:
    """What in server.toml no longer fits the sites that are left."""
    from drfl.flower.settings import read_server

    found = []
    try:
        sites = read_server(folder.settings).sites
    except InputError as error:
        found.append(Notice(f"correct this before the next run: {error}", "invalid-settings", "server.toml"))
    else:
        if any(site.max_share is not None for site in sites):
            text = "the shares of the sites that are left have grown: see that their max_share still allows them"
            found.append(Notice(text, "shares-grow", "max_share"))
    out = str(read_toml(folder.settings).get("out", "run"))
    if (folder.root / out).exists():
        text = f"'{out}' holds a run with the site: give another 'out' in server.toml for the next one"
        found.append(Notice(text, "run-with-other-sites", "out"))
    return found


def _node(site: SitePaths) -> str:
    try:
        return read_text(site.node).strip()
    except InputError:
        raise InputError(
            f"{site.name} is not registered: {site.node} is missing", code="not-registered", field=site.name
        ) from None


def _revoked(site: SitePaths) -> Path:
    """The folder of the deployment's revoked keys, where make-keys.sh and register-sites.sh look too."""
    return site.node.parent / "revoked"


def _revoked_before(site: SitePaths) -> bool:
    form = re.compile(rf"{re.escape(site.name)}-\d{{8}}T\d{{6}}\.\d+\.pub")
    folder = _revoked(site)
    return folder.is_dir() and any(form.fullmatch(path.name) for path in folder.iterdir())


def _put_away(site: SitePaths) -> Path:
    """Move the file of a site's key to those revoked, and forget the site's number."""
    # The name has the time, as a site can have several revoked keys.
    place = _revoked(site) / f"{site.name}-{edit_settings.stamp()}.pub"
    place.parent.mkdir(parents=True, exist_ok=True)
    if site.public_key.exists():
        site.public_key.rename(place)
    elif not _revoked_before(site):
        # By its name alone make-keys.sh knows that the site gets no key.
        place.write_text(f"# the key of {site.name}, whose file was missing\n", encoding="utf-8")
    site.node.unlink(missing_ok=True)
    return place
