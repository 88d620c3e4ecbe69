"""Plausibility of the sums over a client's test rows: contradictory numbers are rejected."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drfl.task.measure import LARGEST_SUM, Measure, Rows

CLOSE = 1e-6
"""Tolerance between numbers that should be equal but were rounded in a different order; relative for large numbers."""


def possible_sums(measure: Measure, value: float, samples: int, sums: Sequence[float]) -> bool:
    """Check whether a metric with this value can have these sums over its test rows.

    Args:
        measure: The measure.
        value: Its value; NaN if undefined.
        samples: Number of test rows.
        sums: Five sums, see :class:`drfl.federation.federation.Evaluation`.
    """
    if len(sums) != 5:
        return False
    if all(map(math.isnan, sums)) and (math.isnan(value) or measure.rows is Rows.RANKS):
        return True  # the model's outputs are not finite at this client, or rows of patients are ranked
    if measure.rows is Rows.WHOLE:
        return sums[0] == samples and all(map(math.isnan, sums[1:]))
    if measure.rows is Rows.RANKS:
        first, second, pairs, *squares = sums
        # A tie counts as half a pair, so 2·pairs and 4·square are whole numbers.
        counted = first >= 0 and second >= 0 and first.is_integer() and first + second == samples
        if not counted or not 0 <= pairs <= first * second or not (2 * pairs).is_integer():
            return False
        # A row is in at most as many pairs as the other class has rows. The squares are smallest if all rows are equal.
        for rows, other, square in ((first, second, squares[0]), (second, first, squares[1])):
            possible = pairs * pairs <= rows * square * (1 + CLOSE) and square <= other * pairs * (1 + CLOSE)
            if not possible or not (4 * square).is_integer():
                return False
        return _close(value, pairs / (first * second)) if first * second else math.isnan(value)
    # The measure is a mean over rows, or over the rows that count.
    first, second, third, largest, last = sums
    # The fourth is the number of rows of the largest patient, or 0 if rows are independent.
    if not (0 <= largest <= samples and float(largest).is_integer() and last == 0):
        return False
    if measure.rows is Rows.RATE:
        counted = 0 <= second <= first <= samples and first.is_integer() and second.is_integer() and third == second
        return counted and (_close(value, second / first) if first else math.isnan(value))
    if first != samples:
        return False
    if not (abs(second) <= LARGEST_SUM and 0 <= third <= LARGEST_SUM and _close(value, second / samples)):
        return False
    if measure.rows is Rows.BINARY:
        return 0 <= second <= samples and second.is_integer() and third == second
    # For n numbers with a given sum, the squares are smallest if all are equal. In [0, 1] no square exceeds its number.
    most = second * (1 + CLOSE) + CLOSE if measure.rows is Rows.UNIT else LARGEST_SUM
    in_range = measure.rows is Rows.REAL or 0 <= second <= samples * (1 + CLOSE)
    return in_range and third <= most and third * (1 + CLOSE) + CLOSE >= second / samples * second


def possible_products(
    measure: Measure, one: Sequence[float], other: Sequence[float], products: Sequence[float]
) -> bool:
    """Check whether two models' values per row, with these sums, can have these sums of products.

    Args:
        measure: The measure.
        one: Five sums of the first model's values.
        other: Five sums of the second model's values.
        products: Two sums, see :func:`drfl.data.row_scores.products`; NaN if a value is undefined.
    """
    if len(products) != 2:
        return False
    both, rest = products
    known = not (math.isnan(one[2]) or math.isnan(other[2]))
    if not known or not measure.rows.paired:
        return math.isnan(both) and math.isnan(rest)
    if measure.rows is Rows.RANKS:
        places = ((both, 3, one[1]), (rest, 4, one[0]))
        return list(one[:2]) == list(other[:2]) and all(
            0 <= product <= most * min(one[2], other[2]) * (1 + CLOSE)
            and product <= math.sqrt(one[index]) * math.sqrt(other[index]) * (1 + CLOSE)
            for product, index, most in places
        )
    if rest != 0:
        return False
    if measure.rows is Rows.BINARY:
        return both.is_integer() and max(0, one[1] + other[1] - one[0]) <= both <= min(one[1], other[1])
    if measure.rows is Rows.UNIT and not 0 <= both <= min(one[1], other[1]) * (1 + CLOSE) + CLOSE:
        return False
    # Cauchy–Schwarz inequality. Take roots first, because the product of two squares may overflow.
    return abs(both) <= math.sqrt(one[2]) * math.sqrt(other[2]) * (1 + CLOSE) + CLOSE


def _close(value: float, other: float) -> bool:
    return abs(value - other) <= CLOSE * max(1.0, abs(other))
