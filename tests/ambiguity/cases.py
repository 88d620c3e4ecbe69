"""Ambiguity sets and vectors on which the tests run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from drfl.ambiguity import KL, AmbiguitySet, Box, ChiSquare, ChiSquareBall, CVaR, KLBall, Simplex

EXTREMES = (0.0, 1.0, -1.0, 1e-300, -1e-300, 1e17, -1e17, 1e300, -1e300)


def uneven(n: int) -> np.ndarray:
    """Return a prior that grows like i²."""
    return np.arange(1, n + 1) ** 2 / (np.arange(1, n + 1) ** 2).sum()


def steep(n: int) -> np.ndarray:
    """Return a prior that falls from near 1 to 1e-9."""
    p = np.logspace(0, -9, n)
    return p / p.sum()


CASES: dict[str, Callable[[int], AmbiguitySet]] = {
    "Simplex(0)": lambda n: Simplex(),
    "Simplex(0.01)": lambda n: Simplex(0.01),
    "Simplex(1/N)": lambda n: Simplex(1 / n),
    "CVaR(1)": lambda n: CVaR(1.0),
    "CVaR(0.5)": lambda n: CVaR(0.5),
    "CVaR(0.3)": lambda n: CVaR(0.3),
    "CVaR(0.01)": lambda n: CVaR(0.01),
    "Box(1)": lambda n: Box(1.0),
    "Box(1/N)": lambda n: Box(1 / n),
    "Box(1.5/N)": lambda n: Box(min(1.5 / n, 1.0)),
    "Box(3/N)": lambda n: Box(min(3 / n, 1.0)),
    "ChiSquare(0)": lambda n: ChiSquare(0.0),
    "ChiSquare(0.01)": lambda n: ChiSquare(0.01),
    "ChiSquare(0.1)": lambda n: ChiSquare(0.1),
    "ChiSquare(10)": lambda n: ChiSquare(10.0),
    "KL(0)": lambda n: KL(0.0),
    "KL(0.01)": lambda n: KL(0.01),
    "KL(0.1)": lambda n: KL(0.1),
    "KL(10)": lambda n: KL(10.0),
    "KL(0.1, uneven)": lambda n: KL(0.1, uneven(n)),
    "KL(1, steep)": lambda n: KL(1.0, steep(n)),
    "ChiSquareBall(0)": lambda n: ChiSquareBall(0.0),
    "ChiSquareBall(0.0001)": lambda n: ChiSquareBall(1e-4),
    "ChiSquareBall(0.1)": lambda n: ChiSquareBall(0.1),
    "ChiSquareBall(0.5)": lambda n: ChiSquareBall(0.5),
    "ChiSquareBall(100)": lambda n: ChiSquareBall(100.0),
    "KLBall(0)": lambda n: KLBall(0.0),
    "KLBall(0.0001)": lambda n: KLBall(1e-4),
    "KLBall(0.1)": lambda n: KLBall(0.1),
    "KLBall(0.5)": lambda n: KLBall(0.5),
    "KLBall(100)": lambda n: KLBall(100.0),
    "KLBall(0.3, uneven)": lambda n: KLBall(0.3, uneven(n)),
    "KLBall(1, steep)": lambda n: KLBall(1.0, steep(n)),
}
"""Functions by name that make a set for n clients; Simplex(0.01) allows up to 100."""
ONE_OF_EACH = list({type(make(4)): name for name, make in reversed(CASES.items())}.values())
"""The first case of each kind of set."""


def drawn(g: np.random.Generator, draws: int, n: int) -> np.ndarray:
    """Draw vectors (draws, n) of seven kinds:

    spread out, tied, near the simplex, sparse, far away, huge and tiny, equal.
    """
    normal = g.normal(size=(draws, n))
    kinds = (
        normal * 10 ** g.uniform(-3, 3, (draws, 1)),
        np.round(2 * normal) / 2,
        np.exp(2 * normal) / np.exp(2 * normal).sum(1, keepdims=True),
        np.where(g.random((draws, n)) < 0.7, 0.0, normal),
        normal * 0.2 + 100,
        g.choice(EXTREMES, (draws, n)),
        np.repeat(normal[:, :1], n, 1),
    )
    return np.stack([kinds[i % len(kinds)][i] for i in range(draws)])


def steps(g: np.random.Generator, draws: int) -> np.ndarray:
    """Draw steps (draws,) from 1/1000 to 1000."""
    return 10 ** g.uniform(-3, 3, draws)
