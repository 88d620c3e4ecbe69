"""How many test rows a client needs for a difference to be told."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import special, stats

from drfl.assessment.scores import BinaryScores, Floats
from drfl.core.errors import InputError

MOST = 10_000_000
"""Test rows beyond which the answer is that it cannot be told."""

POWER = 0.8

WITHIN = 64
"""Power goes up and down with n, as counts are whole: it has to hold for so many sizes in a row."""


def rows_for_worst(
    accuracy: float, difference: float, clients: int, *, alpha: float = 0.05, power: float = POWER
) -> int:
    """Test rows per client for which one that is worse by ``difference`` is shown to be below ``accuracy``.

    Shown is what the upper end of its simultaneous interval says, two-sided, at level α over all clients (Clopper,
    Pearson; Bonferroni).

    Args:
        accuracy: of the other clients, in (0, 1).
        difference: by which one client is worse, in (0, accuracy).
        clients: N.
        alpha: probability that any interval misses.
        power: probability with which the difference is to be shown.

    Raises:
        InputError: a number is out of range.
    """
    _in_range("accuracy", accuracy, 1.0)
    _in_range("difference", difference, accuracy)

    def shown(n: Floats) -> Floats:
        # the largest count whose upper bound is below the others' accuracy
        count = special.bdtrik(alpha / (2 * clients), n, accuracy)
        count = np.floor(np.nan_to_num(count, nan=-1.0))
        count -= BinaryScores(n, np.maximum(count, 0.0)).upper(alpha / (2 * clients)) >= accuracy
        return np.where(count >= 0, stats.binom.cdf(count, n, accuracy - difference), 0.0)

    return _smallest(shown, power)


def rows_for_models(changed: float, difference: float, *, alpha: float = 0.05, power: float = POWER) -> int:
    """Test rows of a client for which McNemar's exact test shows that one model is better there than another.

    Args:
        changed: share of rows that one model has right and the other wrong, in (0, 1].
        difference: of their accuracies, in (0, changed].
        alpha: level of the two-sided test.
        power: probability with which the difference is to be shown, where as many rows change as are expected to.

    Raises:
        InputError: a number is out of range.
    """
    _in_range("changed", changed, 1.0, closed=True)
    _in_range("difference", difference, changed, closed=True)
    for_better = (1 + difference / changed) / 2

    def shown(n: Floats) -> Floats:
        m = np.floor(n * changed)
        fewest = stats.binom.isf(alpha / 2, m, 0.5) + 1  # of the changed rows for the better
        return stats.binom.sf(fewest - 1, m, for_better)

    return _smallest(shown, power)


def _smallest(shown: Callable[[Floats], Floats], power: float) -> int:
    """The smallest n from which on, for a while, the power is reached."""
    high = 2
    while not (shown(np.arange(high, high + WITHIN, dtype=np.float64)) >= power).all():
        high *= 2
        if high > MOST:
            raise InputError(
                f"more than {MOST:,} test rows are needed: ask for a larger difference",
                code="out-of-range",
                field="difference",
            )
    # Bisect below the first power of two that suffices.
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        reached = (shown(np.arange(middle, middle + WITHIN, dtype=np.float64)) >= power).all()
        low, high = (low, middle) if reached else (middle, high)
    return high


def _in_range(name: str, value: float, most: float, *, closed: bool = False) -> None:
    if not (0 < value < most or (closed and value == most)):
        raise InputError(f"{name} {value} must be above 0 and below {most:g}", code="out-of-range", field=name)
