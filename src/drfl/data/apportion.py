"""Shares turned into whole numbers of samples."""

from __future__ import annotations

import numpy as np

from drfl import checks
from drfl.errors import InputError


def apportion(total: int, weights: np.ndarray, minimum: int = 0) -> np.ndarray:
    """Whole numbers in proportion to weights that sum exactly to a total (method of largest remainders).

    Where a proportional part would be below the minimum it is the minimum, and the others share the rest in
    proportion. Equal remainders go to the lower index.

    Args:
        total: what is handed out, at least ``minimum * n``.
        weights: (n,) finite, non-negative, not all zero.
        minimum: the least that each gets.

    Returns:
        (n,) int64, each at least `minimum`, of sum `total`.

    Raises:
        InputError: when the weights are none of these, or the total is too small.
    """
    checks.whole("total", total, low=0)
    checks.whole("minimum", minimum, low=0)
    w = np.asarray(weights, dtype=np.float64)
    top = w.max(initial=0.0)
    if w.ndim != 1 or not np.isfinite(w).all() or not top > 0 or w.min() < 0:
        raise InputError("weights must be finite, non-negative and not all zero")
    if total < minimum * len(w):
        raise InputError(f"cannot give {len(w)} parts at least {minimum} each out of {total}")
    w = w / top  # so that their sum cannot overflow
    parts = np.full(len(w), minimum, dtype=np.int64)
    free = np.arange(len(w))
    while len(free):
        rest = int(total) - minimum * (len(w) - len(free))
        quota = rest * (w[free] / w[free].sum())
        above = quota >= minimum
        if above.all():
            parts[free] = _largest_remainders(rest, quota)
            break
        free = free[above]
    return parts


def _largest_remainders(total: int, quota: np.ndarray) -> np.ndarray:
    parts = np.floor(quota).astype(np.int64)
    short = total - int(parts.sum())
    if short:
        parts[np.argsort(parts - quota, kind="stable")[:short]] += 1
    return parts


def zipf(n: int, sigma: float) -> np.ndarray:
    """Zipf weights i^-sigma for i = 1..n, (n,) float64; sigma = 0 gives equal ones (DRDM paper, §IV.A.4)."""
    return np.arange(1, n + 1, dtype=np.float64) ** -float(sigma)
