"""Two models on the same test rows: the gain of each client and the gain of the worst client.

Model B is compared with model A. A client's gain is d_i = μ_i^B − μ_i^A; larger is better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from drfl.assessment.clusters import ClusterScores
from drfl.assessment.scores import BinaryScores, BoundedScores, Floats, RankScores, RealScores, Scores
from drfl.assessment.worst import Rivals

SHARE = 0.8
"""Share of α for the direction of the changed rows; the rest is for the number of changed rows."""

STEPS = 24
"""Bisection steps for a difference: enough for a ten-millionth of its range."""


@dataclass(frozen=True, eq=False)
class BinaryGains:
    """Rows that one model gets right and the other wrong: d_i = ψ(2q − 1).

    ψ is the share of rows that change, and q the share of those that change for the better. Given the number of changed
    rows, the number for the better is binomial with probability q. At d = 0 that is McNemar's exact test (1947). ψ has
    a separate Clopper–Pearson interval.

    Args:
        n: (N,) Test rows.
        better: (N,) Rows that A gets wrong and B right.
        worse: (N,) Rows that A gets right and B wrong.
    """

    n: Floats
    better: Floats
    worse: Floats

    @property
    def values(self) -> Floats:
        """(N,) measured gains; NaN for a client without rows."""
        return np.divide(self.better - self.worse, self.n, out=np.full(len(self.n), np.nan), where=self.n > 0)

    def lower(self, alpha: float) -> Floats:
        """Return lower bounds (N,): d_i is below its bound with probability at most α."""
        changed = self.better + self.worse
        # The sign of 2q − 1 decides which bound on ψ makes d = ψ·(2q − 1) smallest.
        direction = 2 * BinaryScores(changed, self.better).lower(SHARE * alpha) - 1
        amount, rest = BinaryScores(self.n, changed), (1 - SHARE) * alpha / 2
        return direction * np.where(direction > 0, amount.lower(rest), amount.upper(rest))

    def upper(self, alpha: float) -> Floats:
        """Return upper bounds (N,): d_i is above its bound with probability at most α."""
        return -self.turned().lower(alpha)

    def turned(self) -> BinaryGains:
        """Return the gains −d."""
        return BinaryGains(self.n, self.worse, self.better)

    def p(self) -> Floats:
        """Compute two-sided p-values (N,) of d_i = 0 by McNemar's exact test."""
        changed, fewer = self.better + self.worse, np.minimum(self.better, self.worse)
        return np.minimum(1.0, 2 * BinaryScores(changed, fewer).below(0.5))


@dataclass(frozen=True, eq=False)
class MeanGains:
    """Rows with a number for each model, or an AUC of each model, known by sums of the differences.

    Args:
        scores: Scores of the differences: :class:`drfl.assessment.scores.BoundedScores` of (1 + d)/2 for rows in [0,
            1], :class:`drfl.assessment.scores.RankScores` of (1 + d)/2 for AUCs, and otherwise
            :class:`drfl.assessment.scores.RealScores` of d, which is approximate.
        bounded: Whether the scores are of (1 + d)/2.
    """

    scores: BoundedScores | ClusterScores | RankScores | RealScores
    bounded: bool

    @classmethod
    def of(cls, n: Floats, total: Floats, squares: Floats, *, bounded: bool, largest: float = np.inf) -> MeanGains:
        """Build the gains from sums (N,) of the rows' differences, at most ``largest``, and of their squares."""
        if bounded:
            # Sums of (1 + d)/2, which is in [0, 1], and of its square.
            return cls(BoundedScores(n, (n + total) / 2, (n + 2 * total + squares) / 4), True)
        return cls(RealScores(n, total, squares, (-largest, largest)), False)

    @property
    def n(self) -> Floats:
        """(N,) test rows."""
        return self.scores.n

    @property
    def values(self) -> Floats:
        """(N,) measured gains."""
        return self._gain(self.scores.values)

    def lower(self, alpha: float) -> Floats:
        """Return lower bounds (N,): d_i is below its bound with probability at most α."""
        return self._gain(self.scores.lower(alpha))

    def upper(self, alpha: float) -> Floats:
        """Return upper bounds (N,): d_i is above its bound with probability at most α."""
        return self._gain(self.scores.upper(alpha))

    def turned(self) -> MeanGains:
        """Return the gains −d."""
        return MeanGains(self.scores.mirrored(), self.bounded)

    def p(self) -> Floats:
        """Compute two-sided p-values (N,) of d_i = 0."""
        middle = 0.5 if self.bounded else 0.0
        return np.minimum(1.0, 2 * np.minimum(self.scores.above(middle), self.scores.below(middle)))

    def _gain(self, values: Floats) -> Floats:
        return 2 * values - 1 if self.bounded else values


Gains = BinaryGains | MeanGains


class WorstGain(NamedTuple):
    """min_i μ_i^B − min_i μ_i^A: the gain of B's worst client over A's, whichever they are.

    Args:
        value: Difference of the measured minima.
        low: Lower end of the interval.
        high: Upper end.
    """

    value: float
    low: float
    high: float

    @property
    def shown(self) -> str:
        """Verdict on B's worst client: "better", "worse" or "not significant"."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "not significant"


def worst_gain(a: Scores, b: Scores, gains: Gains, alpha: float = 0.05, *, independent: bool = True) -> WorstGain:
    """Compute an interval for the difference of the two worst clients that is valid whichever they are.

    Args:
        a: Scores of N clients with model A.
        b: Scores with model B on the same rows.
        gains: Gains of B over A.
        alpha: Probability that the interval misses, half of it at each end.
        independent: Whether no two clients share a test row.
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
    """Find the largest δ for which min μ^B > min μ^A + δ is significant at level α/2.

    Its complement says that some client i has μ_i^B − δ ≤ μ_j^A for all j. It must be rejected for every i, each at
    level α/2: either for j = i by i's own rows, paired, or by i's rows with B and the others' rows with A, each at
    level α/4.
    """
    low, high, rivals = -reach, reach, Rivals.of(a, alpha)
    for _ in range(STEPS):
        middle = (low + high) / 2
        # Clients for which the paired rows do not reject it. The negation includes NaN bounds, which reject nothing.
        undecided = np.flatnonzero(~(paired > middle))
        is_significant = not len(undecided) or bool(
            (rivals.beat(b, undecided, middle, independent=independent) <= alpha / 4).all()
        )
        low, high = (middle, high) if is_significant else (low, middle)
    # If no δ that was searched is significant, the difference of unbounded scores may be any.
    return low if low > -reach or np.isfinite(a.range[0]) else -np.inf
