"""Test the tests of equality of clients against exact enumeration, and the spread without noise."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import binom, f_oneway, multivariate_hypergeom

from drfl.assessment.homogeneity import homogeneity
from drfl.assessment.scores import BinaryScores, BoundedScores, RealScores


def test_p_values_match_enumeration_of_tables():
    n, count = np.array([6, 9, 4]), np.array([2, 8, 3])
    spread = worst = 0.0
    for table in itertools.product(*(range(size + 1) for size in n)):
        if sum(table) == count.sum():
            law = multivariate_hypergeom.pmf(table, n, count.sum())
            spread += law * ((np.array(table) ** 2 / n).sum() >= (count**2 / n).sum() - 1e-12)
            worst += law * ((table / n).min() <= (count / n).min() + 1e-12)
    found = homogeneity(BinaryScores(n.astype(float), count.astype(float)))
    assert found.exact
    assert found.p_spread == pytest.approx(spread, abs=0.015)
    assert found.p_worst == pytest.approx(worst, abs=0.015)


@pytest.mark.long
def test_equal_clients_are_rarely_rejected_and_unequal_often():
    rng, n = np.random.default_rng(0), np.array([5, 20, 80, 40])
    equal = [homogeneity(BinaryScores(n * 1.0, rng.binomial(n, 0.9) * 1.0)).p_spread for _ in range(200)]
    assert np.mean(np.array(equal) <= 0.1) <= binom.ppf(0.999, 200, 0.1) / 200
    apart = homogeneity(BinaryScores(n * 1.0, np.array([5.0, 20.0, 40.0, 36.0])))
    assert apart.p_spread < 0.001


@pytest.mark.long
def test_spread_without_noise_subtracts_sampling_variance():
    rng, n = np.random.default_rng(1), np.full(2000, 50)
    found = homogeneity(BinaryScores(n * 1.0, rng.binomial(n, rng.uniform(0.7, 0.9, 2000)) * 1.0))
    assert found.std_true == pytest.approx(0.2 / np.sqrt(12), rel=0.08)
    assert found.std > 1.2 * found.std_true


def test_one_row_per_client_leaves_the_noise_unknown():
    assert np.isnan(homogeneity(BinaryScores(np.array([1.0, 30.0]), np.array([1.0, 20.0]))).std_true)


def test_numeric_scores_have_an_approximate_test():
    rows = np.random.default_rng(0).uniform(0, 1, (5, 60))
    same = homogeneity(BoundedScores(np.full(5, 60.0), rows.sum(1), (rows**2).sum(1)))
    rows[0] *= 0.5
    apart = homogeneity(BoundedScores(np.full(5, 60.0), rows.sum(1), (rows**2).sum(1)))
    assert not same.exact
    assert np.isnan(same.p_worst)
    assert apart.p_spread < 0.001 < same.p_spread


@pytest.mark.parametrize("sizes", [[3] * 50, [2] * 100, [10, 500] * 5, [1, 1, 4, 30]], ids=len)
def test_numeric_scores_of_equal_clients_are_rarely_rejected(sizes):
    sizes, p = np.array(sizes), []
    for rng in map(np.random.default_rng, range(100)):
        rows = np.split(rng.integers(0, 5, sizes.sum()) / 4, np.cumsum(sizes)[:-1])
        p.append(homogeneity(BoundedScores(*np.array([(len(r), r.sum(), (r**2).sum()) for r in rows]).T)).p_spread)
    assert np.mean(np.array(p) <= 0.05) <= binom.ppf(0.999, 100, 0.05) / 100


@pytest.mark.parametrize("bounded", [True, False])
def test_f_and_welch_tests_match_scipy(bounded):
    rows = [np.random.default_rng(k).uniform(0, 1 / (1 + k), 5 + 10 * k) for k in range(4)]
    sums = np.array([(len(r), r.sum(), (r**2).sum()) for r in rows]).T
    found = homogeneity(BoundedScores(*sums) if bounded else RealScores(*sums)).p_spread
    assert found == pytest.approx(max(f_oneway(*rows).pvalue, f_oneway(*rows, equal_var=False).pvalue), rel=1e-6)


def test_rows_without_variation():
    n = np.array([3.0, 7.0])
    assert homogeneity(BoundedScores(n, 0.1 * n, 0.01 * n)).p_spread > 0.99
    assert homogeneity(BoundedScores(n, 0 * n, 0 * n)).p_spread == 1.0
    assert homogeneity(BoundedScores(np.ones(2), np.array([0.0, 1.0]), np.array([0.0, 1.0]))).p_spread == 1.0


@pytest.mark.parametrize("kind", [BoundedScores, RealScores])
def test_clients_with_equal_rows_do_not_differ_for_certain(kind):
    n = np.array([2.0, 3.0, 2.0])
    assert homogeneity(kind(n, n * [1, 1, 0.98], n * [1, 1, 0.98**2])).p_spread == 1.0
    # The variance of the third client, not 0, is that of the other two.
    n, mean, squares = np.array([3.0, 3.0, 4.0]), np.array([1.0, 1.0, 0.75]), np.array([3.0, 3.0, 3.0])
    assert homogeneity(kind(n, n * mean, squares)).p_spread > 0.3


@pytest.mark.parametrize("n", [2, 5, 20])
def test_rows_that_rarely_vary_are_rarely_rejected(n):
    drawn = np.random.default_rng(n).binomial(n, 0.9, (200, 10)).astype(float)
    p = [homogeneity(RealScores(np.full(10, float(n)), right, right)).p_spread for right in drawn]
    assert np.mean(np.array(p) <= 0.05) <= 0.05


def test_results_are_reproducible():
    scores = BinaryScores(np.array([50.0, 30.0]), np.array([40.0, 20.0]))
    assert homogeneity(scores) == homogeneity(scores)


def test_more_rows_than_numpy_can_draw_tables_of():
    n = np.array([3e8, 2e8, 50, 4e8, 3e8, 10, 2e8, 3e8])
    count = np.round(0.9 * n)
    assert homogeneity(BinaryScores(n, count)).p_spread > 0.5
    apart = homogeneity(BinaryScores(n, count - [0, 0, 25, 0, 0, 0, 0, 0]))
    assert apart.exact
    assert apart.p_worst < 0.001
    assert homogeneity(BinaryScores(n, count - [0, 0, 0, 4e5, 0, 0, 0, 0])).p_spread < 0.001


@pytest.mark.long
def test_clients_in_chunks_are_tested_too(monkeypatch):
    rng, n = np.random.default_rng(0), np.array([5, 20, 80, 40, 30, 60, 9, 12])
    monkeypatch.setattr("drfl.assessment.homogeneity.ROWS", 150)
    equal = [homogeneity(BinaryScores(n * 1.0, rng.binomial(n, 0.9) * 1.0))[:2] for _ in range(100)]
    assert (np.mean(np.array(equal) <= 0.1, axis=0) <= binom.ppf(0.999, 100, 0.1) / 100).all()
    assert homogeneity(BinaryScores(n * 1.0, np.array([5, 18, 72, 20, 27, 54, 8, 11.0]))).p_spread < 0.001
