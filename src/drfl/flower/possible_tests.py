"""Which results a test can have: a site's answer that contradicts itself is not believed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drfl.assessment.possible_sums import possible_products, possible_sums
from drfl.flower.messages import Answer, SiteTest
from drfl.task.measure import Measure, Rows


def believed(answer: Answer | None, models: int, measures: Sequence[Measure]) -> list[SiteTest]:
    """The tests of so many models in an answer; none where one is missing or cannot have come out so."""
    if answer is None:
        return []
    found = [test for test in (answer.test, answer.also) if test is not None and possible(test, measures)]
    if len(found) != models:
        return []
    if len(found) == 1:
        return found
    # The products of two models' values on the same rows must be possible with their sums.
    (one, other), products = found, answer.products
    if products is None or len(products) != len(measures) or one.samples != other.samples:
        return []
    whole = zip(measures, one.sums, other.sums, products, strict=True)
    return found if all(possible_products(measure, a, b, both) for measure, a, b, both in whole) else []


def possible(test: SiteTest, measures: Sequence[Measure]) -> bool:
    """Whether a test can have this result; a rate, and a metric that is no fraction, may be NaN: undefined there."""
    values = (test.score, *test.others)
    if not len(values) == len(test.sums) == len(measures) or not math.isfinite(test.loss) or test.samples <= 0:
        return False
    return all(
        (0 <= value <= 1 if measure.percent and measure.rows is not Rows.RATE else not math.isinf(value))
        and possible_sums(measure, value, test.samples, sums)
        for value, measure, sums in zip(values, measures, test.sums, strict=True)
    )
