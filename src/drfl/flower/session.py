"""The beginning and the end of the server's work with the sites."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from filelock import FileLock, Timeout
from flwr.serverapp import Grid

from drfl.core.audit_log import AuditLog
from drfl.core.audit_signatures import load_public_key
from drfl.core.errors import DrflError, InputError, Notice
from drfl.flower.claims import admit
from drfl.flower.closing import SERVER, AuditedRun
from drfl.flower.deploy.dated_folders import first_model, folder_to_fill, shorten
from drfl.flower.deploy.paths import DeploymentFolder
from drfl.flower.messages import HoldOut, SiteIdentity
from drfl.flower.nodes import JoinedSite, KeyRoster, NameRoster, Roster, gather_members
from drfl.flower.settings import ServerSettings, read_server

LOG = logging.getLogger("drfl.flower")

LOCK = "server.lock"
"""File in the deployment's folder that the server program locks."""

LOCK_TIMEOUT = 10.0
"""Seconds to wait for the lock: the program of a run that was stopped ends a moment later."""


@dataclass(frozen=True)
class Session:
    """The server's work with the sites, which are online.

    Args:
        grid: Flower's grid.
        settings: Settings of the server.
        folder: Folder of ``server.toml``.
        roster: Mapping from clients to nodes.
        members: Each client's description of itself.
        record: Record of the work in the audit log.
    """

    grid: Grid
    settings: ServerSettings
    folder: Path
    roster: Roster
    members: Mapping[int, SiteIdentity]
    record: AuditedRun

    @property
    def audit(self) -> AuditLog | None:
        """Audit log of the server; None for no log."""
        return self.record.audit


@contextmanager
def session(
    grid: Grid, settings: ServerSettings, folder: Path, wait: float | None, holdout: HoldOut | None = None
) -> Iterator[Session]:
    """Wait for the sites of a deployment, and record the beginning and the end of the work with them.

    ``wait`` is the number of seconds to wait for them; None = as in ``server.toml``.

    Raises:
        DrflError: If sites are missing or exceed their limits.
    """
    audit = settings.open_log(folder, "server", SERVER)
    roster = make_roster(settings, folder, audit)
    # Lock before the first line of the log: lines of two runs must not mix.
    with lock_deployment(folder):
        record = AuditedRun(audit, grid, roster, settings.timeout)
        record.start()
        try:
            seconds = settings.wait if wait is None else wait
            joined = gather_members(grid, roster, seconds, settings.timeout, audit, holdout)
            members = {client: member.identity for client, member in joined.items()}
            admit(members, settings.sites)
            if audit is not None:
                log_members(joined, roster, audit)
            yield Session(grid, settings, folder, roster, members, record)
        except Exception:
            # A run that was interrupted stays open.
            try:
                record.close("failed")
            except DrflError as error:  # the first error is the reason of the failure, so only log this one
                LOG.warning("%s", error)
            raise
        record.close("completed")  # unless the caller has closed it already


@contextmanager
def lock_deployment(folder: Path) -> Iterator[None]:
    """Let only one server program work in a deployment's folder.

    Raises:
        InputError: If another one still works in it after some seconds.
    """
    # The operating system releases the lock with the process, however that ends.
    lock = FileLock(folder / LOCK, timeout=LOCK_TIMEOUT)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(
            f"another run is in progress in {folder}. Wait for its end, or stop it with 'drfl deploy stop'; "
            "'drfl deploy status' shows its number",
            code="folder-in-use",
            field=str(folder),
        ) from None
    try:
        yield
    finally:
        lock.release()


def log_members(joined: Mapping[int, JoinedSite], roster: Roster, audit: AuditLog) -> None:
    """Write the participants and their descriptions of themselves to the server's log."""
    # Digest and head are those of the site's message, so that an audit can find its line in the site's log.
    for client, (member, digest, head) in sorted(joined.items()):
        values = {"name": member.name, "rows": member.train, "data": member.digest, "digest": digest}
        values |= {"classes": member.classes, "head": None if head is None else str(head)}
        audit.add("joined", site=roster.names[client], **values)


def read_resolved(path: Path) -> ServerSettings:
    """Read ``server.toml``, add the sites' names to the job, make its paths absolute, and choose the run's folder."""
    settings, folder = read_server(path), path.resolve().parent
    job: dict[str, object] = {"sites": tuple(site.name for site in settings.sites)}
    if settings.job.checkpoint_key is not None:
        job["checkpoint_key"] = folder / settings.job.checkpoint_key
    if settings.job.init_from is not None:
        job["init_from"] = first_model(folder, settings.job.init_from)
    out = shorten(folder, folder_to_fill(folder, settings.out))
    return settings.model_copy(update={"out": out, "job": settings.job.model_copy(update=job)})


def make_roster(settings: ServerSettings, folder: Path, audit: AuditLog | None = None) -> Roster:
    """Make the roster of the sites."""
    names = tuple(site.name for site in settings.sites)
    if settings.insecure:
        text = "insecure: sites are not authenticated. Anyone who can reach the server can join under any name"
        LOG.warning(Notice(text, "insecure-deployment"))
        return NameRoster(names, settings.timeout, audit=audit)
    revoked = DeploymentFolder(folder).revoked_keys()
    for site in settings.sites:
        if site.name in revoked and not (folder / str(site.public_key)).exists():
            raise InputError(
                f"the key of {site.name} was revoked. Give the site a new one with 'drfl deploy rotate', or remove it "
                "with 'drfl deploy remove-site'",
                code="revoked-key",
                field=site.name,
            )
    return KeyRoster(names, tuple(read_registered_key(folder / str(site.public_key)) for site in settings.sites))


def read_registered_key(path: Path) -> bytes:
    """Read a site's public key as PEM, the format in which the SuperLink lists keys."""
    key = load_public_key(path)
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
