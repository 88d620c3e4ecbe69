"""Assess finished runs from their folders."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import NamedTuple

from drfl.assessment.clients import Assessment, AucInterval
from drfl.core.errors import InputError, Notice, RunWarning, unknown
from drfl.data.row_scores import RowScores
from drfl.experiments.run.manifest import interruption
from drfl.report.assessed import assessment_of, why_nothing
from drfl.report.read_run import RunRecord, load_run
from drfl.task.measure import Measure


class AssessedRun(NamedTuple):
    """A run with what may be said of it.

    Args:
        directory: its folder.
        record: its files.
        measure: what it is assessed by.
        assessment: of its returned model; None for the reason of :func:`nothing_said`.
        rows: what that model scores on every test row; None of a deployment.
    """

    directory: Path
    record: RunRecord
    measure: Measure
    assessment: Assessment | None
    rows: RowScores | None


def assess_run(
    directory: Path, measure: str | None = None, level: float = 0.95, auc_interval: AucInterval = "delong"
) -> AssessedRun:
    """Read a finished run and assess it.

    Args:
        directory: its folder.
        measure: one of its measures; None = its score.
        level: of intervals and sets.
        auc_interval: see :func:`drfl.assessment.clients.assess_clients`.

    Raises:
        InputError: the folder is no run's, is damaged, or has no such measure.
    """
    record = load_run(directory)
    rows = record.row_scores()
    shared = rows is not None and rows.shared
    own = measure_of(record, measure)
    found = assessment_of(record, own, level, independent=not shared, auc_interval=auc_interval)
    return AssessedRun(directory, record, own, found, rows)


def assess_folder(
    directory: Path, measure: str | None = None, level: float = 0.95, auc_interval: AucInterval = "delong"
) -> Assessment:
    """The assessment of a run; warns if it did not reach its end.

    Args:
        directory: its folder.
        measure: one of its measures; None = its score.
        level: of intervals and sets.
        auc_interval: see :func:`drfl.assessment.clients.assess_clients`.

    Raises:
        InputError: see :func:`assess_run`; or the run has no assessment, for the reason of :func:`nothing_said`.
    """
    run = assess_run(directory, measure, level, auc_interval)
    warn_of_interruption(directory)
    if run.assessment is None:
        why = nothing_said(run)
        raise InputError(why, code=why.code, field=why.field)
    return run.assessment


def warn_of_interruption(directory: Path) -> None:
    """Warn, with :class:`drfl.core.errors.RunWarning`, if a run did not reach its end."""
    notice = interruption(directory)
    if notice is not None:
        warnings.warn(RunWarning(notice), stacklevel=4)


def nothing_said(run: AssessedRun) -> Notice:
    """Why a run has no assessment, and the remedy."""
    return why_nothing(run.record, run.measure).within(run.record.label)


def measure_of(record: RunRecord, name: str | None) -> Measure:
    """One of a run's measures by its name; None = its score.

    Raises:
        InputError: there is none of that name.
    """
    known = {measure.name: measure for measure in record.measures}
    if name is not None and name not in known:
        raise unknown("measure", name, known)
    return record.score if name is None else known[name]
