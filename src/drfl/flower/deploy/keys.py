"""Revoke a site's key, or replace it by a new one."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from drfl.core.audit_signatures import read_public_key
from drfl.core.errors import DrflError, InputError, unknown
from drfl.core.files import read_text
from drfl.flower.deploy.check_network import find_revoked_key
from drfl.flower.deploy.dated_folders import timestamp
from drfl.flower.deploy.flower_cli import REMOVED_STATUSES, node_states, run_flwr
from drfl.flower.deploy.paths import DeploymentFolder, SitePaths


def revoke(folder: DeploymentFolder, name: str) -> Path:
    """Revoke a site's key at the SuperLink, and move the public key to the folder of revoked keys.

    The site stays in ``server.toml``. Nothing changes unless the SuperLink accepts the request. You can repeat a call
    that was interrupted.

    Returns:
        The file of the public key in the folder of revoked keys.

    Raises:
        InputError: If the site is unknown or not registered.
        DrflError: If the SuperLink does not answer or refuses.
    """
    return revoke_site(folder, _site(folder, name))


def revoke_site(folder: DeploymentFolder, site: SitePaths) -> Path:
    """See :func:`revoke`; the site need not be in ``server.toml``."""
    if site.node.exists():
        node = _node(site)
        try:
            run_flwr(folder.home, ["supernode", "unregister", node])
        except DrflError:
            # An earlier call that was interrupted may have unregistered the site already.
            if node_states(folder.home).get(node, REMOVED_STATUSES[0]) not in REMOVED_STATUSES:
                raise
    elif site.name not in folder.revoked_keys():
        raise InputError(
            f"{site.name} was not registered from this folder: {site.node} is missing. See 'flwr supernode list'",
            code="not-registered",
            field="SITE",
        )
    return _move_to_revoked(folder, site)


def rotate(folder: DeploymentFolder, name: str, key: Path) -> str:
    """Register a site's new key, then revoke the old one, so that the SuperLink always knows at least one of them.

    ``key`` is the file with its new public key.

    Returns:
        The node ID that the SuperLink assigned to the new key.

    Raises:
        InputError: If the site is unknown, the file has no public key that Flower accepts, or the key was revoked.
        DrflError: If the SuperLink does not answer, or has the key already.
    """
    site = _site(folder, name)
    check_usable(folder, key)
    node = register(folder, name, key)
    if site.node.exists():
        try:
            run_flwr(folder.home, ["supernode", "unregister", _node(site)])
        except DrflError:
            # Otherwise a second attempt would fail because the new key is in use.
            unregister(folder, node)
            raise
        _move_to_revoked(folder, site)
    site.public_key.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(key, site.public_key)
    site.node.write_text(f"{node}\n", encoding="utf-8")
    return node


def check_usable(folder: DeploymentFolder, key: Path) -> None:
    """Check that a file has a public key that Flower accepts and that was not revoked."""
    read_public_key(key)
    twin = find_revoked_key(folder, key)
    if twin is not None:
        raise InputError(
            f"this key was revoked (see {twin}). Make a new one at the site: ssh-keygen -t ecdsa -b 384",
            code="revoked-key",
            field="--key",
        )


def register(folder: DeploymentFolder, name: str, key: Path) -> str:
    """Register a public key with the SuperLink, and return the node ID that it assigns."""
    answer = run_flwr(folder.home, ["supernode", "register", str(key.absolute())])
    node = str(answer.get("node-id") or "")
    if not node:
        raise DrflError(
            f"the SuperLink registered {name} but returned no node ID. See 'flwr supernode list'",
            code="superlink-failed",
            field=name,
        )
    return node


def unregister(folder: DeploymentFolder, node: str) -> None:
    """Undo a registration; do nothing if the SuperLink does not answer."""
    with suppress(DrflError):
        run_flwr(folder.home, ["supernode", "unregister", node])


def _site(folder: DeploymentFolder, name: str) -> SitePaths:
    if folder.address().insecure:
        raise InputError("sites have no keys, because this deployment is insecure", code="insecure-deployment")
    sites = {site.name: site for site in folder.sites()}
    if name in sites:
        return sites[name]
    if name in folder.revoked_keys():
        raise InputError(
            f"{name} was revoked and is not in server.toml. To readmit it with a new key, use 'drfl deploy add-site'",
            code="revoked-site",
            field="SITE",
        )
    raise unknown("site", name, sites)


def _node(site: SitePaths) -> str:
    try:
        return read_text(site.node).strip()
    except InputError:
        raise InputError(
            f"{site.name} is not registered: {site.node} is missing", code="not-registered", field=site.name
        ) from None


def _move_to_revoked(folder: DeploymentFolder, site: SitePaths) -> Path:
    """Move a site's public key to the revoked keys, and delete the file with its node ID."""
    # The file name contains the time, because a site can have several revoked keys.
    path = folder.revoked / f"{site.name}-{timestamp()}.pub"
    path.parent.mkdir(parents=True, exist_ok=True)
    if site.public_key.exists():
        site.public_key.rename(path)
    elif site.name not in folder.revoked_keys():
        # make-keys.sh recognises a revoked site by the name of this file, not by its content.
        path.write_text(f"# the key of {site.name}, whose file was missing\n", encoding="utf-8")
    site.node.unlink(missing_ok=True)
    return path
