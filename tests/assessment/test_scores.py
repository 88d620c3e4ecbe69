"""Intervals of single clients: against references, and p-values that are their inversion."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, ttest_1samp

from drfl.assessment.scores import BinaryScores, BoundedScores, RankScores, RealScores

ROWS = np.random.default_rng(0).beta(2, 5, (3, 40))
BINARY = BinaryScores(np.array([43.0, 7.0, 100.0]), np.array([32.0, 0.0, 100.0]))
BOUNDED = BoundedScores(np.full(3, 40.0), ROWS.sum(1), (ROWS**2).sum(1))
RANKS = RankScores(np.array([20.0, 5.0, 9.0]), np.array([23.0, 40.0, 9.0]), np.array([300.0, 200.0, 40.5]))
REAL = RealScores(np.full(3, 40.0), ROWS.sum(1), (ROWS**2).sum(1))
KINDS = [BINARY, BOUNDED, RANKS, REAL]


@pytest.mark.parametrize("count", [0, 1, 32, 42, 43])
@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_clopper_pearson_is_scipys(count, alpha):
    n = 43
    scores = BinaryScores(np.array([float(n)]), np.array([float(count)]))
    found = binomtest(count, n).proportion_ci(1 - alpha, method="exact")
    assert scores.lower(alpha / 2)[0] == pytest.approx(found.low, abs=1e-12)
    assert scores.upper(alpha / 2)[0] == pytest.approx(found.high, abs=1e-12)


@pytest.mark.parametrize("theta", [0.01, 0.5, 0.99])
def test_binomial_tails_are_scipys(theta):
    for n, count, above, below in zip(BINARY.n, BINARY.count, BINARY.above(theta), BINARY.below(theta), strict=True):
        assert above == pytest.approx(binomtest(int(count), int(n), theta, "greater").pvalue, rel=1e-9)
        assert below == pytest.approx(binomtest(int(count), int(n), theta, "less").pvalue, rel=1e-9)


def test_the_t_interval_is_scipys():
    for j, rows in enumerate(ROWS):
        found = ttest_1samp(rows, 0.3).confidence_interval(0.9)
        assert (REAL.lower(0.05)[j], REAL.upper(0.05)[j]) == pytest.approx((found.low, found.high))
        assert REAL.above(0.3)[j] == pytest.approx(ttest_1samp(rows, 0.3, alternative="greater").pvalue)
        assert REAL.below(0.3)[j] == pytest.approx(ttest_1samp(rows, 0.3, alternative="less").pvalue)


@pytest.mark.parametrize("scores", KINDS, ids=lambda scores: type(scores).__name__)
@pytest.mark.parametrize("alpha", [0.2, 0.025, 1e-6])
def test_bounds_are_where_p_values_are_alpha(scores, alpha):
    low, high = scores.lower(alpha), scores.upper(alpha)
    assert (low <= scores.values).all()
    assert (scores.values <= high).all()
    least, most = scores.range
    inner = low > least
    assert scores.above(low)[inner] == pytest.approx(np.full(inner.sum(), alpha), rel=1e-6)
    inner = high < most
    assert scores.below(high)[inner] == pytest.approx(np.full(inner.sum(), alpha), rel=1e-6)


@pytest.mark.parametrize("scores", KINDS, ids=lambda scores: type(scores).__name__)
def test_p_values_grow_with_theta_for_above_and_fall_for_below(scores):
    theta = np.linspace(0.001, 0.999, 50)[:, None]
    assert (np.diff(scores.above(theta), axis=0) >= -1e-12).all()
    assert (np.diff(scores.below(theta), axis=0) <= 1e-12).all()


@pytest.mark.parametrize("scores", [BOUNDED, RANKS], ids=lambda scores: type(scores).__name__)
def test_no_rows_say_nothing(scores):
    empty = type(scores)(*(np.zeros(2) for _ in range(3)))
    assert np.isnan(empty.values).all()
    assert empty.lower(0.05).tolist() == [0, 0]
    assert empty.upper(0.05).tolist() == [1, 1]
    assert empty.above(0.5).tolist() == [1, 1]


def test_rows_that_hardly_vary_have_the_variance_bound():
    # 2,000 rows of 0.5 ± 0.01: Hoeffding's bound knows the mean alone and is ten times as wide
    n = np.array([2000.0])
    tight = BoundedScores(n, 0.5 * n, (0.25 + 1e-4) * n)
    assert tight.upper(0.025)[0] - tight.lower(0.025)[0] < 0.02
    assert RankScores(n, n, 0.5 * n**2).upper(0.025)[0] - 0.5 > 0.02
