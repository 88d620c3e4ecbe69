"""Test the division of a total into integers: proportional, bounded, deterministic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.refusals import refused

from drfl.data import largest_remainder

WEIGHTS = st.lists(st.floats(0, 1e308), min_size=1, max_size=40).filter(any)


@given(st.integers(0, 10**9), WEIGHTS, st.integers(0, 20))
def test_parts_are_integers_within_bounds_and_sum_to_the_total(extra, weights, minimum):
    total = extra + minimum * len(weights)
    parts = largest_remainder(total, np.array(weights), minimum)
    assert parts.dtype == np.int64
    assert parts.sum() == total
    assert parts.min() >= minimum


@given(st.integers(0, 10**6), st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40))
def test_parts_differ_from_their_quota_by_less_than_one(total, weights):
    w = np.array(weights)
    assert np.abs(largest_remainder(total, w) - total * w / w.sum()).max() < 1 + 1e-6


@pytest.mark.parametrize(
    ("total", "weights", "minimum", "expected"),
    [
        (10, [1, 1, 1], 0, [4, 3, 3]),
        (5, [0, 1, 0], 0, [0, 5, 0]),
        (3, [0.1, 0.1, 0.1], 1, [1, 1, 1]),
        (7, [1, 0, 0], 2, [3, 2, 2]),
        (0, [1, 2], 0, [0, 0]),
        (6, [5e-324, 5e-324], 0, [3, 3]),
        (4, [1e308, 1e308], 1, [2, 2]),
    ],
)
def test_known_cases(total, weights, minimum, expected):
    assert largest_remainder(total, np.array(weights), minimum).tolist() == expected


@pytest.mark.parametrize("weights", [[], [0, 0], [-1, 2], [np.nan, 1], [np.inf, 1], [[1.0]]])
def test_unusable_weights_are_refused(weights):
    with refused("invalid-value", "weights"):
        largest_remainder(3, np.array(weights, dtype=float))


def test_too_small_total_is_refused():
    with refused("few-rows", None, "3", "2", "5"):
        largest_remainder(5, np.ones(3), 2)
    with refused("out-of-range", "total"):
        largest_remainder(-1, np.ones(3))
