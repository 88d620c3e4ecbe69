"""Test statements on an unseen client, and the numbers of rows needed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom
from tests.support.refusals import refused

from drfl.assessment.sample_size import rows_for_models, rows_for_worst
from drfl.assessment.scores import BinaryScores
from drfl.assessment.unseen import unseen_client


@pytest.mark.parametrize(
    ("n", "level", "rank"), [(4, 0.95, 0), (18, 0.95, 0), (19, 0.95, 1), (100, 0.95, 5), (9, 0.9, 1)]
)
def test_bound_follows_from_the_rank_under_exchangeability(n, level, rank):
    values = np.random.default_rng(0).permutation(np.arange(1.0, n + 1))
    found = unseen_client(values, level)
    assert found.worse == 1 / (n + 1)
    if rank:
        assert found.low == rank
        assert found.coverage >= level - 1e-9
    else:
        assert np.isnan(found.low)
        assert found.coverage == pytest.approx(1 - 1 / (n + 1))
    assert found.needed == (19 if level == 0.95 else 9)


def test_probability_that_a_new_client_is_worse():
    drawn = np.random.default_rng(0).normal(size=(20_000, 11))
    found = unseen_client(drawn[0, :10])
    assert np.mean(drawn[:, 10] < drawn[:, :10].min(1)) == pytest.approx(found.worse, abs=0.01)
    # given the known clients, the probability is distributed like the smallest of ten uniform numbers
    assert np.mean(np.random.default_rng(1).uniform(size=(20_000, 10)).min(1) <= found.worse_high) == pytest.approx(
        0.95, abs=0.01
    )


@pytest.mark.parametrize(("accuracy", "difference", "clients"), [(0.9, 0.1, 4), (0.8, 0.05, 30)])
def test_required_rows_are_sufficient_and_fewer_are_not(accuracy, difference, clients):
    def power(n):
        counts = np.arange(n + 1.0)
        shown = BinaryScores(np.full(n + 1, float(n)), counts).upper(0.05 / 2 / clients) < accuracy
        return binom.pmf(counts, n, accuracy - difference)[shown].sum()

    n = rows_for_worst(accuracy, difference, clients)
    assert min(power(n + k) for k in range(10)) >= 0.8
    assert power(n // 2) < 0.8


def test_smaller_differences_and_more_clients_need_more_rows():
    assert rows_for_worst(0.9, 0.05, 4) > rows_for_worst(0.9, 0.1, 4)
    assert rows_for_worst(0.9, 0.1, 100) > rows_for_worst(0.9, 0.1, 4)
    assert rows_for_models(0.1, 0.02) > rows_for_models(0.1, 0.05)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: rows_for_worst(1.0, 0.1, 3), ("out-of-range", "accuracy", "1.0")),
        (lambda: rows_for_worst(0.5, 0.6, 3), ("out-of-range", "difference", "0.6")),
        (lambda: rows_for_worst(0.5, 1e-7, 3), ("out-of-range", "difference", "10,000,000")),
        (lambda: rows_for_models(0.1, 0.2), ("out-of-range", "difference", "0.2")),
    ],
)
def test_impossible_arguments_are_refused(call, error):
    with refused(*error):
        call()
