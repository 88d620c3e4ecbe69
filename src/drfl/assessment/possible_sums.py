"""Which sums over a client's test rows can be: numbers that contradict each other are not believed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drfl.measure import LARGEST_SUM, Measure, Rows

CLOSE = 1e-6
"""How far apart numbers may be that say the same and were rounded in another order; relative where they are large."""


def possible_sums(measure: Measure, value: float, samples: int, sums: Sequence[float]) -> bool:
    """Whether a metric with this value can have these sums over so many rows.

    Args:
        measure: which.
        value: what it is; NaN where it is not defined.
        samples: test rows.
        sums: three, see :class:`drfl.federation.Evaluation`.
    """
    first, second, third = sums
    if math.isnan(value) and all(map(math.isnan, sums)):
        return True  # the model's outputs are not finite there
    if measure.rows is Rows.RANKS:
        counted = first >= 0 and second >= 0 and first.is_integer() and first + second == samples
        if not counted or not 0 <= third <= first * second or not (2 * third).is_integer():
            return False
        return _close(value, third / (first * second)) if first * second else math.isnan(value)
    if first != samples:
        return False
    if measure.rows is Rows.WHOLE:
        return math.isnan(second) and math.isnan(third)
    if not (abs(second) <= LARGEST_SUM and 0 <= third <= LARGEST_SUM and _close(value, second / samples)):
        return False
    if measure.rows is Rows.BINARY:
        return 0 <= second <= samples and second.is_integer() and third == second
    # Of n numbers with this sum the squares are least where all are alike; in [0, 1] no square is above its number.
    most = second * (1 + CLOSE) + CLOSE if measure.rows is Rows.UNIT else LARGEST_SUM
    in_range = measure.rows is Rows.REAL or 0 <= second <= samples * (1 + CLOSE)
    return in_range and third <= most and third * (1 + CLOSE) + CLOSE >= second / samples * second


def possible_products(measure: Measure, one: Sequence[float], other: Sequence[float], both: float) -> bool:
    """Whether the rows' values with two models, of these sums, can have this sum of products.

    Args:
        measure: which.
        one: three sums of the first model's values.
        other: of the second's.
        both: Σ x·y; NaN where a value is not defined.
    """
    if not measure.rows.mean or math.isnan(one[1]) or math.isnan(other[1]):
        return math.isnan(both)
    if measure.rows is Rows.BINARY:
        return both.is_integer() and max(0, one[1] + other[1] - one[0]) <= both <= min(one[1], other[1])
    if measure.rows is Rows.UNIT and not 0 <= both <= min(one[1], other[1]) * (1 + CLOSE) + CLOSE:
        return False
    # Cauchy and Schwarz; roots, as the product of two squares may be beyond the finite numbers
    return abs(both) <= math.sqrt(one[2]) * math.sqrt(other[2]) * (1 + CLOSE) + CLOSE


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= CLOSE * max(1.0, abs(other))
