"""Check whether a test result is possible: a site's answer that contradicts itself is not used."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drfl.assessment.possible_sums import CLOSE, possible_products, possible_sums
from drfl.flower.messages import Answer, AnswerLosses, Products, SiteTest
from drfl.task.measure import Measure, Rows


def valid_tests(answer: Answer | None, models: int, measures: Sequence[Measure]) -> list[SiteTest]:
    """Return the test results of ``models`` models in an answer; empty if a result is missing or impossible."""
    if answer is None or (answer.validation is not None and not is_possible(answer.validation, measures)):
        return []
    tests = [test for test in (answer.test, answer.also) if test is not None and is_possible(test, measures)]
    if len(tests) != models:
        return []
    if len(tests) == 1:
        return tests
    products = answer.products
    is_possible_pair = products is not None and are_possible_pairs(tests[0], tests[1], products, measures)
    return tests if is_possible_pair else []


def are_possible_pairs(first: SiteTest, second: SiteTest, products: Products, measures: Sequence[Measure]) -> bool:
    """Return whether the products of two models' values on the same rows are possible with their sums."""
    if len(products) != len(measures) or first.samples != second.samples:
        return False
    rows = zip(measures, first.sums, second.sums, products, strict=True)
    return all(possible_products(measure, a, b, both) for measure, a, b, both in rows)


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


def are_possible_losses(answer: AnswerLosses, models: int, rows: int) -> bool:
    """Return whether a site can have these sums of the losses of models.

    ``rows`` is the number of the site's validation rows.
    """
    if len(answer.losses) != models or answer.rows != rows:
        return False
    first, *others = answer.losses
    # A model may have losses that are not finite, and is then not chosen.
    finite = [each for each in answer.losses if math.isfinite(each.mean)]
    for each in (*finite, *answer.gains):
        known = all(map(math.isfinite, (each.mean, each.squares, each.cross))) and each.squares >= 0
        # The second inequality is that of Cauchy and Schwarz.
        if not known or not abs(each.cross) <= math.sqrt(each.squares * answer.sizes) * (1 + CLOSE) + CLOSE:
            return False
    for other, gain in zip(others, answer.gains, strict=True):
        if not all(map(math.isfinite, (first.mean, other.mean, first.squares, other.squares, gain.squares))):
            return False
        # The gains are the differences of the losses, so their lengths as vectors satisfy the triangle inequality.
        a, b, difference = (math.sqrt(each.squares) for each in (first, other, gain))
        room, slack = CLOSE * max(1.0, abs(first.mean), abs(other.mean)), CLOSE * max(1.0, a, b)
        is_mean = abs(first.mean - other.mean - gain.mean) <= room
        if not is_mean or not abs(a - b) - slack <= difference <= a + b + slack:
            return False
    return True
