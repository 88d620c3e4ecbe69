"""Test statements on the worst client against enumeration of small federations, and by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import binom

from drfl.assessment.scores import BinaryScores, RealScores
from drfl.assessment.worst import bonferroni, could_be_worst, fisher, worst_score


def all_tables(sizes, truth):
    """Yield every outcome of a federation with its probability."""
    for counts in itertools.product(*(range(n + 1) for n in sizes)):
        law = np.prod([binom.pmf(k, n, p) for k, n, p in zip(counts, sizes, truth, strict=True)])
        yield BinaryScores(np.array(sizes, float), np.array(counts, float)), law


@pytest.mark.parametrize(
    ("sizes", "truth"),
    [
        ((6, 9), (0.5, 0.5)),
        pytest.param((3, 12), (0.9, 0.6), marks=pytest.mark.long),
        pytest.param((4, 4, 4), (0.3, 0.3, 0.9), marks=pytest.mark.long),
        ((5, 2, 7), (0.97, 0.99, 0.98)),
    ],
)
@pytest.mark.parametrize("independent", [True, False])
def test_interval_and_set_cover_over_all_outcomes(sizes, truth, independent):
    missed = left_out = 0.0
    for scores, law in all_tables(sizes, truth):
        low, high = worst_score(scores, 0.1)[1:]
        missed += law * (not low <= min(truth) <= high)
        left_out += law * (could_be_worst(scores, 0.1, independent=independent)[int(np.argmin(truth))] <= 0.1)
    assert missed <= 0.1
    assert left_out <= 0.1


def test_lower_end_is_uncorrected_and_upper_end_corrected():
    scores = BinaryScores(np.full(50, 40.0), np.full(50, 30.0))
    low, high = worst_score(scores, 0.05)[1:]
    assert low == scores.lower(0.025)[0]
    assert high == scores.upper(0.025 / 50)[0]


def test_set_shrinks_with_more_rows():
    sizes = []
    for n in (20.0, 200.0, 2000.0):
        share = np.array([0.6, 0.7, 0.8, 0.9])
        sizes.append(int((could_be_worst(BinaryScores(np.full(4, n), n * share)) > 0.05).sum()))
    assert sizes[0] > sizes[1] >= sizes[2] == 1


def test_single_client_is_the_worst():
    assert could_be_worst(BinaryScores(np.array([10.0]), np.array([3.0])))[0] > 0.05


def test_client_without_rows_could_be_the_worst():
    p = could_be_worst(BinaryScores(np.array([1000.0, 1.0, 1000.0]), np.array([500.0, 1.0, 900.0])))
    assert p[1] > 0.05
    assert p[2] < 0.01


def test_many_clients_use_wider_cells_and_a_larger_set(monkeypatch):
    scores = BinaryScores(np.full(40, 60.0), np.linspace(30, 58, 40).round())
    fine = could_be_worst(scores)
    monkeypatch.setattr("drfl.assessment.worst.EVALUATIONS", 1)
    assert (could_be_worst(scores) >= fine - 1e-12).all()


def test_combined_p_values_are_valid():
    p = (np.arange(500) + 0.5) / 500
    both = fisher(p[:, None], p[None])
    for level in (0.01, 0.05, 0.3):
        assert np.mean(both <= level) == pytest.approx(level, abs=0.01)
    assert bonferroni(np.array([0.02]), np.array([0.9]))[0] == 0.04


def shares(*right, rows=1000.0):
    return BinaryScores(np.full(len(right), rows), rows * np.array(right))


def test_p_values_are_as_small_as_the_rows_allow():
    p = [could_be_worst(shares(0.5, *others))[1] for others in ((0.6, 0.6), (0.7, 0.7), (0.9, 0.9))]
    assert p[0] < 1e-3
    assert p[1] < 1e-15
    assert p[2] < 1e-60
    # The number of cells does not limit the p-values of the two better clients.
    found = could_be_worst(shares(0.5, 0.9, 0.95), independent=False)
    assert found[1] < 1e-30
    assert found[2] < found[1]


@pytest.mark.parametrize("alpha", [0.05, 0.01, 1e-4])
def test_smaller_alpha_keeps_p_values_and_sets_valid(alpha):
    # Cells bound the p-value of every θ, so the largest p-value over a grid of θ is a lower bound.
    scores = shares(0.70, 0.78, 0.9, rows=200.0)
    theta = np.linspace(0.6, 0.95, 2000)[:, None]
    above, below = scores.above(theta), scores.below(theta)
    for i in range(3):
        rival = np.minimum(1.0, 2 * np.delete(below, i, 1).min(1))
        assert could_be_worst(scores, alpha)[i] >= fisher(above[:, i], rival).max() * (1 - 1e-9)


def test_unbounded_scores_with_one_row_each_give_no_information():
    one = RealScores(np.ones(3), np.array([0.1, 0.2, 5.0]), np.array([0.01, 0.04, 25.0]))
    assert could_be_worst(one).tolist() == [1, 1, 1]
