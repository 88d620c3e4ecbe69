"""The server's end of a Flower app: runs the job in ``server.toml`` and writes the same files as a simulation."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from drfl.core.errors import DivergedError, DrflError, InputError, Notice
from drfl.core.files import read_text
from drfl.core.screen import OneLine
from drfl.experiments.config.about_run import run_toml
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
from drfl.flower.delivery import deliver_result
from drfl.flower.deploy.runs import FIT
from drfl.flower.deployed_fit import fit_sites
from drfl.flower.deployment import Deployment, Preparation
from drfl.flower.job_code import job_code
from drfl.flower.paired import paired_csv
from drfl.flower.progress import log_end, log_progress
from drfl.flower.server_tasks import carry_out
from drfl.flower.session import read_resolved, session
from drfl.flower.settings import NEW_RUN, ServerSettings
from drfl.report.run_gains import PAIRED
from drfl.training.checkpoint.store import REPLIES

LOG = logging.getLogger("drfl.flower")

DEPLOYMENT = "deployment"
"""Key of the app's configuration with the path of ``server.toml``."""

WAIT = "wait"
"""Key of the app's configuration with the seconds to wait for the sites; "" = as in ``server.toml``."""

REQUEST = "request"
"""Key with the folder of a request that is not a training run, see :mod:`drfl.flower.server_tasks`; "" for a run, and
:data:`drfl.flower.deploy.runs.FIT` for a fit."""

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
    if request == FIT:
        fit_sites(grid, Path(str(path)), seconds)
    elif request:
        carry_out(grid, Path(str(path)), Path(str(request)), seconds)
    else:
        serve(grid, Path(str(path)), seconds)


def serve(grid: Grid, path: Path, wait: float | None = None) -> Path:
    """Run a deployment, or resume it.

    Returns:
        The run's folder.
    """
    settings, folder = read_resolved(path), path.resolve().parent
    out = folder / settings.out
    # First check everything that needs no site, so that such errors show at once.
    check_sites(out, settings)
    key = key_of(settings.job, out)
    check_folder_signatures(out, settings.job.checkpoint_key)
    notice = settings.protection_notice()
    if notice is not None:
        LOG.warning(notice)
    job_code(settings.job, folder)
    holdout = settings.job.holdout
    with session(grid, settings, folder, wait, holdout) as joined:
        deployed = Preparation.of(joined).run(settings.job, holdout)
        check_same_settings(out, settings, deployed)
        if is_finished(out):
            # The program was killed after the last result was written, which Flower reports as a failed run.
            tidy(out)
            failure = failure_of(out)
            joined.record.close("completed" if failure is None else "diverged")
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
            finished = execute(deployed, [log, log_progress], start=start, keep=keep)
            files = deliver_result(finished, joined)
            # Close the log before writing the results: a server that is killed here is resumed, and then closes it.
            joined.record.close("completed" if finished.checks.failure is None else "diverged")
            replies = read_text(claim.checkpoints / REPLIES, limit=None, follow=False)
            LOG.info("%s", deployed.fed.traffic.summary_line())
            files |= {"traffic.json": deployed.fed.traffic_json(since), REPLIES: replies}
            paired = paired_csv(deployed.data.names, deployed.fed.measures, finished.result, deployed.fed.products)
            write_results(finished, claim, {**files, **({} if paired is None else {PAIRED: paired})})
    log_end(finished, out)
    return out


def check_sites(out: Path, settings: ServerSettings) -> None:
    """Check that an existing run in the folder has the same sites. They may differ after a site was revoked."""
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
                f"({' and '.join(changes) or 'in another order'}), and the sites of a run are fixed. Restore the "
                f"sites, or {NEW_RUN} to start a new one",
                code="other-sites",
                field="out",
            )


def check_same_settings(out: Path, settings: ServerSettings, deployed: Deployment) -> None:
    """Check that an existing run in the folder has the same settings."""
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


def shorten_traceback(record: logging.LogRecord) -> bool:
    """Log an error that drfl raised on purpose in one line instead of Flower's traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, DrflError):
        record.msg, record.args, record.exc_info = "%s: %s", (type(error).__name__, str(error)), None
    return True
