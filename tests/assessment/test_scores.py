"""Test intervals of single clients against references, and their p-values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special
from scipy.stats import binomtest, ttest_1samp

from drfl.assessment.clients import assess_clients
from drfl.assessment.scores import BinaryScores, BoundedScores, DeLongScores, RankScores, RealScores
from drfl.task.measure import Measure, Rows

ROWS = np.random.default_rng(0).beta(2, 5, (3, 40))
BINARY = BinaryScores(np.array([43.0, 7.0, 100.0]), np.array([32.0, 0.0, 100.0]))
BOUNDED = BoundedScores(np.full(3, 40.0), ROWS.sum(1), (ROWS**2).sum(1))
RANKS = RankScores(np.array([20.0, 5.0, 9.0]), np.array([23.0, 40.0, 9.0]), np.array([300.0, 200.0, 40.5]))
OUTPUTS = np.random.default_rng(1).normal(size=(3, 43)).round(1)  # with ties


def delong(outputs, positive):
    """Return the scores of clients (N, n) whose first rows are positive."""
    x, y = outputs[:, :positive], outputs[:, positive:]
    right = (x[:, :, None] > y[:, None]) + (x[:, :, None] == y[:, None]) / 2
    of, others = np.full(len(x), float(x.shape[1])), np.full(len(x), float(y.shape[1]))
    c, d = right.sum(2), right.sum(1)
    return DeLongScores(of, others, c.sum(1), (c**2).sum(1), (d**2).sum(1)), c / others[0], d / of[0]


DELONG = delong(OUTPUTS, 20)[0]
REAL = RealScores(np.full(3, 40.0), ROWS.sum(1), (ROWS**2).sum(1))
EQUAL = RealScores(np.array([2.0, 20.0, 5.0]), np.array([1.8, 4.0, 1.5]), np.array([1.62, 0.8, 0.45]), (0.0, 1.0))
"""Fractions that are equal in all rows of a client: 0.9, 0.2 and 0.3."""

KINDS = [BINARY, BOUNDED, RANKS, DELONG, REAL, EQUAL]


@pytest.mark.parametrize("count", [0, 1, 32, 42, 43])
@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_clopper_pearson_matches_scipy(count, alpha):
    n = 43
    scores = BinaryScores(np.array([float(n)]), np.array([float(count)]))
    found = binomtest(count, n).proportion_ci(1 - alpha, method="exact")
    assert scores.lower(alpha / 2)[0] == pytest.approx(found.low, abs=1e-12)
    assert scores.upper(alpha / 2)[0] == pytest.approx(found.high, abs=1e-12)


@pytest.mark.parametrize("theta", [0.01, 0.5, 0.99])
def test_binomial_tails_match_scipy(theta):
    for n, count, above, below in zip(BINARY.n, BINARY.count, BINARY.above(theta), BINARY.below(theta), strict=True):
        assert above == pytest.approx(binomtest(int(count), int(n), theta, "greater").pvalue, rel=1e-9)
        assert below == pytest.approx(binomtest(int(count), int(n), theta, "less").pvalue, rel=1e-9)


def test_t_interval_matches_scipy():
    for j, rows in enumerate(ROWS):
        found = ttest_1samp(rows, 0.3).confidence_interval(0.9)
        assert (REAL.lower(0.05)[j], REAL.upper(0.05)[j]) == pytest.approx((found.low, found.high))
        assert REAL.above(0.3)[j] == pytest.approx(ttest_1samp(rows, 0.3, alternative="greater").pvalue)
        assert REAL.below(0.3)[j] == pytest.approx(ttest_1samp(rows, 0.3, alternative="less").pvalue)


def test_bounds_of_equal_rows():
    share = 0.025 ** (1 / EQUAL.n)
    assert EQUAL.lower(0.025) == pytest.approx(share * [0.9, 0.2, 0.3])
    assert EQUAL.upper(0.025) == pytest.approx(1 - share * [0.1, 0.8, 0.7])
    for better in (True, False):
        measure = Measure("share", percent=True, more_is_better=better, rows=Rows.REAL)
        found = assess_clients(measure, ["a"], np.array([[5, 5, 5, 0, 0]]), np.array([5]), level=0.95)
        assert (found.low[0], found.high[0]) == (pytest.approx(0.025 ** (1 / 5)), 1)
    unbounded = RealScores(EQUAL.n, EQUAL.total, EQUAL.squares)
    assert unbounded.lower(0.025).tolist() == [-np.inf] * 3
    assert unbounded.upper(0.025).tolist() == [np.inf] * 3
    assert unbounded.above(-1e9).tolist() == unbounded.below(1e9).tolist() == [1] * 3
    # The sums of many equal rows are rounded.
    rows = np.full(10**6, 0.1)
    many = RealScores(np.array([1e6]), rows.cumsum()[-1:], (rows**2).cumsum()[-1:])
    assert many.upper(0.025).tolist() == [np.inf]


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_intervals_of_equal_rows_rarely_miss(n):
    right = np.random.default_rng(n).binomial(n, 0.9, 20_000).astype(float)
    scores = RealScores(np.full(len(right), float(n)), right, right, (0.0, 1.0))
    misses = (scores.lower(0.025) > 0.9) | (scores.upper(0.025) < 0.9)
    equal = (right == 0) | (right == n)
    assert misses[equal].mean() <= 0.05
    assert misses.mean() <= 0.05


@pytest.mark.parametrize("scores", KINDS, ids=lambda scores: type(scores).__name__)
@pytest.mark.parametrize("alpha", [0.2, 0.025, 1e-6])
def test_p_values_at_the_bounds_equal_alpha(scores, alpha):
    low, high = scores.lower(alpha), scores.upper(alpha)
    assert (low <= scores.values).all()
    assert (scores.values <= high).all()
    least, most = scores.range
    inner = low > least
    assert scores.above(low)[inner] == pytest.approx(np.full(inner.sum(), alpha), rel=1e-6)
    inner = high < most
    assert scores.below(high)[inner] == pytest.approx(np.full(inner.sum(), alpha), rel=1e-6)


@pytest.mark.parametrize("scores", KINDS, ids=lambda scores: type(scores).__name__)
def test_p_values_are_monotone_in_theta(scores):
    theta = np.linspace(0.001, 0.999, 50)[:, None]
    assert (np.diff(scores.above(theta), axis=0) >= -1e-12).all()
    assert (np.diff(scores.below(theta), axis=0) <= 1e-12).all()


@pytest.mark.parametrize("scores", [BOUNDED, RANKS], ids=lambda scores: type(scores).__name__)
def test_no_rows_give_the_trivial_interval(scores):
    empty = type(scores)(*(np.zeros(2) for _ in range(3)))
    assert np.isnan(empty.values).all()
    assert empty.lower(0.05).tolist() == [0, 0]
    assert empty.upper(0.05).tolist() == [1, 1]
    assert empty.above(0.5).tolist() == [1, 1]


def test_nearly_constant_rows_use_the_variance_bound():
    # 2,000 rows of 0.5 ± 0.01: Hoeffding's bound uses only the mean and is ten times as wide
    n = np.array([2000.0])
    tight = BoundedScores(n, 0.5 * n, (0.25 + 1e-4) * n)
    assert tight.upper(0.025)[0] - tight.lower(0.025)[0] < 0.02
    assert RankScores(n, n, 0.5 * n**2).upper(0.025)[0] - 0.5 > 0.02


def test_auc_intervals_with_many_rows_match_delong():
    rng = np.random.default_rng(0)
    outputs = np.concatenate([rng.normal(1, 1, (2, 1500)), rng.normal(0, 1, (2, 2500))], 1)
    scores, c, d = delong(outputs, 1500)
    error = np.sqrt(c.var(1, ddof=1) / 1500 + d.var(1, ddof=1) / 2500)
    odds, half = special.logit(scores.values), 1.96 * error / (scores.values * (1 - scores.values))
    assert scores.lower(0.025) == pytest.approx(special.expit(odds - half), abs=3e-4)
    assert scores.upper(0.025) == pytest.approx(special.expit(odds + half), abs=3e-4)


def test_perfect_auc_gives_the_binomial_interval_of_the_smaller_class():
    few, many, one = np.array([4.0]), np.array([60.0]), np.array([1.0])
    perfect = DeLongScores(few, many, few * many, few * many**2, many * few**2)
    assert perfect.lower(0.025) == pytest.approx(BinaryScores(few, few).lower(0.025))
    assert perfect.upper(0.025) == [1]
    assert (perfect.above(0.0), perfect.below(1.0)) == ([0], [1])
    assert perfect.mirrored().upper(0.025) == pytest.approx(1 - perfect.lower(0.025))
    tied = DeLongScores(one, many, 30 * one, 900 * one, many / 4)
    assert (tied.lower(0.025), tied.upper(0.025)) == ([pytest.approx(0, abs=1e-3)], [pytest.approx(1, abs=1e-3)])


def test_tied_outputs_are_not_treated_as_certain():
    n = np.array([30.0])
    tied = DeLongScores(n, n, n**2 / 2, n**3 / 4, n**3 / 4)
    assert 0.3 < tied.lower(0.025)[0] < 0.45


@pytest.mark.parametrize("kind", [RankScores, DeLongScores])
def test_no_rows_of_a_class_give_the_trivial_auc_interval(kind):
    empty = (np.zeros(2), np.array([0.0, 9.0]), np.zeros(2))
    scores = RankScores(*empty) if kind is RankScores else DeLongScores(*empty, np.zeros(2), np.zeros(2))
    assert np.isnan(scores.values).all()
    assert (scores.lower(0.05).tolist(), scores.upper(0.05).tolist()) == ([0, 0], [1, 1])
    assert scores.above(0.5).tolist() == [1, 1]


def test_auc_gain_is_computed_from_placements():
    other = OUTPUTS + np.random.default_rng(2).normal(0, 0.3, OUTPUTS.shape).round(1)
    (a, c, d), (b, e, f) = delong(OUTPUTS, 20), delong(other, 20)
    products = np.stack([(c * e).sum(1) * 23**2, (d * f).sum(1) * 20**2], 1)
    gain = a.gain(b, products)
    assert 2 * gain.values - 1 == pytest.approx(b.values - a.values)
    assert gain.positive_squares == pytest.approx((((1 + e - c) / 2) ** 2).sum(1) * 23**2)
    assert gain.negative_squares == pytest.approx((((1 + f - d) / 2) ** 2).sum(1) * 20**2)
    free = RankScores(a.positive, a.negative, a.pairs).gain(RankScores(b.positive, b.negative, b.pairs), products)
    assert (free.lower(0.025) < gain.lower(0.025)).all()
    # a model's difference from itself is zero and has a narrower interval
    same = a.gain(a, np.stack([a.positive_squares, a.negative_squares], 1))
    assert same.values == pytest.approx(0.5)
    assert (same.upper(0.025) - same.lower(0.025) < gain.upper(0.025) - gain.lower(0.025)).all()
