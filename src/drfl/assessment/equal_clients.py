"""What clients that are all equally good would show: the worst of them is the smallest of many noisy numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

GRID = 10_000
"""Points at which the law of the smallest accuracy is taken; the mean is exact to half of their distance."""

CERTAIN = 45.0
"""Probabilities of less than e to the minus this, 3·10⁻²⁰, are taken to be 0."""


class EqualClients(NamedTuple):
    """Statistics over clients that are all equally good. Accuracies are fractions.

    Args:
        worst: mean of the smallest accuracy.
        std: root mean square of the standard deviation over clients.
        low: the smallest accuracy is below this with probability 2.5 %.
        high: and above this with probability 2.5 %.
    """

    worst: float
    std: float
    low: float
    high: float


def equal_clients(accuracy: float, samples: NDArray[np.float64] | NDArray[np.int64]) -> EqualClients:
    """What would be seen if every client's true accuracy were the same, by the noise of test sets alone.

    Client i's accuracy is then a binomial fraction of n_i independent test samples, so that the smallest one exceeds x
    with probability Π_i P(B(n_i, p) > x·n_i), whose integral over x is its mean.

    Args:
        accuracy: p, of all clients.
        samples: (N,) test samples n_i ≥ 1.
    """
    from drfl.assessment.scores import BinaryScores, relative_entropy  # scipy takes a while to load

    n, counts = np.unique(np.asarray(samples, dtype=np.float64), return_counts=True)
    x, log = (np.arange(GRID) + 0.5) / GRID, np.zeros(GRID)
    # P(B(n, p) ≤ xn) ≤ exp(−n·kl(x ‖ p)) for x < p (Hoeffding 1963): below some x many samples are certain to exceed it
    entropy = np.where(x < accuracy, relative_entropy(x, np.full(GRID, accuracy)), 0.0)
    for size, clients in zip(n, counts, strict=True):
        start, end = np.count_nonzero(size * entropy >= CERTAIN), np.count_nonzero(log > -CERTAIN)
        if start >= end:
            break  # where more samples could fail to exceed x, fewer already do
        fails = BinaryScores(np.full(end - start, size), np.floor(x[start:end] * size)).below(accuracy)
        with np.errstate(divide="ignore"):  # log 0 = −∞ is right
            log[start:end] += clients * np.log1p(-fails)
    exceeds, variance = np.exp(log), accuracy * (1 - accuracy) * float(counts @ (1 / n)) / counts.sum()
    low, high = (float(np.count_nonzero(exceeds > q)) / GRID for q in (0.975, 0.025))
    return EqualClients(float(exceeds.mean()), float(np.sqrt(variance * (1 - 1 / counts.sum()))), low, high)
