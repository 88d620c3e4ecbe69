"""Assess what a federation's test said, without any file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from drfl.assessment.clients import Assessment, AucInterval, ClientScores, assess_clients, interval, scores_of
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
) -> Assessment:
    """Assess a model by its test.

    Args:
        evaluation: of N clients.
        measures: what was measured, the score first.
        names: (N,) of the clients; None = client-0 and so on.
        measure: one of the measures; None = the score.
        level: of intervals and sets, in (0, 1).
        independent: whether no two clients share a test row.
        auc_interval: see :func:`drfl.assessment.clients.assess_clients`.

    Raises:
        InputError: there is no such measure, the federation gives no sums over rows, or the measure says nothing of
            single rows.
    """
    known = {own.name: place for place, own in enumerate(measures)}
    if measure is not None and measure not in known:
        raise unknown("measure", measure, known)
    place = 0 if measure is None else known[measure]
    if evaluation.sums is None:
        raise InputError(
            "this federation's tests give no sums over rows: its evaluate() has to fill Evaluation.sums",
            code="missing-results",
            field="sums",
        )
    told = names or [f"client-{i}" for i in range(len(evaluation.samples))]
    sums, samples = evaluation.sums[:, place].numpy(), evaluation.samples.numpy()
    return assess_clients(
        measures[place], told, sums, samples, level=level, independent=independent, auc_interval=auc_interval
    )


def worst_interval(evaluation: Evaluation, score: Measure, alpha: float = 0.05) -> tuple[float, float] | None:
    """The interval of the worst client's true score; None where the test says too little.

    Args:
        evaluation: of N clients.
        score: the first of what it measures.
        alpha: the probability that the interval misses.
    """
    every = _scores(evaluation, score)
    return None if every is None else worst_of(every, score, alpha)


def worst_of(every: ClientScores, score: Measure, alpha: float = 0.05) -> tuple[float, float] | None:
    """The interval of the worst client's true score; None where no client has a value.

    Args:
        every: the clients' scores, see :func:`drfl.assessment.clients.scores_of`.
        score: what they measure.
        alpha: the probability that the interval misses.
    """
    known = np.isfinite(every.values)
    if not known.any():
        return None
    found = worst_score(select(every, known), alpha)
    low, high = interval(np.array([found.low]), np.array([found.high]), score)
    return float(low[0]), float(high[0])


def client_intervals(evaluation: Evaluation, score: Measure, alpha: float = 0.05) -> tuple[Floats, Floats] | None:
    """The intervals of the clients' true scores, simultaneous; None where the test says too little.

    Args:
        evaluation: of N clients.
        score: the first of what it measures.
        alpha: the probability that any of the intervals misses.

    Returns:
        lower and upper ends (N,), NaN where the score is not defined on a client's rows.
    """
    every = _scores(evaluation, score)
    if every is None:
        return None
    known = np.isfinite(every.values)
    # Bonferroni: two ends for each client.
    each = alpha / (2 * max(1, np.count_nonzero(known)))
    low, high = interval(every.lower(each), every.upper(each), score)
    return np.where(known, low, np.nan), np.where(known, high, np.nan)


def _scores(evaluation: Evaluation, score: Measure) -> ClientScores | None:
    if evaluation.sums is None or score.rows is Rows.WHOLE:
        return None
    return scores_of(score, evaluation.sums[:, 0].numpy())
