"""Log the progress and the end of a run in a deployment."""

from __future__ import annotations

import logging
from pathlib import Path

from drfl.core.errors import DivergedError
from drfl.experiments.run.finished import FinishedRun
from drfl.report.read_run import remark_lines
from drfl.training.callbacks import describe
from drfl.training.run_state import RunState

LOG = logging.getLogger("drfl.flower")


def log_progress(progress: RunState) -> None:
    """Log a round that has ended, with the results of its test."""
    if progress.row is None:
        LOG.info("round %d of %d", progress.round, progress.rounds)
    else:
        text = describe(progress.row.metrics, progress.score, progress.row.note)
        LOG.info("round %d of %d: %s", progress.round, progress.rounds, text)


def log_end(finished: FinishedRun, out: Path) -> None:
    """Log the results and the warnings of a run whose files are written.

    Raises:
        DivergedError: If the run ended worse than it began. Flower then shows the failure and its reason.
    """
    line = finished.interval_line()
    interval = [] if line is None else [line]
    for text in (*interval, *remark_lines(finished.reading_aids), f"results: {out}"):
        LOG.info("%s", text)
    for warning in finished.checks.warnings:
        LOG.warning(warning)
    failure = finished.checks.failure
    if failure is not None:
        raise DivergedError(failure, code=failure.code, field=failure.field)
