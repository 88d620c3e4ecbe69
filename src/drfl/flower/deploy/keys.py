"""Revoke a site's key, or replace it by a new one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from drfl.core.atomic_files import atomic_write
from drfl.core.audit_signatures import KEY_LIMIT, read_public_key
from drfl.core.errors import DrflError, InputError, unknown
from drfl.core.files import read_bytes, read_text, reading
from drfl.flower.deploy.check_network import find_revoked_key
from drfl.flower.deploy.dated_folders import timestamp
from drfl.flower.deploy.flower_cli import REMOVED_STATUSES, node_states, run_flwr
from drfl.flower.deploy.paths import DeploymentFolder, SitePaths


class Registration(msgspec.Struct, frozen=True):
    """A registration that is not complete, as in ``keys/NAME.new``.

    Args:
        key: The new public key.
        known: IDs of the nodes that the SuperLink had before.
        node: Node ID that the SuperLink assigned to the key; "" until it has answered.
    """

    key: str
    known: tuple[str, ...]
    node: str = ""


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
    is_registered, pending = site.node.exists(), _pending(site)
    if is_registered:
        _unregister(folder, _node(site))
    if pending is not None:
        _cancel(folder, site, pending)
    if not is_registered and site.name not in folder.revoked_keys():
        raise InputError(
            f"{site.name} was not registered from this folder: {site.node} is missing. See 'flwr supernode list'",
            code="not-registered",
            field="SITE",
        )
    return _move_to_revoked(folder, site)


def rotate(folder: DeploymentFolder, name: str, key: Path) -> str:
    """Register a site's new key, then revoke the old one, so that the SuperLink always knows at least one of them.

    ``key`` is the file with its new public key. You can repeat a call that failed or was interrupted.

    Returns:
        The node ID that the SuperLink assigned to the new key.

    Raises:
        InputError: If the site is unknown, the file has no public key that Flower accepts, or the key was revoked or is
            in the place of the old one.
        DrflError: If the SuperLink does not answer, or has the key already.
    """
    site, content = _site(folder, name), read_bytes(key, limit=KEY_LIMIT)
    check_usable(folder, key)
    pending, public = _pending(site), read_public_key(key)
    is_in_place, is_registered = _has_key(site.public_key, public), site.node.exists()
    is_continued = pending is not None and is_registered and (pending.key, pending.node) == (public, _node(site))
    if is_in_place and is_registered and not is_continued:
        raise InputError(
            f"{site.public_key} already has this key. If {name} uses it, there is nothing to do. Otherwise the file "
            "must have the old key until it is revoked: move the new one to another file for --key, and restore the "
            f"old one, for example from sites/{name}/key.pub or a backup. If it is lost, leave the file missing",
            code="conflicting-options",
            field="--key",
        )
    node = register(folder, site, key)
    # Record every step in the files only after the SuperLink has done it, so that a repeated call continues here.
    if site.node.exists():
        if _node(site) != node:
            _unregister(folder, _node(site))
        if not is_in_place:
            _move_to_revoked(folder, site)
    _write(site.node, f"{node}\n".encode())
    _write(site.public_key, content)
    site.pending.unlink()
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


def register(folder: DeploymentFolder, site: SitePaths, key: Path) -> str:
    """Register a public key with the SuperLink, and return the node ID that it assigns.

    The SuperLink registers a key only once. Therefore ``keys/NAME.new`` describes the registration until the caller has
    recorded the node ID and deletes this file, so that a repeated call finds the node.
    """
    pending, public, node = _pending(site), read_public_key(key), ""
    if pending is not None and pending.key != public:
        _cancel(folder, site, pending)
        pending = None
    if pending is None:
        pending = Registration(public, tuple(node_states(folder.home)))
        _write(site.pending, msgspec.json.encode(pending))
    else:
        node = _find_node(folder, site, pending)
    if not node:
        try:
            answer = run_flwr(folder.home, ["supernode", "register", str(key.absolute())])
            node = str(answer.get("node-id") or "")
        except DrflError:
            # The SuperLink may have registered the key although the call failed.
            node = _find_node(folder, site, pending)
            if not node:
                site.pending.unlink()
                raise
    if not node:
        raise DrflError(
            f"the SuperLink registered {site.name} but returned no node ID. See 'flwr supernode list'",
            code="superlink-failed",
            field=site.name,
        )
    _write(site.pending, msgspec.json.encode(msgspec.structs.replace(pending, node=node)))
    return node


def undo_registration(folder: DeploymentFolder, site: SitePaths, node: str) -> None:
    """Undo a registration, now or, if the SuperLink does not answer, with the next registration of the site."""
    site.node.unlink(missing_ok=True)
    with suppress(DrflError):
        run_flwr(folder.home, ["supernode", "unregister", node])
        site.pending.unlink()


def _unregister(folder: DeploymentFolder, node: str) -> None:
    """Unregister a node, unless an earlier call that was interrupted has done so."""
    try:
        run_flwr(folder.home, ["supernode", "unregister", node])
    except DrflError:
        if node_states(folder.home).get(node, REMOVED_STATUSES[0]) not in REMOVED_STATUSES:
            raise


def _pending(site: SitePaths) -> Registration | None:
    if not site.pending.exists():
        return None
    content = read_bytes(site.pending)
    with reading(site.pending, "is damaged"):
        return msgspec.json.decode(content, type=Registration)


def _find_node(folder: DeploymentFolder, site: SitePaths, pending: Registration) -> str:
    """Return the node ID of a registration that was interrupted; "" if the SuperLink has not registered the key."""
    if pending.node:
        return pending.node
    # The SuperLink does not list the keys of its nodes.
    recorded = {read_text(path).strip() for path in folder.keys.glob("*.node")}
    nodes = [node for node, status in node_states(folder.home).items() if status not in REMOVED_STATUSES]
    new = [node for node in nodes if node not in pending.known and node not in recorded]
    if len(new) > 1:
        raise DrflError(
            f"the registration of {site.name} was interrupted, and the SuperLink has several new nodes: "
            f"{', '.join(new)}. Remove those with 'flwr supernode unregister NODE', and repeat the command with a new "
            "key",
            code="superlink-failed",
            field=site.name,
        )
    return new[0] if new else ""


def _cancel(folder: DeploymentFolder, site: SitePaths, pending: Registration) -> None:
    """Revoke the key of a registration that was interrupted, unless all its files were written."""
    node, is_in_place = _find_node(folder, site, pending), _has_key(site.public_key, pending.key)
    is_recorded = bool(node) and site.node.exists() and _node(site) == node
    if node and not (is_recorded and is_in_place):
        _unregister(folder, node)
        _write(folder.revoked / f"{site.name}-{timestamp()}.pub", f"{pending.key}\n".encode())
        if is_in_place:
            site.public_key.unlink()
        if is_recorded:
            site.node.unlink()
    site.pending.unlink()


def _has_key(path: Path, public: str) -> bool:
    with suppress(InputError):
        return read_public_key(path) == public
    return False


def _write(path: Path, content: bytes) -> None:
    with atomic_write(path) as file:
        file.write(content)


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
    """Move a site's public key to the revoked keys, delete the file with its node ID, and return the key's new path."""
    # The file name contains the time, because a site can have several revoked keys.
    path = folder.revoked / f"{site.name}-{timestamp()}.pub"
    path.parent.mkdir(parents=True, exist_ok=True)
    if site.public_key.exists():
        site.public_key.rename(path)
    elif earlier := folder.revoked_keys().get(site.name):
        path = earlier[-1]
    else:
        # make-keys.sh recognises a revoked site by the name of this file, not by its content.
        path.write_text(f"# the key of {site.name}, whose file was missing\n", encoding="utf-8")
    site.node.unlink(missing_ok=True)
    return path
