"""Symmetric Dirichlet shares, for any positive concentration."""

from __future__ import annotations

import math

import numpy as np

from drfl.key import Key


def dirichlet(alpha: float, rows: int, columns: int, key: Key) -> np.ndarray:
    """Draws rows of Dir(alpha·1).

    A Gamma(alpha) variable is a Gamma(alpha + 1) one times U^(1/alpha) (Marsaglia and Tsang 2000, §6). In
    logarithms, and relative to the largest in the row, nothing underflows to a row of zeros however small
    alpha is.

    Args:
        alpha: positive; infinity gives equal shares.
        rows: number of draws.
        columns: dimension of each.
        key: names the draw.

    Returns:
        (rows, columns) float64; each row is non-negative and sums to 1.
    """
    if math.isinf(alpha):
        return np.full((rows, columns), 1 / columns)
    rng = key.generator()
    minus_log_u = rng.standard_exponential((rows, columns))
    gamma = rng.standard_gamma(alpha + 1, (rows, columns))
    with np.errstate(over="ignore"):  # an infinite distance is a share of zero, as it should be
        distance = (minus_log_u - minus_log_u.min(axis=1, keepdims=True)) / alpha
    logits = np.log(gamma) - distance
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)
