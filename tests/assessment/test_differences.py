"""Test comparisons of two models on the same rows, over all outcomes of small federations and by McNemar's test."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import binomtest, multinomial

from drfl.assessment.differences import BinaryGains, MeanGains, worst_gain
from drfl.assessment.scores import BinaryScores, RealScores


def tables(n):
    """Yield (both right, only B, only A, neither) of n rows."""
    return [t for t in itertools.product(range(n + 1), repeat=4) if sum(t) == n]


def outcome(rows):
    both, better, worse, neither = np.array(rows, float).T
    n = both + better + worse + neither
    return BinaryScores(n, both + worse), BinaryScores(n, both + better), BinaryGains(n, better, worse)


@pytest.mark.parametrize(
    "laws",
    [((0.5, 0.1, 0.1, 0.3), (0.5, 0.1, 0.1, 0.3)), ((0.2, 0.6, 0.0, 0.2), (0.7, 0.0, 0.3, 0.0))],
)
@pytest.mark.long
def test_gain_of_the_worst_client_is_covered_over_all_outcomes(laws):
    alpha, n = 0.2, 4
    truth = min(p[0] + p[1] for p in laws) - min(p[0] + p[2] for p in laws)
    each = [[(t, multinomial.pmf(t, n, law)) for t in tables(n)] for law in laws]
    missed = each_missed = 0.0
    for (first, p), (second, q) in itertools.product(*each):
        if p * q < 1e-5:
            continue
        a, b, gains = outcome([first, second])
        found = worst_gain(a, b, gains, alpha)
        missed += p * q * (not found.low <= truth <= found.high)
        own = laws[0][1] - laws[0][2]
        each_missed += p * q * (not gains.lower(alpha / 2)[0] <= own <= gains.upper(alpha / 2)[0])
    assert missed <= alpha
    assert each_missed <= alpha


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (5, 0), (7, 2), (3, 3), (2, 9)])
def test_p_value_equals_mcnemars(better, worse):
    gains = BinaryGains(np.array([50.0]), np.array([float(better)]), np.array([float(worse)]))
    expected = binomtest(better, better + worse).pvalue if better + worse else 1.0
    assert gains.p()[0] == pytest.approx(expected)
    low, high = gains.lower(0.025)[0], gains.upper(0.025)[0]
    assert low <= gains.values[0] <= high


def test_gain_counts_if_another_client_was_the_worst():
    # A's worst client becomes as good as the others. B's worst client is better, although it gained nothing itself.
    a, b, gains = outcome([(120, 80, 0, 0), (180, 0, 0, 20), (180, 0, 0, 20)])
    assert gains.values[1] == 0
    assert worst_gain(a, b, gains).shown == "better"
    assert worst_gain(b, a, BinaryGains(gains.n, gains.worse, gains.better)).shown == "worse"


@pytest.mark.parametrize("level", [0.95, 0.99, 0.9999])
def test_large_gain_is_significant_at_any_level(level):
    # every client gains 40 points on 200 rows
    a, b, gains = outcome([(100, 90, 10, 0)] * 4)
    found = worst_gain(a, b, gains, 1 - level)
    assert found.value == pytest.approx(0.4)
    assert 0 < found.low < 0.4 < found.high
    assert worst_gain(a, b, gains, (1 - level) / 2).low < found.low


def test_equal_models_do_not_differ_significantly():
    a, b, gains = outcome([(30, 5, 5, 10)] * 4)
    found = worst_gain(a, b, gains)
    assert found.shown == "not significant"
    assert found.low == pytest.approx(-found.high, abs=1e-6)


@pytest.mark.parametrize("bounded", [True, False])
def test_interval_of_numeric_gains_contains_the_measured_gain(bounded):
    d = np.random.default_rng(0).uniform(-0.2, 0.5, (3, 60))
    gains = MeanGains.of(np.full(3, 60.0), d.sum(1), (d**2).sum(1), bounded=bounded)
    assert gains.values == pytest.approx(d.mean(1))
    assert (gains.lower(0.025) < gains.values).all()
    assert (gains.upper(0.025) > gains.values).all()
    assert (gains.p() < 0.05).all() == (not bounded or bool((gains.lower(0.025) > 0).all()))


def test_fewer_than_two_rows_give_no_interval_for_unbounded_values():
    gains = MeanGains.of(np.array([1.0, 9.0]), np.array([0.3, 1.0]), np.array([0.09, 0.5]), bounded=False)
    assert gains.lower(0.025)[0] == -np.inf
    assert gains.p()[0] == 1.0


def test_equal_gains_of_all_rows_are_not_certain():
    n, one = np.full(2, 2.0), np.ones(2)
    unbounded = MeanGains.of(n, n, n, bounded=False)
    assert (unbounded.lower(0.025).tolist(), unbounded.upper(0.025).tolist()) == ([-np.inf] * 2, [np.inf] * 2)
    assert unbounded.p().tolist() == [1, 1]
    fractions = MeanGains.of(n, n / 2, n / 4, bounded=False, largest=1.0)
    assert fractions.lower(0.025) == pytest.approx(0.5 - 1.5 * (1 - 0.025**0.5))
    assert fractions.upper(0.025) == pytest.approx(0.5 + 0.5 * (1 - 0.025**0.5))
    assert fractions.turned().upper(0.025) == pytest.approx(-fractions.lower(0.025))
    a, b = RealScores(n, n, n), RealScores(n, 2 * n, 4 * n)
    assert worst_gain(a, b, unbounded)[1:] == (-np.inf, np.inf)
    a, b = RealScores(one, one, one), RealScores(one, one, one)
    assert worst_gain(a, b, MeanGains.of(one, 0 * one, 0 * one, bounded=False)) == (0, -np.inf, np.inf)
