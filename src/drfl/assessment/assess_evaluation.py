"""Assess an evaluation in memory, without any file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from drfl.assessment.clients import (
    Assessment,
    AucInterval,
    ClientScores,
    assess_clients,
    interval,
    no_patient_intervals,
    scores_of,
)
from drfl.assessment.scores import Floats, select
from drfl.assessment.worst import worst_score
from drfl.core.errors import InputError, unknown
from drfl.task.measure import Measure, Rows

if TYPE_CHECKING:
    from drfl.federation.federation import Evaluation


def assess_evaluation(
    evaluation: Evaluation,
    measures: Sequence[Measure],
    names: Sequence[str] | None = None,
    *,
    measure: str | None = None,
    level: float = 0.95,
    independent: bool = True,
    auc_interval: AucInterval = "delong",
    patients: Sequence[int] | None = None,
) -> Assessment:
    """Assess a model from its test results.

    Args:
        evaluation: Test results of N clients.
        measures: The measures of the evaluation, the score first.
        names: (N,) Names of the clients; None = client-0, client-1 and so on.
        measure: Name of the measure to assess; None = the score.
        level: Confidence level of intervals and sets, in (0, 1).
        independent: Whether no two clients share a test row.
        auc_interval: See :func:`drfl.assessment.clients.assess_clients`.
        patients: (N,) Patients among each client's test rows; None if rows are independent.

    Raises:
        InputError: If the measure is unknown or has no value for a single row, or the federation returns no sums over
            rows.
    """
    known = {known_measure.name: place for place, known_measure in enumerate(measures)}
    # Search a list, because an object of another type may not be hashable.
    if measure is not None and measure not in list(known):
        raise unknown("measure", measure, known)
    place = 0 if measure is None else known[measure]
    if evaluation.sums is None:
        raise InputError(
            "this federation's tests return no sums over rows: evaluate() must fill Evaluation.sums",
            code="missing-results",
            field="sums",
        )
    values = evaluation.score if place == 0 else evaluation.others[place - 1]
    if measures[place].rows is Rows.RANKS and bool((values.isfinite() & evaluation.sums[:, place, 0].isnan()).any()):
        raise no_patient_intervals(measures[place])
    client_names = names or [f"client-{i}" for i in range(len(evaluation.samples))]
    sums, samples = evaluation.sums[:, place].numpy(), evaluation.samples.numpy()
    return assess_clients(
        measures[place],
        client_names,
        sums,
        samples,
        level=level,
        independent=independent,
        auc_interval=auc_interval,
        patients=None if patients is None else np.array(patients),
    )


def worst_interval(evaluation: Evaluation, score: Measure, alpha: float = 0.05) -> tuple[float, float] | None:
    """Compute the confidence interval of the worst client's true score.

    Args:
        evaluation: Test results of N clients.
        score: The first measure of the evaluation.
        alpha: Probability that the interval misses the true score.

    Returns:
        Both ends, or None if the evaluation has no sums over rows or no client has a value.
    """
    every = _scores(evaluation, score)
    return None if every is None else worst_of(every, score, alpha)


def worst_of(every: ClientScores, score: Measure, alpha: float = 0.05) -> tuple[float, float] | None:
    """Compute the confidence interval of the worst client's true score from the clients' scores.

    Args:
        every: The clients' scores, see :func:`drfl.assessment.clients.scores_of`.
        score: The measure of these scores.
        alpha: Probability that the interval misses the true score.

    Returns:
        Both ends, or None if no client has a value.
    """
    known = np.isfinite(every.values)
    if not known.any():
        return None
    worst = worst_score(select(every, known), alpha)
    low, high = interval(np.array([worst.low]), np.array([worst.high]), score)
    return float(low[0]), float(high[0])


def client_intervals(evaluation: Evaluation, score: Measure, alpha: float = 0.05) -> tuple[Floats, Floats] | None:
    """Compute simultaneous confidence intervals of the clients' true scores.

    Args:
        evaluation: Test results of N clients.
        score: The first measure of the evaluation.
        alpha: Probability that any of the intervals misses.

    Returns:
        Lower and upper ends (N,), NaN if the score is undefined on a client's rows; None if the evaluation has no sums
        over rows.
    """
    every = _scores(evaluation, score)
    if every is None:
        return None
    known = np.isfinite(every.values)
    # Bonferroni correction: each client has two ends.
    each = alpha / (2 * max(1, np.count_nonzero(known)))
    low, high = interval(every.lower(each), every.upper(each), score)
    return np.where(known, low, np.nan), np.where(known, high, np.nan)


def _scores(evaluation: Evaluation, score: Measure) -> ClientScores | None:
    if evaluation.sums is None or score.rows is Rows.WHOLE:
        return None
    return scores_of(score, evaluation.sums[:, 0].numpy())
