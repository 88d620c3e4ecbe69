"""Which results a test can have: a site's answer that contradicts itself is not believed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drfl.engine.row_scores import LARGEST
from drfl.flower.messages import Answer, Tested
from drfl.measure import Measure, Rows

CLOSE = 1e-6
"""How far apart numbers may be that say the same and were rounded in another order; relative where they are large."""


def believed(answer: Answer | None, models: int, measures: Sequence[Measure]) -> list[Tested]:
    """The tests of so many models in an answer; none where one is missing or cannot have come out so."""
    if answer is None:
        return []
    found = [test for test in (answer.test, answer.also) if test is not None and possible(test, measures)]
    if len(found) != models:
        return []
    alone = len(found) == 1 or possible_products(found[0], found[1], answer.products, measures)
    return found if alone else []


def possible(test: Tested, measures: Sequence[Measure]) -> bool:
    """Whether a test can have this result; a metric that is no fraction may be NaN, not defined on the site's rows."""
    values = (test.score, *test.others)
    if not len(values) == len(test.sums) == len(measures) or not math.isfinite(test.loss) or test.samples <= 0:
        return False
    return all(
        (0 <= value <= 1 if measure.percent else not math.isinf(value)) and _sums(measure, value, test.samples, sums)
        for value, measure, sums in zip(values, measures, test.sums, strict=True)
    )


def possible_products(
    one: Tested, other: Tested, products: tuple[float, ...] | None, measures: Sequence[Measure]
) -> bool:
    """Whether the values of two models on the same rows, with these sums, can have these products."""
    if products is None or len(products) != len(measures) or one.samples != other.samples:
        return False
    whole = zip(measures, one.sums, other.sums, products, strict=True)
    return all(_product(measure, a, b, both) for measure, a, b, both in whole)


def _sums(measure: Measure, value: float, samples: int, sums: Sequence[float]) -> bool:
    """Whether a metric with this value can have these sums over so many rows."""
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
    if not (abs(second) <= LARGEST and 0 <= third <= LARGEST and _close(value, second / samples)):
        return False
    if measure.rows is Rows.BINARY:
        return 0 <= second <= samples and second.is_integer() and third == second
    # Of n numbers with this sum the squares are least where all are alike; in [0, 1] no square is above its number.
    most = second * (1 + CLOSE) + CLOSE if measure.rows is Rows.UNIT else LARGEST
    in_range = measure.rows is Rows.REAL or 0 <= second <= samples * (1 + CLOSE)
    return in_range and third <= most and third * (1 + CLOSE) + CLOSE >= second / samples * second


def _product(measure: Measure, one: Sequence[float], other: Sequence[float], both: float) -> bool:
    """Whether values with these sums can have this product."""
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
