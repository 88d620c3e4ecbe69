"""Check whether a test result is possible: a site's answer that contradicts itself is not used."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drfl.assessment.possible_sums import possible_products, possible_sums
from drfl.flower.messages import Answer, SiteTest
from drfl.task.measure import Measure, Rows


def valid_tests(answer: Answer | None, models: int, measures: Sequence[Measure]) -> list[SiteTest]:
    """Return the test results of ``models`` models in an answer; empty if one is missing or impossible."""
    if answer is None:
        return []
    tests = [test for test in (answer.test, answer.also) if test is not None and is_possible(test, measures)]
    if len(tests) != models:
        return []
    if len(tests) == 1:
        return tests
    # The products of two models' values on the same rows must be possible with their sums.
    (first, second), products = tests, answer.products
    if products is None or len(products) != len(measures) or first.samples != second.samples:
        return []
    rows = zip(measures, first.sums, second.sums, products, strict=True)
    return tests if all(possible_products(measure, a, b, both) for measure, a, b, both in rows) else []


def is_possible(test: SiteTest, measures: Sequence[Measure]) -> bool:
    """Return whether a test can have this result."""
    # Rates, and metrics that are not fractions, may be NaN, which means that they are undefined at this site.
    values = (test.score, *test.others)
    if not len(values) == len(test.sums) == len(measures) or not math.isfinite(test.loss) or test.samples <= 0:
        return False
    return all(
        (0 <= value <= 1 if measure.percent and measure.rows is not Rows.RATE else not math.isinf(value))
        and possible_sums(measure, value, test.samples, sums)
        for value, measure, sums in zip(values, measures, test.sums, strict=True)
    )
