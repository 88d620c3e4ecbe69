"""Ranks with ties."""

from __future__ import annotations

import numpy as np


def average_ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks of values (n,) from 1, float64; equal values share the mean of their ranks.

    :func:`scipy.stats.rankdata` does the same, but SciPy's statistics take a second to load. If a value is
    NaN, all ranks are.
    """
    if np.isnan(values).any():
        return np.full(len(values), np.nan)
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (count.cumsum() - (count - 1) / 2)[place]
