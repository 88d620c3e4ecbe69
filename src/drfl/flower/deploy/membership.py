"""Add sites to a deployment and remove them, between runs."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from drfl.core.atomic_files import atomic_write
from drfl.core.errors import DrflError, InputError, Notice, unknown
from drfl.core.files import read_text
from drfl.core.json_toml import read_toml
from drfl.flower.deploy import edit_settings, keys
from drfl.flower.deploy.dated_folders import folder_to_fill, shorten
from drfl.flower.deploy.init import SITE_PORTS, DeploymentPlan, compose_service, site_files, write_files
from drfl.flower.deploy.paths import DeploymentFolder, SitePaths
from drfl.flower.deploy.runs import run_in_progress

MIN_SITES = 2
"""Smallest number of sites that must remain. With one site there is nothing to average or compare."""


class Addition(NamedTuple):
    """The result of adding a site.

    Args:
        folder: The folder to copy to the site.
        node: Node ID of the site at the SuperLink; "" in an insecure deployment.
        settings: Copy of the previous ``server.toml``; None if the site was in it already.
        notices: Problems to solve before the next run.
    """

    folder: Path
    node: str
    settings: Path | None
    notices: tuple[Notice, ...] = ()


class Removal(NamedTuple):
    """The result of removing a site.

    Args:
        key: File of its public key in the folder of revoked keys; None in an insecure deployment.
        settings: Copy of the previous ``server.toml``; None if the site was not in it.
        notices: Problems to solve before the next run.
    """

    key: Path | None
    settings: Path | None
    notices: tuple[Notice, ...] = ()


def add_site(
    folder: DeploymentFolder, name: str, key: Path | None = None, limits: Mapping[str, int | float] | None = None
) -> Addition:
    """Add a site: its folder, its keys, its registration at the SuperLink, and its table in ``server.toml``.

    If a step fails, the steps before it are undone. You can repeat an interrupted call: it adds what is
    missing.

    ``key`` is the file with the public key that the site made; by default ``make-keys.sh`` makes a key pair.

    Raises:
        InputError: If the name or the key is invalid, a run is in progress, or ``server.toml`` cannot be edited.
        DrflError: If the SuperLink does not answer or refuses the key, or the keys could not be made.
    """
    address, names = folder.address(), [site.name for site in folder.sites()]
    plan = DeploymentPlan(tuple(dict.fromkeys((*names, name))), *address)
    site, root, text = _paths(folder, name), folder.site(name).root, None
    if name not in names:
        from drfl.flower.settings import ServerSettings, validate  # imported here because it imports torch

        table = {"name": name, **({} if address.insecure else {"public_key": f"keys/{name}.pub"}), **(limits or {})}
        text = edit_settings.add_site(read_text(folder.settings), table)
        validate(folder.settings, tomllib.loads(text), ServerSettings)
        _check_no_run(folder)
    if key is not None:
        if address.insecure:
            raise InputError(
                "sites have no keys, because this deployment is insecure. Remove --key",
                code="insecure-deployment",
                field="--key",
            )
        keys.check_usable(folder, key)
        if site.public_key.exists() and read_text(site.public_key).split()[:2] != read_text(key).split()[:2]:
            raise InputError(
                f"{name} has another key already: {site.public_key}. Replace it with 'drfl deploy rotate'",
                code="conflicting-options",
                field="--key",
            )
    with ExitStack() as undo:
        if not root.exists():
            undo.callback(shutil.rmtree, root, ignore_errors=True)
        used = {address.port}
        for path in folder.root.glob("sites/*/superlink.env"):
            used |= {int(port) for port in re.findall(r"(?m)^PORT=\D?(\d+)", read_text(path))}
        port = next((port for port in SITE_PORTS if port not in used), None)
        if port is None:
            raise InputError(
                f"no port is left for {name}: other sites use all from {SITE_PORTS[0]} to {SITE_PORTS[-1]}. Set other "
                "ports in sites/*/superlink.env",
                code="out-of-range",
                field="SITE",
            )
        texts = site_files(plan, name, port)
        write_files(root, {file: text for file, text in texts.items() if not (root / file).exists()})
        root.chmod(0o700)  # the folder will contain a private key
        if not address.insecure:
            if not site.public_key.exists():
                undo.callback(site.public_key.unlink, missing_ok=True)
                if key is not None:
                    site.public_key.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(key, site.public_key)
            # The script makes only the keys that are missing, so a repeated call changes nothing.
            command = ["sh", "./make-keys.sh", "--add", name]
            process = subprocess.run(command, cwd=folder.root, capture_output=True, text=True)
            if process.returncode:
                reason = (process.stderr or process.stdout).strip()
                raise DrflError(f"make-keys.sh failed: {reason}", code="command-failed", field="make-keys.sh")
            keys.check_usable(folder, site.public_key)
            if site.pending.exists() or not site.node.exists():
                node = keys.register(folder, site, site.public_key)
                undo.callback(keys.undo_registration, folder, site, node)
                site.node.write_text(f"{node}\n", encoding="utf-8")
        backup = None if text is None else edit_settings.replace(folder.settings, text)
        undo.pop_all()
    site.pending.unlink(missing_ok=True)
    _edit_compose(folder, name, address.port, add=True)
    node = "" if address.insecure else read_text(site.node).strip()
    return Addition(root, node, backup, () if backup is None else tuple(_consequences(folder)))


def remove_site(folder: DeploymentFolder, name: str) -> Removal:
    """Revoke a site's key, and remove its table from ``server.toml`` and its service from ``compose.yaml``.

    Nothing changes unless the SuperLink accepts the request. You can repeat a call that was interrupted.

    Raises:
        InputError: If the site is unknown or not registered, a run is in progress, too few sites would remain, or
            ``server.toml`` cannot be edited.
        DrflError: If the SuperLink does not answer or refuses.
    """
    address, names = folder.address(), [site.name for site in folder.sites()]
    site, revoked = _paths(folder, name), folder.revoked_keys().get(name, [])
    is_registered = site.node.exists() or site.pending.exists()
    if name not in names and not is_registered and not revoked:
        raise unknown("site", name, names)
    # Take the steps that may fail first, so that a key is revoked only if the rest can follow.
    text = None
    if name in names:
        if len(names) <= MIN_SITES:
            raise InputError(
                f"without {name} the deployment would have {len(names) - 1} site{'s' * (len(names) != 2)}, but a run "
                f"needs {MIN_SITES}. Replace its key with 'drfl deploy rotate', or revoke only the key with 'drfl "
                "deploy revoke'",
                code="too-few-sites",
                field="SITE",
            )
        text = edit_settings.remove_site(read_text(folder.settings), name)
        _check_no_run(folder)
    key = revoked[-1] if revoked else None
    if not address.insecure and (is_registered or not revoked):
        key = keys.revoke_site(folder, site)
    backup = None if text is None else edit_settings.replace(folder.settings, text)
    _edit_compose(folder, name, address.port, add=False)
    return Removal(key, backup, () if backup is None else tuple(_consequences(folder)))


def _paths(folder: DeploymentFolder, name: str) -> SitePaths:
    listed = {site.name: site for site in folder.sites()}
    return listed.get(name, SitePaths(name, folder.keys / f"{name}.pub", folder.keys / f"{name}.node"))


def _check_no_run(folder: DeploymentFolder) -> None:
    """Check that no run is in progress: it could not be resumed with other sites."""
    number = run_in_progress(folder)
    if number is not None:
        raise InputError(
            f"run {number} is in progress, and the sites of a run are fixed. Wait for its end, or stop it with 'drfl "
            f"deploy stop {folder.root} {number}'. To cut a site off at once, use 'drfl deploy revoke'",
            code="run-in-progress",
            field="SITE",
        )


def _edit_compose(folder: DeploymentFolder, name: str, port: int, add: bool) -> None:
    """Add the service of a site to ``compose.yaml``, or remove it; do nothing if the file was edited or deleted."""
    path = folder.root / "compose.yaml"
    service = f"\n{compose_service(name, port)}"
    if not path.exists() or (service in (text := read_text(path))) is add:
        return
    with atomic_write(path) as file:
        file.write((f"{text.rstrip()}\n{service}" if add else text.replace(service, "")).encode())


def _consequences(folder: DeploymentFolder) -> list[Notice]:
    """List the settings in server.toml that no longer fit the sites."""
    from drfl.flower.settings import read_server

    notices = []
    try:
        sites = read_server(folder.settings).sites
    except InputError as error:
        notices.append(Notice(f"correct this before the next run: {error}", "invalid-settings", "server.toml"))
    else:
        if any(site.max_share is not None for site in sites):
            text = "the sites' shares of all rows have changed: check that they do not exceed max_share"
            notices.append(Notice(text, "shares-change", "max_share"))
    out = folder_to_fill(folder.root, Path(str(read_toml(folder.settings).get("out", "run"))))
    if out.exists():
        text = f"'{shorten(folder.root, out)}' has a run with other sites: remove this folder before the next run"
        notices.append(Notice(text, "run-with-other-sites", "out"))
    return notices
