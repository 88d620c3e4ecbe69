"""Test vectorised sampling against Floyd's algorithm, entry by entry (Bentley and Floyd 1987)."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from drfl.engine.batches import sample_without_replacement


def floyd(uniforms, size):
    chosen = []
    for b, u in enumerate(uniforms):
        last = size - len(uniforms) + b
        pick = min(int(u * (last + 1)), last)
        chosen.append(last if pick in chosen else pick)
    return chosen


@given(st.integers(1, 12), st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(0, 10**6))
def test_vectorised_sampling_matches_floyds_algorithm(B, extra, seed):
    """Few samples give many repetitions, including picks that equal an earlier last entry."""
    sizes = np.array([B + e for e in extra])
    uniforms = np.random.default_rng(seed).random((len(sizes), 3, B))
    found = sample_without_replacement(uniforms, sizes)
    for k, size in enumerate(sizes):
        for t in range(3):
            assert found[k, t].tolist() == floyd(uniforms[k, t], int(size))


def test_edge_cases_of_sampling():
    for value in (0.0, 0.5, 1 - 2**-53):
        found = sample_without_replacement(np.full((1, 1, 9), value), np.array([11]))
        assert found[0, 0].tolist() == floyd([value] * 9, 11)
