"""Sites' keys: taken from those who may not take part any more, and exchanged for new ones."""

from __future__ import annotations

import shutil
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from drfl.deploy.flower_cli import ask
from drfl.deploy.paths import DeploymentFolder, SitePaths
from drfl.errors import DrflError, InputError, unknown
from drfl.files import read_text


def revoke(folder: DeploymentFolder, name: str) -> Path:
    """Have the SuperLink refuse a site's key from now on, and keep the key among those revoked.

    Returns:
        Where it lies now.

    Raises:
        InputError: there is no such site, or it is not registered.
        DrflError: the SuperLink does not answer, or knows no such site.
    """
    site = _site(folder, name)
    ask(folder.home, ["supernode", "unregister", _node(site)])
    return _put_away(site)


def rotate(folder: DeploymentFolder, name: str, key: Path) -> str:
    """Register a site's new key, then revoke the one before: at no time is neither known.

    Args:
        folder: of the deployment.
        name: of the site.
        key: file with its new public key.

    Returns:
        The number that the SuperLink gave the site.

    Raises:
        InputError: there is no such site, or the file holds no public key that Flower takes.
        DrflError: the SuperLink does not answer, or has the key already.
    """
    from drfl.flower.server_app import public_key

    site = _site(folder, name)
    public_key(key)
    answer = ask(folder.home, ["supernode", "register", str(key.absolute())])
    node = str(answer.get("node-id") or "")
    if not node:
        raise DrflError(f"the SuperLink registered {name} without a number: see 'flwr supernode list'")
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
        raise InputError("this deployment is insecure: its sites have no keys")
    sites = {site.name: site for site in folder.sites()}
    if name not in sites:
        raise unknown("site", name, sites)
    return sites[name]


def _node(site: SitePaths) -> str:
    try:
        return read_text(site.node).strip()
    except InputError:
        raise InputError(f"{site.name} is not registered: {site.node} is missing") from None


def _put_away(site: SitePaths) -> Path:
    """The key's file among those revoked; register-sites.sh, which takes what lies in keys/, does not find it there."""
    revoked = site.public_key.parent / "revoked"
    revoked.mkdir(parents=True, exist_ok=True)
    place = revoked / f"{site.name}-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}.pub"
    if site.public_key.exists():
        site.public_key.rename(place)
    site.node.unlink()
    return place
