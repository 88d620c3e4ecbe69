"""The scores expected if all clients were equally good: the smallest of many noisy accuracies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

GRID = 10_000
"""Number of points at which the distribution of the smallest accuracy is evaluated; the mean is exact to half their
distance.
"""

CERTAIN = 45.0
"""Probabilities below e to the minus this, 3·10⁻²⁰, are treated as 0."""


class EqualClients(NamedTuple):
    """Statistics over clients that are all equally good. Accuracies are fractions.

    Args:
        worst: Mean of the smallest accuracy.
        std: Root mean square of the standard deviation over clients.
        low: The 2.5 % quantile of the smallest accuracy.
        high: The 97.5 % quantile of the smallest accuracy.
    """

    worst: float
    std: float
    low: float
    high: float


def equal_clients(accuracy: float, samples: NDArray[np.float64] | NDArray[np.int64]) -> EqualClients:
    """Compute the scores expected from sampling noise alone if all clients had the same true accuracy.

    Client i's measured accuracy is then a binomial fraction of n_i independent test samples. The smallest one exceeds x
    with probability Π_i P(B(n_i, p) > x·n_i), and its mean is the integral of this probability over x.

    Args:
        accuracy: True accuracy p of every client, in [0, 1].
        samples: (N,) Test samples n_i ≥ 1.
    """
    from drfl.assessment.scores import BinaryScores, relative_entropy  # scipy is slow to load

    n, counts = np.unique(np.asarray(samples, dtype=np.float64), return_counts=True)
    x, log = (np.arange(GRID) + 0.5) / GRID, np.zeros(GRID)
    # P(B(n, p) ≤ xn) ≤ exp(−n·kl(x ‖ p)) for x < p (Hoeffding 1963). So if n is large, the accuracy certainly exceeds
    # every x below some point, and these x can be skipped.
    entropy = np.where(x < accuracy, relative_entropy(x, np.full(GRID, accuracy)), 0.0)
    for size, clients in zip(n, counts, strict=True):
        start, end = np.count_nonzero(size * entropy >= CERTAIN), np.count_nonzero(log > -CERTAIN)
        if start >= end:
            break  # clients with more samples are less likely to fail to exceed x than those already counted
        # Neighbouring points have the same count, whose tail is computed once.
        right, place = np.unique(np.floor(x[start:end] * size), return_inverse=True)
        fails = BinaryScores(np.full(len(right), size), right).below(accuracy)
        with np.errstate(divide="ignore"):  # log 0 = −∞ is correct here
            log[start:end] += clients * np.log1p(-fails)[place]
    exceeds, variance = np.exp(log), accuracy * (1 - accuracy) * float(counts @ (1 / n)) / counts.sum()
    low, high = (float(np.count_nonzero(exceeds > q)) / GRID for q in (0.975, 0.025))
    return EqualClients(float(exceeds.mean()), float(np.sqrt(variance * (1 - 1 / counts.sum()))), low, high)
