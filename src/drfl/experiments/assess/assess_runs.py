"""Assess finished runs from their folders, one alone or one against another."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from drfl.assessment.clients import AucInterval
from drfl.assessment.gains import GainAssessment, assess_gain, no_row_values, sums_of_pair
from drfl.core.errors import InputError, RunWarning, unknown
from drfl.engine.simulation import Simulation
from drfl.experiments.assess.predictions import tested_predictions
from drfl.experiments.run.manifest import WITH_CELLS, interruption, is_finished, read_manifest
from drfl.federation.client_table import ClientTable
from drfl.federation.local_method import OwnModels
from drfl.report.read_run import REMEDY, load_run
from drfl.report.run_gains import AssessedRun, assess_record, gain_over
from drfl.task.measure import Measure

if TYPE_CHECKING:
    import pandas as pd


def assess_run(
    directory: Path, measure: str | None = None, level: float = 0.95, auc_interval: AucInterval = "delong"
) -> AssessedRun:
    """Read a finished run and assess it.

    The arguments are those of :func:`drfl.assess`.
    """
    manifest = read_manifest(directory, REMEDY) if os.path.isdir(directory) else None
    if manifest is not None and manifest.kind in WITH_CELLS:
        runs = [cell for cell in manifest.cells if is_finished(directory / cell)]
        one = f"such as {directory / runs[0]}, " if runs else ""
        raise InputError(
            f"{directory} is a {manifest.kind} with several runs: pass the folder of one, {one}or use "
            f"`drfl assess {directory}`",
            code="not-a-run",
            field=str(directory),
        )
    record = load_run(directory)
    return assess_record(record, _measure_named(record.measures, measure), level, auc_interval=auc_interval)


def warn_of_interruption(directory: Path, stacklevel: int) -> None:
    """Warn with :class:`drfl.core.errors.RunWarning` if a run did not reach its end."""
    notice = interruption(directory)
    if notice is not None:
        warnings.warn(RunWarning(notice), stacklevel=stacklevel)


def gain_of_folders(
    first: Path, second: Path, measure: str | None = None, level: float = 0.95, auc_interval: AucInterval = "delong"
) -> GainAssessment:
    """Return the gain of one run's returned model over another's.

    The arguments are those of :func:`drfl.assess_gain`.
    """
    runs = [assess_run(directory, measure, level, auc_interval) for directory in (first, second)]
    for directory in (first, second):
        # Level 4 is the user's line that calls drfl.assess_gain.
        warn_of_interruption(directory, stacklevel=4)
    return gain_over(*runs)


def gain_of_models(
    fed: Simulation,
    first: Tensor | ClientTable | OwnModels | pd.DataFrame,
    second: Tensor | ClientTable | OwnModels | pd.DataFrame,
    *,
    measure: str | None = None,
    level: float = 0.95,
    auc_interval: AucInterval = "delong",
) -> GainAssessment:
    """Return the gain of one model over another on the test rows of a simulation.

    The arguments are those of :func:`drfl.assess_gain`.
    """
    chosen = _measure_named(fed.measures, measure)
    if not chosen.rows.paired:
        raise no_row_values(chosen, fed.measures)
    rows = tuple(
        fed.row_scores(model)
        if isinstance(model, Tensor | ClientTable | OwnModels)
        else tested_predictions(model, fed)[1]
        for model in (first, second)
    )
    sums = sums_of_pair(chosen, rows, ("the first model", "the second model"))
    independent = not fed.data.shares_test_rows
    return assess_gain(chosen, fed.data.names, *sums, level=level, independent=independent, auc_interval=auc_interval)


def _measure_named(measures: Sequence[Measure], name: str | None) -> Measure:
    """Return the metric of this name; None = the first, the score."""
    known = {measure.name: measure for measure in measures}
    # Search a list, because an object of another type may not be hashable.
    if name is not None and name not in list(known):
        raise unknown("measure", name, known)
    return measures[0] if name is None else known[name]
