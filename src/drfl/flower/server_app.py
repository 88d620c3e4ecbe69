"""The server's end of a Flower app: runs the job in ``server.toml`` and writes the same files as a simulation."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from drfl.core.audit_log import AuditLog
from drfl.core.errors import DivergedError, DrflError, InputError, Notice
from drfl.core.files import read_text
from drfl.core.key import Key
from drfl.core.screen import OneLine
from drfl.data import ClientData
from drfl.data.standardisation import Standardisation
from drfl.data.tables.schema import TableSchema
from drfl.data.warm_start import warm_start
from drfl.experiments.config.about_run import run_toml
from drfl.experiments.config.kept_weights import with_kept_weights
from drfl.experiments.config.learned import Origin
from drfl.experiments.config.ready_run import ReadyRun
from drfl.experiments.config.run_settings import engine_text
from drfl.experiments.config.wrap import add_over_selection, wrap_algorithm
from drfl.experiments.run.artifacts import json_text, run_files
from drfl.experiments.run.finished import FinishedRun
from drfl.experiments.run.manifest import CHECKPOINT, CONFIG, failure_of, is_finished
from drfl.experiments.run.resume import (
    check_folder_signatures,
    check_stored_config,
    checkpoint_writer,
    key_of,
    load_resume_point,
)
from drfl.experiments.run.run_directory import claim_folder, tidy
from drfl.experiments.run.runner import execute, write_results
from drfl.flower.claims import admit, site_warnings, standardisation_of
from drfl.flower.closing import SERVER, AuditedRun
from drfl.flower.delivery import FILE as DELIVERY_FILE
from drfl.flower.delivery import deliver
from drfl.flower.deployed_federation import FlowerFederation
from drfl.flower.job_code import job_code
from drfl.flower.messages import ModelRecipe, SiteIdentity, short_name
from drfl.flower.nodes import Roster, gather_members
from drfl.flower.paired import paired_csv
from drfl.flower.server_tasks import carry_out
from drfl.flower.session import log_members, make_roster, resolve_settings
from drfl.flower.settings import ServerSettings, read_server
from drfl.flower.shared_rows import compare_sites
from drfl.flower.site_data import load_probe_rows
from drfl.flower.site_task import task_of
from drfl.flower.transport import Deadline
from drfl.report.read_run import remark_lines
from drfl.report.run_gains import PAIRED
from drfl.resilience import Recorded, Rejection, ReplyLog, UsedReplies
from drfl.training.callbacks import describe
from drfl.training.checkpoint.store import REPLIES
from drfl.training.run_state import RunState, first

LOG = logging.getLogger("drfl.flower")

DEPLOYMENT = "deployment"
"""Key of the app's configuration with the path of ``server.toml``."""

WAIT = "wait"
"""Key of the app's configuration with the seconds to wait for the sites; "" = as in ``server.toml``."""

REQUEST = "request"
"""Key with the folder of a request that is not a training run, see :mod:`drfl.flower.server_tasks`; "" for a run."""

app = ServerApp()
"""The app that Flower loads."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the deployment that the app's configuration names.

    Raises:
        DrflError: If the deployment cannot run or diverges. Flower shows the message as the reason of the failure.
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
    logging.getLogger("flwr").addFilter(shorten_traceback)
    path = context.run_config.get(DEPLOYMENT)
    if path is None:
        raise InputError(
            f"the app's configuration does not name a server.toml. Set '{DEPLOYMENT}' in its [tool.flwr.app.config]",
            code="missing-option",
            field=DEPLOYMENT,
        )
    wait, request = (context.run_config.get(key, "") for key in (WAIT, REQUEST))
    seconds = None if wait == "" else float(wait)
    if request:
        carry_out(grid, Path(str(path)), Path(str(request)), seconds)
    else:
        serve(grid, Path(str(path)), seconds)


class Sites(NamedTuple):
    """The clients of a deployment, for a run's files.

    Args:
        members: (N,) the sites' descriptions of themselves.
        names: (N,) the sites' names in ``server.toml``, which may differ from the names that they report.
        standardisation: Mean and scale with which sites standardise their inputs; None for no standardisation.
        notices: Warnings about the sites' data.
        dtype: The type of the sites' inputs.
        schema: The schema of the sites, if the server has it.
        fields: None, because inputs of sites are one tensor.
    """

    members: tuple[SiteIdentity, ...]
    names: tuple[str, ...]
    standardisation: Standardisation | None = None
    notices: tuple[Notice, ...] = ()
    dtype: torch.dtype = torch.float32
    schema: TableSchema | None = None
    fields: None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an input."""
        return self.members[0].shape

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the inputs' columns; None if the sites have none, or not the same."""
        return _common([member.features for member in self.members])

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes; None if the sites have none, or not the same."""
        return _common([member.class_names for member in self.members])

    @property
    def schema_digest(self) -> str:
        """The digest of the sites' schema; "" if they have none, or not the same."""
        first, *others = {member.schema for member in self.members}
        return "" if others else first

    @property
    def n(self) -> int:
        """N, the number of clients."""
        return len(self.members)

    @property
    def sizes(self) -> Tensor:
        """(N,) int64, the clients' numbers of training samples."""
        return torch.tensor([member.trained for member in self.members])

    def tensors(self) -> list[Tensor]:
        """Return the digests of the sites' data and the standardisation, which a resumed run compares."""
        digests = [torch.frombuffer(bytearray(member.digest.encode()), dtype=torch.uint8) for member in self.members]
        applied = self.standardisation
        return digests + ([] if applied is None else [applied.mean, applied.scale])


def _common(names: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    first, *others = set(names)
    return None if others or not first else first


@dataclass(frozen=True, kw_only=True)
class Deployment(ReadyRun[Sites, FlowerFederation]):
    """A run on sites, ready to start.

    Args:
        replies: Log of the replies that the algorithm uses.
    """

    replies: ReplyLog


def serve(grid: Grid, path: Path, wait: float | None = None) -> Path:
    """Run a deployment, or resume it.

    Args:
        grid: Flower's grid.
        path: ``server.toml`` of the deployment.
        wait: Seconds to wait for the sites; None = as in ``server.toml``.

    Returns:
        The run's folder.

    Raises:
        DrflError: See :func:`main`.
    """
    folder = path.resolve().parent
    settings = resolve_settings(read_server(path), folder)
    out = folder / settings.out
    # First check everything that needs no site, so that such errors show at once.
    check_sites(out, settings)
    key = key_of(settings.job, out)
    check_folder_signatures(out, settings.job.checkpoint_key)
    notice = settings.protection_notice()
    if notice is not None:
        LOG.warning(notice)
    audit = settings.open_log(folder, "server", SERVER)
    roster = make_roster(settings, folder, audit)
    # From here on the log records how the run ends, even after an error.
    with AuditedRun(audit, grid, roster, settings.timeout) as audited:
        joined = gather_members(
            grid, roster, settings.wait if wait is None else wait, settings.timeout, audit, settings.job.holdout
        )
        members = {client: member.identity for client, member in joined.items()}
        admit(members, settings.sites)
        if audit is not None:
            log_members(joined, roster, audit)
        deployed = prepare_deployment(grid, roster, members, settings, folder, audit)
        check_same_settings(out, settings, deployed)
        if is_finished(out):
            # The program was killed after the last result was written, which Flower reports as a failed run.
            tidy(out)
            failure = failure_of(out)
            audited.close("completed" if failure is None else "diverged")
            text = f"the run in {out} is finished: nothing to resume. For a new run set another 'out' in {path}"
            LOG.warning(Notice(text, "nothing-to-resume", "out"))
            if failure is not None:
                raise DivergedError(failure, code=failure.code, field=failure.field)
            return out
        with claim_folder(out, resume=True, config=run_toml(deployed.about), key=key) as claim:
            point, log = load_resume_point(claim.checkpoints, deployed, LOG.warning, key), deployed.replies
            start = None if point is None else point.progress
            since = 0 if start is None else start.round
            # Drop the rows of rounds after the checkpoint, because these rounds are repeated.
            log.open(claim.checkpoints / REPLIES, b"" if point is None else point.replies)
            keep = checkpoint_writer(claim, deployed, key, log.extent)
            finished = execute(deployed, [log, _log_progress], start=start, keep=keep)
            files = _deliver(finished, settings, folder, grid, roster, audit)
            # Close the log before writing the results: a server that is killed here is resumed, and then closes it.
            audited.close("completed" if finished.checks.failure is None else "diverged")
            replies = read_text(claim.checkpoints / REPLIES, limit=None, follow=False)
            LOG.info("%s", deployed.fed.traffic.summary_line())
            traffic = {"since_round": since, **asdict(deployed.fed.traffic), "sites": deployed.fed.site_health()}
            files |= {"traffic.json": json_text(traffic, indent=2) + "\n", REPLIES: replies}
            paired = paired_csv(deployed.data.names, deployed.fed.measures, finished.result, deployed.fed.products)
            write_results(finished, claim, {**files, **({} if paired is None else {PAIRED: paired})})
    line = finished.interval_line()
    interval = [] if line is None else [line]
    for text in (*interval, *remark_lines(finished.reading_aids), f"results: {out}"):
        LOG.info("%s", text)
    for line in finished.checks.warnings:
        LOG.warning(line)
    # Raise only after the results are written, so that nothing is lost. Flower then shows the failure and its reason.
    if finished.checks.failure is not None:
        failure = finished.checks.failure
        raise DivergedError(failure, code=failure.code, field=failure.field)
    return out


def _deliver(
    finished: FinishedRun, settings: ServerSettings, folder: Path, grid: Grid, roster: Roster, audit: AuditLog | None
) -> dict[str, str]:
    """Deliver the model of a run that reached its end, and return the file about it; none if nothing is delivered."""
    is_wanted = settings.key is not None if settings.deliver is None else settings.deliver
    if not is_wanted or not finished.has_ended or finished.checks.failure is not None:
        return {}
    model = dict(run_files(finished))["model.safetensors"]
    outcome = deliver(grid, roster, model, settings.signing_key(folder), settings.timeout, audit)
    return {DELIVERY_FILE: json_text(outcome, indent=2) + "\n"}


def check_sites(out: Path, settings: ServerSettings) -> None:
    """Check that an existing run in the folder has the same sites. They may differ after a site was revoked.

    Raises:
        InputError: If it has other sites; the message names them.
    """
    for path in (out / CHECKPOINT / CONFIG, out / CONFIG):
        try:
            before = tomllib.loads(path.read_text(encoding="utf-8")).get("sites")
        except (OSError, ValueError, RecursionError):
            continue  # the code that needs this file reads it again, and reports the error
        # The order matters too, because client i of the checkpoint must remain the same site.
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
                f"the run in '{settings.out}' has other sites than server.toml names now "
                f"({' and '.join(changes) or 'in another order'}), and the sites of a run are fixed. Set another 'out' "
                "for a new run, or restore the sites",
                code="other-sites",
                field="out",
            )


def check_same_settings(out: Path, settings: ServerSettings, deployed: Deployment) -> None:
    """Check that an existing run in the folder has the same settings.

    Raises:
        InputError: If it has others; the field is the first that differs.
    """
    try:
        check_stored_config(out, deployed)
    except InputError as error:
        if not is_finished(out) or failure_of(out) is None:
            raise
        changed = str(error.field).rpartition(".")[2]
        raise InputError(
            f"the run in '{settings.out}' diverged and cannot be resumed with another {changed}. Set another 'out' in "
            "server.toml for a new run",
            code=error.code,
            field=error.field,
        ) from None


def prepare_deployment(
    grid: Grid,
    roster: Roster,
    members: Mapping[int, SiteIdentity],
    settings: ServerSettings,
    folder: Path,
    audit: AuditLog | None = None,
) -> Deployment:
    """Set up the run with sites that are online.

    Raises:
        InputError: If the model, the algorithm and the sites do not fit together.
    """
    config = settings.job
    standardisation, of_columns = standardisation_of(members, roster.names, config.standardise)
    notices = (*site_warnings(members, roster.names), *of_columns)
    for notice in notices:
        LOG.warning(notice)
    sites = Sites(
        tuple(member for _, member in sorted(members.items())), tuple(roster.names), standardisation,
        (*notices, *compare_sites(grid, roster, members, settings.timeout, audit)), getattr(torch, config.dtype),
        read_schema(settings, folder, members, roster),
    )  # fmt: skip
    needed, largest = max((member.classes, name) for member, name in zip(sites.members, sites.names, strict=True))
    classes = needed if config.classes is None else config.classes
    if classes < needed:
        raise InputError(
            f"classes = {classes}, but site '{largest}' has labels up to {needed - 1}. Raise 'classes' or remove it",
            code="out-of-range",
            field="classes",
        )
    code = job_code(config, folder)
    model = ModelRecipe(
        code.names.get(config.model, config.model), code.loss, config.dtype, classes, engine_text(config.engine),
        code.metrics, code.files,
    )  # fmt: skip
    # Use the same key as a simulation, so that the same seed gives the same initial model.
    with Key(config.seed).fold("model").torch_scope():
        task = task_of(model, sites.members[0].shape, folder)
    start = None
    if config.init_from is not None:
        task, start = warm_start(task, sites, config.init_from)
    deadline = Deadline(settings.timeout)
    if settings.grace is not None:
        deadline = Deadline(settings.timeout, settings.job.min_replies, settings.grace)
    fed = FlowerFederation(
        grid,
        roster,
        members,
        model,
        task.w0,
        deadline,
        standardisation,
        audit,
        config.holdout,
        config.measures,
        task,
    )
    bare = config.build_algorithm(config.algorithm, sites.n)
    selecting, keep = add_over_selection(config, with_kept_weights(bare, config, sites.names), sites.n)
    reply_log = ReplyLog()

    def on_used(replies: UsedReplies) -> None:
        reply_log.add(replies)
        if audit is not None:
            names = [sites.names[client] for client in replies.clients]
            audit.add("used", round=replies.round, what=replies.kind, stream=replies.key, sites=names)

    def on_rejected(rejection: Rejection) -> None:
        # rejection.client is always a client's number, because the transport accepts no reply from other senders.
        if audit is not None:
            name, reason = sites.names[rejection.client], str(rejection.reason)
            audit.add("rejected", site=name, round=rejection.round, what=rejection.kind, reason=reason)

    # Record innermost, so that the log has the replies that the algorithm used, not those that wrappers rejected.
    inner = Recorded(selecting, on_used)
    probe = prepare_probe_rows(settings, folder, sites)
    algorithm = wrap_algorithm(config, inner, keep, probe, task, sites.names, on_rejected)
    selection = config.selection(config.measures)
    state = first(
        algorithm, fed, returned=config.returned, averaged=config.averaged, table_dir=config.tables,
        validates=selection.validates,
    )  # fmt: skip
    origin = Origin(code.source_of(config.model, sites.members[0].shape, classes), model.loss, start)
    return Deployment(
        settings=config, about=config.about(bare, sites.n), data=sites, task=task, fed=fed, algorithm=algorithm,
        first=state, origin=origin, selection=selection, replies=reply_log,
    )  # fmt: skip


def read_schema(
    settings: ServerSettings, folder: Path, members: Mapping[int, SiteIdentity], roster: Roster
) -> TableSchema | None:
    """Read the schema that ``server.toml`` names; return None if it names none.

    Raises:
        InputError: If it cannot be read, or a site has another one.
    """
    if settings.schema_file is None:
        return None
    schema = TableSchema.read(folder / settings.schema_file)
    for client, member in members.items():
        if member.schema != schema.digest:
            name = roster.names[client]
            raise InputError(
                f"'{settings.schema_file}' has the digest {schema.digest[:8]}, but site '{name}' has "
                f"{member.schema[:8] or 'no schema'}. Use the sites' schema, or remove schema from server.toml",
                code="schema-differs",
                field=name,
            )
    return schema


def prepare_probe_rows(settings: ServerSettings, folder: Path, sites: Sites) -> ClientData | None:
    """Load the server's probe rows and standardise them like the sites' rows; return None if there are none.

    Raises:
        InputError: If they cannot be read, or their shape differs from that of the sites' inputs.
    """
    probe = load_probe_rows(settings.sites, folder, settings.job.dtype)
    if probe is None:
        return None
    shape, expected = tuple(probe.inputs.shape[1:]), sites.members[0].shape
    if shape != expected:
        raise InputError(
            f"the probes in server.toml have inputs of shape {shape}, but the sites have inputs of shape {expected}",
            code="wrong-shape",
            field="probe",
        )
    site = sites.members[0]
    for what, own, theirs in (
        ("columns", tuple(map(short_name, probe.columns or ())), site.features),
        ("classes", tuple(map(short_name, probe.classes or ())), site.class_names),
    ):
        if own and theirs and own != theirs:
            raise InputError(
                f"the probes in server.toml have other {what} than site '{site.name}': give them the sites' schema",
                code="sites-differ",
                field="probe",
            )
    return probe if sites.standardisation is None else probe.standardised(sites.standardisation)


def shorten_traceback(record: logging.LogRecord) -> bool:
    """Log an error that drfl raised on purpose in one line instead of Flower's traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, DrflError):
        record.msg, record.args, record.exc_info = "%s: %s", (type(error).__name__, str(error)), None
    return True


def _log_progress(progress: RunState) -> None:
    if progress.row is None:
        LOG.info("round %d of %d", progress.round, progress.rounds)
    else:
        text = describe(progress.row.metrics, progress.score, progress.row.note)
        LOG.info("round %d of %d: %s", progress.round, progress.rounds, text)
