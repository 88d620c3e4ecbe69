"""Revoke a site's key, or replace it by a new one."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from drfl.core.audit_signatures import read_public_key
from drfl.core.errors import DrflError, InputError, Notice, unknown
from drfl.core.files import read_text, read_toml
from drfl.flower.deploy import edit_settings
from drfl.flower.deploy.check_network import find_revoked_key
from drfl.flower.deploy.flower_cli import REMOVED_STATUSES, node_states, run_flwr
from drfl.flower.deploy.paths import DeploymentFolder, SitePaths

MIN_SITES = 2
"""Smallest number of sites that must remain. With one site there is nothing to average or compare."""


class Revocation(NamedTuple):
    """The result of revoking a site's key.

    Args:
        key: File of the public key in the folder of revoked keys.
        settings: Copy of the previous ``server.toml``; None if the site stayed in it.
        notices: Problems to solve before the next run.
    """

    key: Path
    settings: Path | None
    notices: tuple[Notice, ...] = ()


def revoke(folder: DeploymentFolder, name: str, key_only: bool = False) -> Revocation:
    """Revoke a site's key at the SuperLink and remove the site from ``server.toml``.

    The public key moves to the folder of revoked keys. Nothing changes unless the SuperLink accepts the request.
    You can repeat a call that was interrupted.

    Args:
        folder: The deployment.
        name: Name of the site.
        key_only: Whether to leave the site in ``server.toml``, for example to give it a new key.

    Raises:
        InputError: If the site is unknown or not registered, too few sites would remain, or ``server.toml`` cannot be
            edited.
        DrflError: If the SuperLink does not answer or refuses.
    """
    site = _site(folder, name)
    # Take the steps that may fail first, so that a key is revoked only if the rest can follow.
    text = None
    if not key_only:
        remaining = [site.name for site in folder.sites() if site.name != name]
        if len(remaining) < MIN_SITES:
            raise InputError(
                f"without {name} the deployment would have {len(remaining)} site{'s' * (len(remaining) != 1)}, but a "
                f"run needs {MIN_SITES}. Replace its key with 'drfl deploy rotate', or use --key-only to revoke only "
                "the key",
                code="too-few-sites",
                field="SITE",
            )
        text = edit_settings.remove_site(read_text(folder.settings), name)
    if site.node.exists():
        node = _node(site)
        try:
            run_flwr(folder.home, ["supernode", "unregister", node])
        except DrflError:
            # An earlier call that was interrupted may have unregistered the site already.
            if node_states(folder.home).get(node, REMOVED_STATUSES[0]) not in REMOVED_STATUSES:
                raise
    elif name not in folder.revoked_keys():
        raise InputError(
            f"{name} was not registered from this folder: {site.node} is missing. See 'flwr supernode list'",
            code="not-registered",
            field="SITE",
        )
    key = _move_to_revoked(folder, site)
    if text is None:
        return Revocation(key, None)
    return Revocation(key, edit_settings.replace(folder.settings, text), tuple(_consequences(folder)))


def rotate(folder: DeploymentFolder, name: str, key: Path) -> str:
    """Register a site's new key, then revoke the old one, so that the SuperLink always knows at least one of them.

    Args:
        folder: The deployment.
        name: Name of the site.
        key: File with its new public key.

    Returns:
        The node ID that the SuperLink assigned to the new key.

    Raises:
        InputError: If the site is unknown, the file has no public key that Flower accepts, or the key was revoked.
        DrflError: If the SuperLink does not answer, or has the key already.
    """
    site = _site(folder, name)
    read_public_key(key)
    twin = find_revoked_key(folder, key)
    if twin is not None:
        raise InputError(
            f"this key was revoked (see {twin}). Make a new one at the site: ssh-keygen -t ecdsa -b 384",
            code="revoked-key",
            field="--key",
        )
    answer = run_flwr(folder.home, ["supernode", "register", str(key.absolute())])
    node = str(answer.get("node-id") or "")
    if not node:
        raise DrflError(
            f"the SuperLink registered {name} but returned no node ID. See 'flwr supernode list'",
            code="superlink-failed",
            field=name,
        )
    if site.node.exists():
        try:
            run_flwr(folder.home, ["supernode", "unregister", _node(site)])
        except DrflError:
            # Otherwise a second attempt would fail because the new key is in use.
            with suppress(DrflError):
                run_flwr(folder.home, ["supernode", "unregister", node])
            raise
        _move_to_revoked(folder, site)
    site.public_key.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(key, site.public_key)
    site.node.write_text(f"{node}\n", encoding="utf-8")
    return node


def _site(folder: DeploymentFolder, name: str) -> SitePaths:
    if folder.address().insecure:
        raise InputError("sites have no keys, because this deployment is insecure", code="insecure-deployment")
    sites = {site.name: site for site in folder.sites()}
    if name in sites:
        return sites[name]
    if name in folder.revoked_keys():
        raise InputError(
            f"{name} was revoked and is not in server.toml. To readmit it, restore its table [[sites]] from a copy "
            "server.toml.* and give it a new key with 'drfl deploy rotate' or './make-keys.sh --renew'",
            code="revoked-site",
            field="SITE",
        )
    raise unknown("site", name, sites)


def _consequences(folder: DeploymentFolder) -> list[Notice]:
    """List the settings in server.toml that no longer fit the remaining sites."""
    from drfl.flower.settings import read_server

    notices = []
    try:
        sites = read_server(folder.settings).sites
    except InputError as error:
        notices.append(Notice(f"correct this before the next run: {error}", "invalid-settings", "server.toml"))
    else:
        if any(site.max_share is not None for site in sites):
            text = "the shares of the remaining sites have grown: check that they do not exceed max_share"
            notices.append(Notice(text, "shares-grow", "max_share"))
    out = str(read_toml(folder.settings).get("out", "run"))
    if (folder.root / out).exists():
        text = f"'{out}' has a run that includes the site: set another 'out' in server.toml for the next run"
        notices.append(Notice(text, "run-with-other-sites", "out"))
    return notices


def _node(site: SitePaths) -> str:
    try:
        return read_text(site.node).strip()
    except InputError:
        raise InputError(
            f"{site.name} is not registered: {site.node} is missing", code="not-registered", field=site.name
        ) from None


def _move_to_revoked(folder: DeploymentFolder, site: SitePaths) -> Path:
    """Move a site's public key to the revoked keys, and delete the file with its node ID."""
    # The file name contains the time, as a site can have several revoked keys.
    path = folder.revoked / f"{site.name}-{edit_settings.timestamp()}.pub"
    path.parent.mkdir(parents=True, exist_ok=True)
    if site.public_key.exists():
        site.public_key.rename(path)
    elif site.name not in folder.revoked_keys():
        # make-keys.sh recognises a revoked site by the name of this file, not by its content.
        path.write_text(f"# the key of {site.name}, whose file was missing\n", encoding="utf-8")
    site.node.unlink(missing_ok=True)
    return path
