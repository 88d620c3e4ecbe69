"""Assess a finished run from its files."""

from __future__ import annotations

import numpy as np

from drfl.assessment.assess_evaluation import worst_of
from drfl.assessment.clients import Assessment, AucInterval, assess_clients, no_patient_intervals, scores_of
from drfl.assessment.gains import with_row_values
from drfl.assessment.possible_sums import possible_sums
from drfl.assessment.scores import Floats
from drfl.core.errors import InputError, Notice
from drfl.core.run_end import ON_TEST
from drfl.report.formatting import clean
from drfl.report.read_run import RunRecord
from drfl.task.measure import SUM_COLUMNS, Measure, Rows

MOST_ROWS = 10**9
"""Upper limit of test rows: larger than any test, and within NumPy's limit for tables with given margins."""


def assessment_of(
    run: RunRecord,
    measure: Measure | None = None,
    level: float = 0.95,
    *,
    independent: bool = True,
    auc_interval: AucInterval = "delong",
    equality: bool = True,
) -> Assessment | None:
    """Assess a run by one of its measures, or by its score.

    The other arguments are those of :func:`drfl.assessment.clients.assess_clients`.

    Returns:
        The assessment; None if there is none, see :func:`missing_reason`.

    Raises:
        InputError: If clients.csv holds impossible numbers.
    """
    assessed_measure = run.score if measure is None else measure
    sums = _sums(run, assessed_measure)
    if sums is None or not np.isfinite(scores_of(assessed_measure, sums).values).any():
        return None
    names, samples = run.clients["client"].tolist(), run.clients["samples"].to_numpy(np.int64)
    patients = run.clients["patients"].to_numpy(np.int64) if "patients" in run.clients else None
    return assess_clients(
        assessed_measure,
        names,
        sums,
        samples,
        level=level,
        independent=independent,
        auc_interval=auc_interval,
        equality=equality,
        patients=patients,
    )


def worst_interval(run: RunRecord, measure: Measure | None = None, alpha: float = 0.05) -> tuple[float, float] | None:
    """Compute only the interval of the worst client's true value, which is fast; None as in :func:`assessment_of`.

    Raises:
        InputError: If clients.csv holds impossible numbers.
    """
    assessed_measure = run.score if measure is None else measure
    sums = _sums(run, assessed_measure)
    return None if sums is None else worst_of(scores_of(assessed_measure, sums), assessed_measure, alpha)


def missing_reason(run: RunRecord, measure: Measure | None = None) -> Notice:
    """Explain why one of a run's measures, or its score, has no intervals, with the remedy."""
    assessed_measure = run.score if measure is None else measure
    words = assessed_measure.title
    if run.stopped_on_test:
        return Notice(
            f"{words} has no interval, because {ON_TEST}. Run again for a fixed number of rounds, or, in "
            "a simulation, with `until = METRIC=VALUE`, which stops by validation rows.",
            "no-results",
            assessed_measure.name,
        )
    if _sums(run, assessed_measure) is not None:
        return Notice(f"{words} is undefined on every client's test rows.", "undefined-metric", assessed_measure.name)
    if assessed_measure.rows is Rows.WHOLE:
        others = [other.name for other in run.measures if other.rows is not Rows.WHOLE]
        remedy = f"use drfl assess --measure {others[0]}" if others else with_row_values(assessed_measure)
        return Notice(
            f"{words} has no interval, because it is computed from all of a client's rows together. "
            f"For an interval, {remedy}.",
            "unsupported-metric",
            assessed_measure.name,
        )
    if _has_repeated_patients(run):
        return Notice(str(no_patient_intervals(assessed_measure)), "unsupported-metric", assessed_measure.name)
    return Notice(
        f"{words} has no interval, because clients.csv lacks the sums over test rows. Run it again.",
        "no-results",
        assessed_measure.name,
    )


def _has_repeated_patients(run: RunRecord) -> bool:
    return "largest_patient" in run.clients and bool((run.clients["largest_patient"] > 1).any())


def _sums(run: RunRecord, measure: Measure) -> Floats | None:
    """Read the sums (N, 5) of the clients' rows, see :class:`drfl.federation.federation.Evaluation`.

    Returns:
        The sums; None if nothing can be concluded from them: the files lack them, or test rows stopped the run.
    """
    has_patients = _has_repeated_patients(run)
    if measure.rows is Rows.WHOLE or run.stopped_on_test or (has_patients and measure.rows is Rows.RANKS):
        return None
    n = run.clients["samples"].to_numpy(float)
    values = run.clients[run.column_of(measure)].to_numpy(float)
    places = {f"{measure.name}_{end}": place for end, place in SUM_COLUMNS[measure.rows].items()}
    sums = np.stack([n, *[np.zeros_like(n)] * 4], 1)
    if not set(places) <= set(run.clients.columns):
        return None
    for column, place in places.items():
        sums[:, place] = run.clients[column].to_numpy(float)
    if measure.rows is Rows.RANKS:
        sums[:, 1] = n - sums[:, 0]
    elif measure.rows in (Rows.BINARY, Rows.RATE):
        # For values of 0 and 1, the sums of squares equal the sums.
        sums[:, 2] = sums[:, 1]
    if has_patients:
        sums[:, 3] = run.clients["largest_patient"].to_numpy(float)
    if not ((n >= 0) & (n == np.round(n))).all() or n.sum() >= MOST_ROWS:
        raise InputError(
            f"{run.label}/clients.csv is damaged: its samples are not valid numbers of test rows. Run it again.",
            code="damaged-run",
            field=f"{run.label}/clients.csv",
        )
    for client, value, samples, stored in zip(run.clients["client"], values, n, sums.tolist(), strict=True):
        # The sums are NaN if the model's outputs are not finite.
        if samples and np.isfinite(stored).all() and not possible_sums(measure, value, int(samples), stored):
            raise InputError(
                f"{run.label}/clients.csv is damaged: the {measure.name} of '{clean(client, 40)}' contradicts its "
                "sums. Run it again.",
                code="damaged-run",
                field=f"{run.label}/clients.csv",
            )
    return sums
