"""Two models on the same test rows: what each client gains, and what the worst client gains.

Model B against model A; a client's gain is d_i = μ_i^B − μ_i^A, larger is better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from drfl.assessment.scores import BinaryScores, BoundedScores, Floats, RankScores, RealScores, Scores
from drfl.assessment.worst import Rivals

SHARE = 0.8
"""Of α that goes to the direction of the changed rows; the rest goes to how many rows change."""

STEPS = 24
"""Halvings of the range of a difference: to a ten-millionth."""


@dataclass(frozen=True, eq=False)
class BinaryGains:
    """Rows that one model has right and the other wrong; d_i = ψ(2q − 1), ψ of rows change, of those q for the better.

    Given how many change, how many do for the better is binomial with q; at d = 0 that is McNemar's exact test (1947).
    ψ has a Clopper–Pearson interval of its own.

    Args:
        n: (N,) test rows.
        better: (N,) wrong with A, right with B.
        worse: (N,) right with A, wrong with B.
    """

    n: Floats
    better: Floats
    worse: Floats

    @property
    def values(self) -> Floats:
        """(N,) measured gains; NaN without rows."""
        return np.divide(self.better - self.worse, self.n, out=np.full(len(self.n), np.nan), where=self.n > 0)

    def lower(self, alpha: float) -> Floats:
        """Bounds (N,) that d_i is below with probability at most α."""
        changed = self.better + self.worse
        # The sign of 2q − 1 decides which bound on ψ makes d = ψ·(2q − 1) smallest.
        direction = 2 * BinaryScores(changed, self.better).lower(SHARE * alpha) - 1
        amount, rest = BinaryScores(self.n, changed), (1 - SHARE) * alpha / 2
        return direction * np.where(direction > 0, amount.lower(rest), amount.upper(rest))

    def upper(self, alpha: float) -> Floats:
        """Bounds (N,) that d_i is above with probability at most α."""
        return -self.turned().lower(alpha)

    def turned(self) -> BinaryGains:
        """Those of −d."""
        return BinaryGains(self.n, self.worse, self.better)

    def p(self) -> Floats:
        """Two-sided p-values (N,) of d_i = 0: McNemar's exact test."""
        changed, fewer = self.better + self.worse, np.minimum(self.better, self.worse)
        return np.minimum(1.0, 2 * BinaryScores(changed, fewer).below(0.5))


@dataclass(frozen=True, eq=False)
class MeanGains:
    """Rows with a number for each model, or an AUC of each, known by the sums of the differences.

    Args:
        scores: of the differences: :class:`drfl.assessment.scores.BoundedScores` of (1 + d)/2 for rows in [0, 1],
            :class:`drfl.assessment.scores.RankScores` of it for AUCs, :class:`drfl.assessment.scores.RealScores` of d,
            approximate, for others.
        bounded: which of the two.
    """

    scores: BoundedScores | RankScores | RealScores
    bounded: bool

    @classmethod
    def of(cls, n: Floats, total: Floats, squares: Floats, *, bounded: bool) -> MeanGains:
        """From sums (N,) of rows' differences and of their squares."""
        if bounded:
            # Sums of (1 + d)/2 and of its square, which lie in [0, 1].
            return cls(BoundedScores(n, (n + total) / 2, (n + 2 * total + squares) / 4), True)
        return cls(RealScores(n, total, squares), False)

    @property
    def n(self) -> Floats:
        """(N,) test rows."""
        return self.scores.n

    @property
    def values(self) -> Floats:
        """(N,) measured gains."""
        return self._gain(self.scores.values)

    def lower(self, alpha: float) -> Floats:
        """Bounds (N,) that d_i is below with probability at most α."""
        return self._gain(self.scores.lower(alpha))

    def upper(self, alpha: float) -> Floats:
        """Bounds (N,) that d_i is above with probability at most α."""
        return self._gain(self.scores.upper(alpha))

    def turned(self) -> MeanGains:
        """Those of −d."""
        if isinstance(self.scores, RealScores):
            return MeanGains(RealScores(self.n, -self.scores.total, self.scores.squares), False)
        return MeanGains(self.scores.mirrored(), True)

    def p(self) -> Floats:
        """Two-sided p-values (N,) of d_i = 0."""
        middle = 0.5 if self.bounded else 0.0
        return np.minimum(1.0, 2 * np.minimum(self.scores.above(middle), self.scores.below(middle)))

    def _gain(self, values: Floats) -> Floats:
        return 2 * values - 1 if self.bounded else values


Gains = BinaryGains | MeanGains


class WorstGain(NamedTuple):
    """min_i μ_i^B − min_i μ_i^A: by how much B's worst client is better than A's, whoever they are.

    Args:
        value: the difference of the measured minima.
        low: lower end of the interval.
        high: upper end.
    """

    value: float
    low: float
    high: float

    @property
    def shown(self) -> str:
        """What the interval says of B's worst client."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "no difference shown"


def worst_gain(a: Scores, b: Scores, gains: Gains, alpha: float = 0.05, *, independent: bool = True) -> WorstGain:
    """An interval for the difference of the two worst clients, valid whoever they are.

    Args:
        a: of model A, N clients.
        b: of model B on the same rows.
        gains: of B over A.
        alpha: the probability that the interval misses, half of it at each end.
        independent: whether no two clients share a test row.
    """
    value = float(np.nanmin(b.values) - np.nanmin(a.values))
    reach = a.range[1] - a.range[0]
    if not np.isfinite(reach):  # unbounded scores: limit the search for δ
        ends = np.concatenate([a.lower(1e-6), b.lower(1e-6), a.upper(1e-6), b.upper(1e-6)])
        reach = float(2 * np.ptp(np.concatenate([a.values, b.values, ends[np.isfinite(ends)]])))
    low = _lower(a, b, gains.lower(alpha / 4), alpha, reach, independent)
    high = -_lower(b, a, -gains.upper(alpha / 4), alpha, reach, independent)
    return WorstGain(value, low, high)


def _lower(a: Scores, b: Scores, paired: Floats, alpha: float, reach: float, independent: bool) -> float:
    """The largest δ such that min μ^B > min μ^A + δ is shown at level α/2.

    Its contrary says that some client i has μ_i^B − δ ≤ μ_j^A for all j. So δ is shown once this is rejected for every
    i, each at level α/2: by i's own rows, paired, for j = i, or by i's rows with B and the others' with A, each at α/4.
    """
    low, high, rivals = -reach, reach, Rivals.of(a, alpha)
    for _ in range(STEPS):
        middle = (low + high) / 2
        # Clients whose own paired rows do not show it. A NaN bound shows nothing, hence the negation.
        left = np.flatnonzero(~(paired > middle))
        shown = not len(left) or bool((rivals.beat(b, left, middle, independent=independent) <= alpha / 4).all())
        low, high = (middle, high) if shown else (low, middle)
    return low
