"""Test paired differences over few seeds: t-test, sign flips, Holm's correction."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from tests.support.refusals import refused

from drfl.assessment import seeds
from drfl.assessment.seeds import SeedDifference, holm, holm_family, seed_difference, sign_flip_p, verdict
from drfl.assessment.sentences import signed_interval
from drfl.core.key import Key
from drfl.task.measure import NOTHING
from drfl.task.metrics import ACCURACY

NAN = math.nan


def drawn(n, mean=0.5):
    return Key(n).fold("test").generator().normal(mean, 1.0, n)


@pytest.mark.parametrize("n", [2, 3, 5, 10, 30])
def test_interval_and_p_value_match_scipy(n):
    values, zeros = drawn(n), np.zeros(n)
    found, known = seed_difference(values), scipy.stats.ttest_rel(values, zeros)
    interval = known.confidence_interval(0.95)
    assert (found.n, found.mean) == (n, pytest.approx(values.mean()))
    assert (found.low, found.high, found.p_t) == pytest.approx((interval.low, interval.high, known.pvalue))
    assert math.isnan(found.p_flips) == (n < 6)


@pytest.mark.parametrize("n", [2, 3, 6, 11])
@pytest.mark.parametrize("tied", [False, True])
def test_sign_flip_test_matches_scipy(n, tied):
    values = np.round(drawn(n), 1) if tied else drawn(n)
    known = scipy.stats.permutation_test(
        (values,), lambda x, axis: abs(x.mean(axis=axis)), permutation_type="samples", alternative="greater",
        n_resamples=np.inf, vectorized=True,
    )  # fmt: skip
    assert sign_flip_p(values) == pytest.approx(known.pvalue)


@given(st.lists(st.sampled_from([-0.3, -0.1, 0.0, 0.1, 0.2, 0.3]), min_size=1, max_size=7))
def test_ties_count_regardless_of_rounding(values):
    tenths = [round(10 * value) for value in values]
    sums = [
        sum(s * t for s, t in zip(signs, tenths, strict=True))
        for signs in itertools.product((-1, 1), repeat=len(values))
    ]
    assert sign_flip_p(values) == sum(abs(s) >= abs(sum(tenths)) for s in sums) / len(sums)


@pytest.mark.long
def test_sign_flips_of_many_pairs_are_reproducible(monkeypatch):
    values = drawn(20, 0.4)
    exact = sign_flip_p(values)
    monkeypatch.setattr(seeds, "EXACT_TO", 19)
    sampled = sign_flip_p(values)
    assert sampled == sign_flip_p(values) != exact
    assert sampled == pytest.approx(exact, abs=5 * math.sqrt(exact / seeds.FLIPS))
    assert sign_flip_p(np.ones(60)) == 1 / (1 + seeds.FLIPS)


def test_huge_and_tiny_differences_give_scaled_results():
    values = drawn(8)
    assert sign_flip_p(1e307 * values) == sign_flip_p(1e-300 * values) == sign_flip_p(values)


@pytest.mark.parametrize(("n", "p"), [(2, 0.5), (5, 0.0625), (10, 2 / 1024)])
def test_equal_differences_have_no_interval_and_a_positive_p_value(n, p):
    found = seed_difference([0.85 - 0.75, 0.80 - 0.70] * (n // 2) + [0.1] * (n % 2))
    assert found.p_t == p
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_zero_differences_have_p_value_1():
    assert seed_difference([0.0] * 6)._replace(low=0, high=0) == SeedDifference(6, 0.0, 0, 0, 1.0, 1.0)


def test_one_value_or_none_has_no_test():
    one, none = seed_difference([0.1]), seed_difference([])
    assert one[:2] == (1, 0.1)
    assert np.isnan(one[2:]).all()
    assert none.n == 0
    assert np.isnan(none[1:]).all()
    assert math.isnan(sign_flip_p([]))


@pytest.mark.parametrize("values", [[0.1, NAN], [0.1, math.inf], [[0.1, 0.2]]])
def test_invalid_differences_are_refused(values):
    with refused("not-finite", "differences"):
        seed_difference(values)


HOLM = {
    "by hand": ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
    "never falling, at most 1": ([0.9, 0.02, 0.021, 0.8], [1.0, 0.08, 0.08, 1.0]),
    "untested do not count": ([NAN, 0.02, NAN, 0.01], [NAN, 0.02, NAN, 0.02]),
    "ties": ([0.02, 0.02], [0.04, 0.04]),
    "none": ([], []),
}


@pytest.mark.parametrize(("given", "adjusted"), HOLM.values(), ids=HOLM)
def test_holm_correction(given, adjusted):
    np.testing.assert_allclose(holm(given), adjusted)


@pytest.mark.parametrize("p", [-0.1, 1.1])
def test_invalid_p_values_are_refused(p):
    with refused("out-of-range", "p", "0", "1"):
        holm([0.5, p])


def test_only_comparisons_with_five_pairs_are_corrected():
    few, enough, more = (seed_difference(drawn(n)) for n in (4, 5, 6))
    np.testing.assert_allclose(holm_family([few, enough, more]), [NAN, *holm([enough.p_t, more.p_t])])


VERDICTS = {
    "no pair": ((0, NAN, NAN, NAN), NAN),
    "one pair only": ((1, 0.1, NAN, NAN), NAN),
    "not decided": ((4, 0.1, 1e-9, NAN), NAN),
    "better": ((5, 0.1, 0.01, NAN), 0.05),
    "worse": ((6, -0.1, 0.01, 0.05), 0.05),
    "not significant": ((10, 0.1, 0.01, 0.002), 0.0501),
}


@pytest.mark.parametrize(("seen", "p_holm", "said"), [(*case, said) for said, case in VERDICTS.items()], ids=VERDICTS)
def test_verdicts_follow_from_p_values(seen, p_holm, said):
    n, mean, p_t, p_flips = seen
    assert verdict(SeedDifference(n, mean, NAN, NAN, p_t, p_flips), p_holm) == said


def test_verdict_uses_sign_flips_and_direction():
    difference = SeedDifference(6, 0.1, 0.05, 0.15, 0.001, 0.0625)
    assert verdict(difference, 0.001) == "not significant"
    assert verdict(difference._replace(p_flips=0.03), 0.001, less_is_better=True) == "worse"


def test_error_rates_at_five_and_six_seeds_are_near_the_level():
    draws = Key(0).fold("null").generator().standard_t(5, (2000, 6))
    at_five = [seed_difference(row[:5]).p_t <= 0.05 for row in draws]
    at_six = [seed_difference(row).p_flips <= 0.05 for row in draws]
    assert np.mean(at_five) < 0.07
    assert np.mean(at_six) < 0.05


def test_unknown_interval_has_no_ends():
    assert signed_interval(ACCURACY, 0.1, math.nan, math.nan) == ("+10.0", NOTHING)
    assert signed_interval(ACCURACY, math.nan, math.nan, math.nan) == (NOTHING, NOTHING)
    assert signed_interval(ACCURACY, 0.1, -0.05, 0.25) == ("+10.0", "−5.0 to +25.0")
