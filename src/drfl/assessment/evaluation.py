"""Assess what a federation's test said, without any file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from drfl.assessment.clients import Assessment, assess_clients, scores_of, turned
from drfl.assessment.scores import select
from drfl.assessment.worst import worst_score
from drfl.errors import InputError, unknown
from drfl.measure import Measure, Rows

if TYPE_CHECKING:
    from drfl.federation import Evaluation


def assess_evaluation(
    evaluation: Evaluation,
    measures: Sequence[Measure],
    names: Sequence[str] | None = None,
    *,
    measure: str | None = None,
    level: float = 0.95,
    independent: bool = True,
) -> Assessment:
    """Assess a model by its test.

    Args:
        evaluation: of N clients.
        measures: what was measured, the score first.
        names: (N,) of the clients; None = client-0 and so on.
        measure: one of the measures; None = the score.
        level: of intervals and sets, in (0, 1).
        independent: whether no two clients share a test row.

    Raises:
        InputError: there is no such measure, the federation gives no sums over rows, or the measure says nothing of
            single rows.
    """
    known = {own.name: place for place, own in enumerate(measures)}
    if measure is not None and measure not in known:
        raise unknown("measure", measure, known)
    place = 0 if measure is None else known[measure]
    if evaluation.sums is None:
        raise InputError("this federation's tests give no sums over rows: its evaluate() has to fill Evaluation.sums")
    told = names or [f"client-{i}" for i in range(len(evaluation.samples))]
    sums, samples = evaluation.sums[:, place].numpy(), evaluation.samples.numpy()
    return assess_clients(measures[place], told, sums, samples, level=level, independent=independent)


def worst_interval(evaluation: Evaluation, score: Measure, alpha: float = 0.05) -> tuple[float, float] | None:
    """The interval of the worst client's true score; None where the test says too little.

    Args:
        evaluation: of N clients.
        score: the first of what it measures.
        alpha: the probability that the interval misses.
    """
    if evaluation.sums is None or score.rows is Rows.WHOLE:
        return None
    every = scores_of(score, evaluation.sums[:, 0].numpy())
    known = np.isfinite(every.values)
    if not known.any():
        return None
    found = worst_score(select(every, known), alpha)
    low, high = turned(np.array([found.low, found.high]), score)
    return (float(low), float(high)) if score.more_is_better else (float(high), float(low))
