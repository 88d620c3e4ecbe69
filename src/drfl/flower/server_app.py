"""The server's end of a Flower app: runs the job in ``server.toml``, and writes the files of a simulation."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from cryptography.hazmat.primitives import serialization
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from drfl.core.audit_log import AuditLog
from drfl.core.audit_signatures import load_public_key, read_signing_key
from drfl.core.errors import DivergedError, DrflError, InputError, Notice
from drfl.core.files import read_text
from drfl.core.key import Key
from drfl.core.screen import OneLine
from drfl.data import ClientData
from drfl.data.standardisation import Standardisation
from drfl.experiments.config.about_run import run_toml
from drfl.experiments.config.learned import Origin, model_source
from drfl.experiments.config.ready_run import ReadyRun
from drfl.experiments.config.run_settings import engine_text
from drfl.experiments.config.wrap import over_selected, wrap_algorithm
from drfl.experiments.run.artifacts import json_text
from drfl.experiments.run.manifest import CHECKPOINT, CONFIG, failure_of, is_finished
from drfl.experiments.run.resume import check_kept, check_received, checkpoint_writer, key_of, load_resume_point
from drfl.experiments.run.run_directory import claimed, tidy
from drfl.experiments.run.runner import execute, write_results
from drfl.flower.claims import admit, standardisation_of
from drfl.flower.client_app import task_of
from drfl.flower.closing import SERVER, AuditedRun
from drfl.flower.federation import FlowerFederation
from drfl.flower.messages import Model, SiteIdentity
from drfl.flower.nodes import Member, Registered, Roster, SelfNamed, gathered
from drfl.flower.paired import paired_csv
from drfl.flower.settings import ServerSettings, read_server
from drfl.flower.site_data import held_rows
from drfl.flower.transport import Deadline
from drfl.report.read_run import lines_beside
from drfl.report.run_gains import PAIRED
from drfl.resilience import Recorded, Rejection, ReplyLog, UsedReplies
from drfl.training.callbacks import describe
from drfl.training.checkpoint.store import REPLIES
from drfl.training.run_state import RunState, first

LOG = logging.getLogger("drfl.flower")

DEPLOYMENT = "deployment"
"""The key of the app's configuration that has the path of server.toml."""

app = ServerApp()
"""The app that Flower loads."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the deployment that the app's configuration names.

    Raises:
        DrflError: it cannot run, or diverges; Flower shows the line as the reason why the run failed.
    """
    # Send drfl's log lines, but not those of libraries, to the stream that Flower collects.
    logger = logging.getLogger("drfl")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    # If the root logger has a handler too, each line would appear twice.
    logger.propagate = False
    logging.getLogger("flwr").addFilter(in_one_line)
    path = context.run_config.get(DEPLOYMENT)
    if path is None:
        raise InputError(
            f"the app's configuration names no server.toml: set '{DEPLOYMENT}' in its [tool.flwr.app.config]",
            code="missing-option",
            field=DEPLOYMENT,
        )
    serve(grid, Path(str(path)))


class Sites(NamedTuple):
    """The clients of a deployment, for a run's files.

    Args:
        members: (N,) their descriptions of themselves.
        names: (N,) their names in server.toml, whatever they call themselves.
        standardisation: by which they scale their inputs; None = they do not.
    """

    members: tuple[SiteIdentity, ...]
    names: tuple[str, ...]
    standardisation: Standardisation | None = None

    @property
    def n(self) -> int:
        """N, how many there are."""
        return len(self.members)

    @property
    def sizes(self) -> Tensor:
        """(N,) int64, their training samples."""
        return torch.tensor([member.train for member in self.members])

    def tensors(self) -> list[Tensor]:
        """The digests of the sites' data, by which a resumed run recognises them, and by what these are scaled."""
        digests = [torch.frombuffer(bytearray(member.digest.encode()), dtype=torch.uint8) for member in self.members]
        scaled = self.standardisation
        return digests + ([] if scaled is None else [scaled.mean, scaled.scale])


@dataclass(frozen=True, kw_only=True)
class Deployment(ReadyRun[Sites, FlowerFederation]):
    """A run on sites, ready to start.

    Args:
        replies: the log of the replies that the algorithm uses.
    """

    replies: ReplyLog


def serve(grid: Grid, path: Path) -> Path:
    """Run a deployment, or resume it.

    Args:
        grid: of the sites.
        path: its server.toml.

    Returns:
        The run's folder.

    Raises:
        DrflError: see :func:`main`.
    """
    folder = path.resolve().parent
    settings = placed(read_server(path), folder)
    out = folder / settings.out
    # Check first what needs no site, so that such errors show at once.
    check_sites(out, settings)
    key = key_of(settings.job, out)
    check_received(out, settings.job.checkpoint_key)
    notice = settings.unprotected()
    if notice is not None:
        LOG.warning(notice)
    audit = log_of(settings, folder)
    roster = roster_of(settings, folder, audit)
    # From here on the log records how the run ends, even after an error.
    with AuditedRun(audit, grid, roster, settings.timeout) as audited:
        joined = gathered(grid, roster, settings.wait, settings.timeout, audit)
        members = {client: member.identity for client, member in joined.items()}
        admit(members, settings.sites)
        if audit is not None:
            log_joined(joined, roster, audit)
        deployed = deployment(grid, roster, members, settings, folder, audit)
        check_kept(out, deployed)
        if is_finished(out):
            # As after a kill between the last result and the end of this program, which Flower takes for a failure.
            tidy(out)
            failure = failure_of(out)
            audited.close("completed" if failure is None else "diverged")
            text = f"{out} is finished: there is nothing to resume; give another 'out' in {path} to run it again"
            LOG.warning(Notice(text, "nothing-to-resume", "out"))
            if failure is not None:
                raise DivergedError(failure, code=failure.code, field=failure.field)
            return out
        with claimed(out, resume=True, config=run_toml(deployed.about), key=key) as claim:
            point, log = load_resume_point(claim, deployed, LOG.warning, key), deployed.replies
            start = None if point is None else point.progress
            since = 0 if start is None else start.round
            # Rows of rounds after the checkpoint are dropped: these rounds are played again.
            log.open(claim.checkpoints / REPLIES, b"" if point is None else point.replies)
            keep = checkpoint_writer(claim, deployed, key, log.extent)
            finished = execute(deployed, [log, _told], start=start, keep=keep)
            # Before the results are written: a server that is killed here is resumed, and closes its log then.
            audited.close("completed" if finished.checks.failure is None else "diverged")
            replies = read_text(claim.checkpoints / REPLIES, limit=None, follow=False)
            LOG.info("%s", deployed.fed.traffic.told())
            traffic = {"since_round": since, **deployed.fed.traffic.totals(), "sites": deployed.fed.site_health()}
            more = {"traffic.json": json_text(traffic, indent=2) + "\n", REPLIES: replies}
            paired = paired_csv(deployed.data.names, deployed.fed.measures, finished.result, deployed.fed.products)
            write_results(finished, claim, {**more, **({} if paired is None else {PAIRED: paired})})
    line = finished.interval_line()
    told = [] if line is None else [line]
    for text in (*told, *lines_beside(finished.beside), f"results: {out}"):
        LOG.info("%s", text)
    for line in finished.checks.warnings:
        LOG.warning(line)
    # After the results are written, so that nothing is lost; Flower then calls the run failed, and gives the reason.
    if finished.checks.failure is not None:
        failure = finished.checks.failure
        raise DivergedError(failure, code=failure.code, field=failure.field)
    return out


def log_joined(joined: Mapping[int, Member], roster: Roster, audit: AuditLog) -> None:
    """Write to the server's log who takes part, and what each claims of itself."""
    for client, (member, digest, head) in sorted(joined.items()):
        own = {"name": member.name, "rows": member.train, "data": member.digest, "digest": digest}
        own |= {"classes": member.classes, "head": None if head is None else str(head)}
        audit.add("joined", site=roster.names[client], **own)


def check_sites(out: Path, settings: ServerSettings) -> None:
    """Make sure that what a run's folder holds is a run of the same sites, as after one of them was revoked.

    Raises:
        InputError: it is one of others; names them.
    """
    for path in (out / CHECKPOINT / CONFIG, out / CONFIG):
        try:
            before = tomllib.loads(path.read_text(encoding="utf-8")).get("sites")
        except (OSError, ValueError, RecursionError):
            continue  # where it is needed, the files of a run are read again
        # The order counts too: client i of the checkpoint must stay the same site.
        if isinstance(before, list) and before != list(settings.job.sites):
            changes = [
                f"{verb} {', '.join(names)}"
                for verb, names in (
                    ("it lacks", [str(name) for name in before if name not in settings.job.sites]),
                    ("it adds", [name for name in settings.job.sites if name not in before]),
                )
                if names
            ]
            raise InputError(
                f"'{settings.out}' holds a run with other sites than server.toml names now "
                f"({' and '.join(changes) or 'in another order'}): give another 'out' for a new run, or name the "
                "sites as before",
                code="other-sites",
                field="out",
            )


def placed(settings: ServerSettings, folder: Path) -> ServerSettings:
    """The settings with the sites in the job, and with the path of the checkpoints' key in full."""
    job: dict[str, object] = {"sites": tuple(site.name for site in settings.sites)}
    if settings.job.checkpoint_key is not None:
        job["checkpoint_key"] = folder / settings.job.checkpoint_key
    return settings.model_copy(update={"job": settings.job.model_copy(update=job)})


def deployment(
    grid: Grid,
    roster: Roster,
    members: Mapping[int, SiteIdentity],
    settings: ServerSettings,
    folder: Path,
    audit: AuditLog | None = None,
) -> Deployment:
    """The run, on sites that are online, and the log that it is written to.

    Raises:
        InputError: model, algorithm and sites do not work together.
    """
    config = settings.job
    standardisation = standardisation_of(members, roster.names, config.standardise)
    sites = Sites(tuple(member for _, member in sorted(members.items())), tuple(roster.names), standardisation)
    needed, most = max((member.classes, name) for member, name in zip(sites.members, sites.names, strict=True))
    classes = needed if config.classes is None else config.classes
    if classes < needed:
        raise InputError(
            f"classes = {classes}, and site '{most}' has labels up to {needed - 1}: raise it, or remove it",
            code="out-of-range",
            field="classes",
        )
    names = tuple(metric.name for metric in config.measures())
    model = Model(config.model, config.loss, config.dtype, classes, engine_text(config.engine), names)
    # The key that a simulation uses too: the same seed gives the same initial model.
    with Key(config.seed).fold("model").torch_scope():
        task = task_of(model, sites.members[0].shape)
    fed = FlowerFederation(grid, roster, members, model, task.w0, deadline_of(settings), standardisation, audit)
    bare = config.built(config.algorithm, sites.n)
    asked, keep = over_selected(config, bare, sites.n)
    record = ReplyLog()

    def used(replies: UsedReplies) -> None:
        record.add(replies)
        if audit is not None:
            names = [sites.names[client] for client in replies.clients]
            audit.add("used", round=replies.round, what=replies.kind, stream=replies.key, sites=names)

    def rejected(one: Rejection) -> None:
        # one.client is always a client's number, as the transport accepts no reply from other senders.
        if audit is not None:
            reason = str(one.reason)
            audit.add("rejected", site=sites.names[one.client], round=one.round, what=one.kind, reason=reason)

    # Innermost: the log is of the replies that the algorithm used, not of those that wrappers rejected.
    inner = Recorded(asked, used)
    held = probe_rows(settings, folder, sites)
    algorithm = wrap_algorithm(config, inner, keep, held, task, sites.names, rejected)
    begun = first(algorithm, fed, returned=config.returned, averaged=config.averaged, table_dir=config.tables)
    origin = Origin(model_source(config.model, sites.members[0].shape, classes), config.loss)
    return Deployment(
        settings=config, about=config.about(bare, sites.n), data=sites, task=task, fed=fed, algorithm=algorithm,
        first=begun, origin=origin, replies=record,
    )  # fmt: skip


def probe_rows(settings: ServerSettings, folder: Path, sites: Sites) -> ClientData | None:
    """The rows that the server holds for the sites, scaled as theirs; None where it holds none.

    Raises:
        InputError: they cannot be read, or are not like the sites'.
    """
    held = held_rows(settings.sites, folder, settings.job.dtype)
    if held is None:
        return None
    shape, own = tuple(held.inputs.shape[1:]), sites.members[0].shape
    if shape != own:
        raise InputError(
            f"the probes in server.toml have inputs of shape {shape}, and the sites' have {own}",
            code="wrong-shape",
            field="probe",
        )
    return held if sites.standardisation is None else held.standardised(sites.standardisation)


def deadline_of(settings: ServerSettings) -> Deadline:
    """How long an exchange with the sites lasts."""
    if settings.grace is None:
        return Deadline(settings.timeout)
    return Deadline(settings.timeout, settings.job.min_replies, settings.grace)


def log_of(settings: ServerSettings, folder: Path) -> AuditLog | None:
    """The server's audit log; None where it keeps none.

    Raises:
        InputError: a key cannot be read.
    """
    if settings.audit is None:
        return None
    keys = (None if key is None else read_signing_key(folder / key) for key in (settings.key, settings.previous_key))
    return AuditLog(folder / settings.audit, "server", SERVER, *keys)


def roster_of(settings: ServerSettings, folder: Path, audit: AuditLog | None = None) -> Roster:
    """Who the sites are.

    Args:
        settings: the server's.
        folder: that of server.toml.
        audit: the server's log; None = none.

    Raises:
        InputError: a key cannot be read.
    """
    names = tuple(site.name for site in settings.sites)
    if settings.insecure:
        return SelfNamed(names, settings.timeout, audit)
    return Registered(names, tuple(registered_key(folder / str(site.public_key)) for site in settings.sites))


def registered_key(path: Path) -> bytes:
    """Read a site's public key in the form in which the SuperLink lists it, PEM.

    Raises:
        InputError: The file does not exist or does not hold an ECDSA key.
    """
    key = load_public_key(path)
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def in_one_line(record: logging.LogRecord) -> bool:
    """Replace the traceback that Flower logs when an app fails by one line, for errors that drfl raises on purpose."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, DrflError):
        record.msg, record.args, record.exc_info = "%s: %s", (type(error).__name__, str(error)), None
    return True


def _told(progress: RunState) -> None:
    if progress.row is None:
        LOG.info("round %d of %d", progress.round, progress.rounds)
    else:
        told = describe(progress.row.metrics, progress.score, progress.row.note)
        LOG.info("round %d of %d: %s", progress.round, progress.rounds, told)
