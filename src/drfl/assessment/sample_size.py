"""The number of test rows that a client needs for a difference to be significant."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import special

from drfl.assessment.scores import BinaryScores, Floats
from drfl.core.errors import InputError

MOST = 10_000_000
"""Largest number of test rows that the search considers."""

POWER = 0.8

WITHIN = 64
"""Power oscillates with n because counts are whole numbers, so it must be reached at this many sizes in a row."""


def rows_for_worst(
    accuracy: float, difference: float, clients: int, *, alpha: float = 0.05, power: float = POWER
) -> int:
    """Compute the test rows per client for which a client worse by ``difference`` is significantly below ``accuracy``.

    It is significantly below if the upper end of its two-sided interval, simultaneous over all clients at level α
    (Clopper and Pearson; Bonferroni), is below ``accuracy``.

    Args:
        accuracy: Accuracy of the other clients, in (0, 1).
        difference: Shortfall of the one client, in (0, accuracy).
        clients: Number of clients N.
        alpha: Probability that any interval misses.
        power: Probability with which the difference is to be significant.

    Raises:
        InputError: If a number is out of range.
    """
    _in_range("accuracy", accuracy, 1.0)
    _in_range("difference", difference, accuracy)

    def power_at(n: Floats) -> Floats:
        # The largest count whose upper bound is below the others' accuracy.
        count = special.bdtrik(alpha / (2 * clients), n, accuracy)
        count = np.floor(np.nan_to_num(count, nan=-1.0))
        count -= BinaryScores(n, np.maximum(count, 0.0)).upper(alpha / (2 * clients)) >= accuracy
        # The probability of at most this count; scipy.stats has a function for it, but takes a second to load.
        return np.where(count >= 0, special.betaincc(count + 1, n - count, accuracy - difference), 0.0)

    return _smallest(power_at, power)


def rows_for_models(changed: float, difference: float, *, alpha: float = 0.05, power: float = POWER) -> int:
    """Compute the test rows of a client for which McNemar's exact test finds one model significantly better there.

    Args:
        changed: Share of rows that one model gets right and the other wrong, in (0, 1].
        difference: Difference of the two accuracies, in (0, changed].
        alpha: Level of the two-sided test.
        power: Probability with which the difference is to be significant if exactly the expected number of rows
            changes.

    Raises:
        InputError: If a number is out of range.
    """
    _in_range("changed", changed, 1.0, closed=True)
    _in_range("difference", difference, changed, closed=True)
    from scipy.stats import binom  # slow to load, and a run does not need it

    for_better = (1 + difference / changed) / 2

    def power_at(n: Floats) -> Floats:
        m = np.floor(n * changed)
        fewest = binom.isf(alpha / 2, m, 0.5) + 1  # changed rows for the better
        return binom.sf(fewest - 1, m, for_better)

    return _smallest(power_at, power)


def _smallest(power_at: Callable[[Floats], Floats], power: float) -> int:
    """Find the smallest n from which on the power is reached at ``WITHIN`` consecutive sizes."""
    high = 2
    while not (power_at(np.arange(high, high + WITHIN, dtype=np.float64)) >= power).all():
        high *= 2
        if high > MOST:
            raise InputError(
                f"more than {MOST:,} test rows are needed. Use a larger difference.",
                code="out-of-range",
                field="difference",
            )
    # Bisect below the first power of two that suffices.
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        reached = (power_at(np.arange(middle, middle + WITHIN, dtype=np.float64)) >= power).all()
        low, high = (low, middle) if reached else (middle, high)
    return high


def _in_range(name: str, value: float, most: float, *, closed: bool = False) -> None:
    if not (0 < value < most or (closed and value == most)):
        raise InputError(f"{name} must be between 0 and {most:g}, got {value!r}", code="out-of-range", field=name)
