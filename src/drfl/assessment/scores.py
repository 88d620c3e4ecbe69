"""What test rows say of each client's true score: tests that it is above or below a value, and their inversion.

A client's true score μ_i is the mean over the population that its test rows were drawn from. Every class here answers
the same four questions for all clients at once; larger is better in all of them. The p-values hold whatever n_i, except
those of :class:`RealScores` and :class:`DeLongScores`, which are approximate.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

HALVINGS = 60
"""Of an interval of length 1, down to the last digit of a float64."""

NEWTON = 6
"""Steps towards a number of pseudo-rows."""

TINY, LARGE = 1e-12, 1e12
"""No fewer pseudo-rows, and no more."""


class Scores(Protocol):
    """N clients' test results; ``theta`` and ``alpha`` broadcast against (N,)."""

    @property
    def n(self) -> Floats:
        """(N,) test rows."""
        ...

    @property
    def values(self) -> Floats:
        """(N,) the measured scores; NaN where a client has none."""
        ...

    @property
    def range(self) -> tuple[float, float]:
        """Between which numbers a true score lies."""
        ...

    def above(self, theta: Floats | float) -> Floats:
        """p-values of the hypotheses μ_i ≤ θ: small where client i is better than θ."""
        ...

    def below(self, theta: Floats | float) -> Floats:
        """p-values of the hypotheses μ_i ≥ θ: small where client i is worse than θ."""
        ...

    def lower(self, alpha: Floats | float) -> Floats:
        """Bounds that μ_i is below with probability at most α."""
        ...

    def upper(self, alpha: Floats | float) -> Floats:
        """Bounds that μ_i is above with probability at most α."""
        ...


@dataclass(frozen=True, eq=False)
class BinaryScores:
    """Right or wrong in every row: exact binomial tails (Clopper, Pearson 1934).

    Args:
        n: (N,) test rows, ≥ 0; not whole where they stand for an estimate with as much variance.
        count: (N,) right answers.
    """

    n: Floats
    count: Floats
    range = (0.0, 1.0)

    @property
    def values(self) -> Floats:
        """(N,) shares of right answers."""
        return _quotient(self.count, self.n)

    def above(self, theta: Floats | float) -> Floats:
        """P(B(n_i, θ) ≥ count_i)."""
        # betainc is nan where its first argument is 0: no right answer speaks for nothing.
        count = np.where(self.count > 0, self.count, 1.0)
        return np.where(self.count > 0, special.betainc(count, self.n - self.count + 1, theta), 1.0)

    def below(self, theta: Floats | float) -> Floats:
        """P(B(n_i, θ) ≤ count_i)."""
        wrong = self.n - self.count
        return np.where(wrong > 0, special.betaincc(self.count + 1, np.where(wrong > 0, wrong, 1.0), theta), 1.0)

    def lower(self, alpha: Floats | float) -> Floats:
        """Clopper and Pearson's."""
        found = special.betaincinv(np.where(self.count > 0, self.count, 1.0), self.n - self.count + 1, alpha)
        return np.where(self.count > 0, found, 0.0)

    def upper(self, alpha: Floats | float) -> Floats:
        """Clopper and Pearson's."""
        wrong = self.n - self.count
        return np.where(wrong > 0, special.betainccinv(self.count + 1, np.where(wrong > 0, wrong, 1.0), alpha), 1.0)


@dataclass(frozen=True, eq=False)
class BoundedScores:
    """A number in [0, 1] for every row, known by its sum and its sum of squares.

    Two bounds, each at α/2: Hoeffding's with the relative entropy (Hoeffding 1963, Theorem 1), which knows the mean
    alone, and Maurer and Pontil's (2009, Theorem 4), which is better where rows vary little.

    Args:
        n: (N,) test rows, ≥ 0.
        total: (N,) sums over rows.
        squares: (N,) sums of squares.
    """

    n: Floats
    total: Floats
    squares: Floats
    range = (0.0, 1.0)

    @property
    def values(self) -> Floats:
        """(N,) means."""
        return _quotient(self.total, self.n)

    def above(self, theta: Floats | float) -> Floats:
        """Of the smaller of the two bounds, twice."""
        mean, theta = np.nan_to_num(self.values), np.asarray(theta, dtype=np.float64)
        # Maurer and Pontil's bound lies at this distance from the mean for the δ with distance = √(2V/n)·√l +
        # 7/(3(n−1))·l and l = ln(2/δ), a quadratic equation in √l.
        a, b = 7 / (3 * np.maximum(1.0, self.n - 1)), np.sqrt(2 * self._variance() / np.maximum(1.0, self.n))
        root = (-b + np.sqrt(b**2 + 4 * a * np.maximum(0.0, mean - theta))) / (2 * a)
        bernstein = np.where(self.n > 1, np.minimum(1.0, 2 * np.exp(-(root**2))), 1.0)
        two = np.minimum(_entropy_tail(self.n, mean, theta), bernstein)
        return np.where(mean > theta, np.minimum(1.0, 2 * two), 1.0)

    def below(self, theta: Floats | float) -> Floats:
        """Those of 1 − score above 1 − θ."""
        return self.mirrored().above(1 - np.asarray(theta, dtype=np.float64))

    def lower(self, alpha: Floats | float) -> Floats:
        """The larger of the two bounds."""
        mean, half = np.nan_to_num(self.values), np.asarray(alpha, dtype=np.float64) / 2
        log = np.log(2 / half)
        with np.errstate(divide="ignore", invalid="ignore"):
            # Maurer and Pontil's Theorem 4, at α/2.
            bernstein = mean - np.sqrt(2 * self._variance() * log / self.n) - 7 * log / (3 * (self.n - 1))
        return np.fmax(entropy_lower(self.n, mean, half), np.where(self.n > 1, bernstein, 0.0))

    def upper(self, alpha: Floats | float) -> Floats:
        """One minus the lower bounds of 1 − score."""
        return 1 - self.mirrored().lower(alpha)

    def mirrored(self) -> BoundedScores:
        """Of 1 − score."""
        return BoundedScores(self.n, self.n - self.total, self.n - 2 * self.total + self.squares)

    def _variance(self) -> Floats:
        """(N,) unbiased; 0 for fewer than two rows."""
        spread = self.squares - self.total * np.nan_to_num(self.values)
        return np.where(self.n > 1, np.maximum(0.0, spread) / np.maximum(1.0, self.n - 1), 0.0)


@dataclass(frozen=True, eq=False)
class RankScores:
    """The area under the ROC curve, known by Mann and Whitney's count.

    It is a mean over pairings of min(n⁺, n⁻) independent pairs of rows each, to which Hoeffding's bound applies
    (Hoeffding 1963, Section 5b), given how many rows each class has. It holds for every law of the outputs, so it is
    wide.

    Args:
        positive: (N,) rows of the positive class.
        negative: (N,) rows of the other.
        pairs: (N,) pairs in order, ties for half.
    """

    positive: Floats
    negative: Floats
    pairs: Floats
    range = (0.0, 1.0)

    @property
    def n(self) -> Floats:
        """(N,) test rows."""
        return self.positive + self.negative

    @property
    def values(self) -> Floats:
        """(N,) areas; NaN where one of the classes has no row."""
        return _quotient(self.pairs, self.positive * self.negative)

    def above(self, theta: Floats | float) -> Floats:
        """Hoeffding's."""
        mean, theta = np.nan_to_num(self.values), np.asarray(theta, dtype=np.float64)
        return np.where(mean > theta, _entropy_tail(self._independent(), mean, theta), 1.0)

    def below(self, theta: Floats | float) -> Floats:
        """Those of 1 − area above 1 − θ."""
        return self.mirrored().above(1 - np.asarray(theta, dtype=np.float64))

    def lower(self, alpha: Floats | float) -> Floats:
        """Hoeffding's."""
        return entropy_lower(self._independent(), np.nan_to_num(self.values), np.asarray(alpha, dtype=np.float64))

    def upper(self, alpha: Floats | float) -> Floats:
        """One minus the lower bounds of 1 − area."""
        return 1 - self.mirrored().lower(alpha)

    def mirrored(self) -> RankScores:
        """Of 1 − area."""
        return RankScores(self.positive, self.negative, self.positive * self.negative - self.pairs)

    def gain(self, other: RankScores, products: Floats) -> RankScores:
        """Of (1 + d)/2, where d is what another model's area on the same rows is larger by.

        It is a mean over pairs too, of numbers in [0, 1].

        Args:
            other: the other model's.
            products: (N, 2), see :func:`drfl.data.row_scores.products`.
        """
        del products  # which the distribution-free bound makes no use of
        # (1 + d)/2 lies in [0, 1] like an area, so the bounds for areas apply.
        pairs = (self.positive * self.negative + other.pairs - self.pairs) / 2
        return RankScores(self.positive, self.negative, pairs)

    def _independent(self) -> Floats:
        # The number of pairs that share no row.
        return np.minimum(self.positive, self.negative)


@dataclass(frozen=True, eq=False)
class DeLongScores(RankScores):
    """The area under the ROC curve with DeLong's variance (DeLong, DeLong, Clarke-Pearson 1988).

    A row's placement is the share of the other class that it is on the right side of. The area is the mean of either
    class's placements, and its variance the sum of both classes' variances over their rows.

    The normal law fails for few rows: placements that are rarely far off have a variance that few rows do not show. So
    the tail at θ is that of as many right and wrong answers as have the estimated variance, as Korn and Graubard (1998)
    have it for samples of unequal weights. In it either class has k more rows. Half of them are as far off as can be on
    the side of θ, or they vary as right and wrong answers do, whichever is more; k is the likelihood ratio statistic of
    θ. That is how Agresti and Coull (1998) treat a share: by z² more rows, half of them wrong. No fewer answers are
    taken than the smaller class has rows, as no area has more variance. Simulations, not a proof, say that this holds:
    see ``evidence/assessment_coverage.py``.

    Args:
        positive: (N,) rows of the positive class.
        negative: (N,) rows of the other.
        pairs: (N,) pairs in order, ties for half.
        positive_squares: (N,) sums over positive rows of the squares of how many pairs in order each is in.
        negative_squares: (N,) the same over the others.
    """

    positive_squares: Floats
    negative_squares: Floats

    def above(self, theta: Floats | float) -> Floats:
        """The binomial tail of so many answers."""
        theta, area = np.asarray(theta, dtype=np.float64), np.nan_to_num(self.values)
        # k·variance(k) = 2·binomial·entropy, by Newton's steps from above: either class's pseudo-rows alone bound k.
        binomial, most = area * (1 - area), area * np.maximum(1 - area, area / 2)
        entropy = np.where(theta < area, np.minimum(relative_entropy(area, theta), LARGE), 0.0)
        ratio, k = 2 * binomial * entropy, np.full_like(entropy, LARGE)
        for rows, _, _ in self._classes:
            part, free = ratio * np.maximum(1.0, rows), np.maximum(0.0, rows - 1)
            k = np.minimum(k, (part + np.sqrt(part**2 + 4 * most * part * free)) / np.maximum(2 * most, TINY))
        k = np.clip(k, TINY, LARGE)
        for _ in range(NEWTON):
            variance, slope = self._variance(k, most)
            k = np.clip(k - (k * variance - ratio) / np.maximum(variance + k * slope, TINY), TINY, LARGE)
        variance = self._variance(k, most)[0]
        n = np.divide(binomial, variance, out=np.zeros_like(variance), where=variance > 0)
        fewest = self._independent()
        # The variance of an area never exceeds that of `fewest` binary answers.
        n = np.clip(n, fewest, np.maximum(fewest, self.positive * self.negative))
        return BinaryScores(n, n * area).above(theta)

    def lower(self, alpha: Floats | float) -> Floats:
        """Where the p-values of :meth:`above` are α, by bisection."""
        low, high = np.zeros(np.broadcast_shapes(np.shape(self.positive), np.shape(alpha))), 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            holds = self.above(middle) <= alpha
            low, high = np.where(holds, middle, low), np.where(holds, high, middle)
        return low

    def mirrored(self) -> DeLongScores:
        """Of 1 − area."""
        one, two = (rows * other**2 - 2 * other * self.pairs + own for rows, other, own in self._classes)
        return DeLongScores(self.positive, self.negative, self.positive * self.negative - self.pairs, one, two)

    def gain(self, other: RankScores, products: Floats) -> RankScores:
        """See :meth:`RankScores.gain`: the placements are those of (1 + d)/2."""
        whole = super().gain(other, products)
        if not isinstance(other, DeLongScores):
            return whole
        squares = []
        for k, ((rows, others, one), (_, _, two)) in enumerate(zip(self._classes, other._classes, strict=True)):
            change = 2 * others * (other.pairs - self.pairs) + one + two - 2 * products[..., k]
            squares.append((rows * others**2 + change) / 4)
        return DeLongScores(whole.positive, whole.negative, whole.pairs, squares[0], squares[1])

    @property
    def _classes(self) -> tuple[tuple[Floats, Floats, Floats], ...]:
        """Of the positive class and of the other: rows, rows of the other class, squares."""
        return (
            (self.positive, self.negative, self.positive_squares),
            (self.negative, self.positive, self.negative_squares),
        )

    def _variance(self, k: Floats, most: Floats) -> tuple[Floats, Floats]:
        """DeLong's with k pseudo-rows a class, of this variance, and its derivative."""
        mean, total, slope = np.nan_to_num(self.values), np.zeros_like(k), np.zeros_like(k)
        for rows, other, squares in self._classes:
            rows = np.maximum(1.0, rows)
            spread = np.maximum(0.0, squares / np.maximum(1.0, other) ** 2 - rows * mean**2)
            own = (spread + k * most) / (rows - 1 + k)
            total, slope = total + own / rows, slope + (most - own) / (rows - 1 + k) / rows
        return total, slope


@dataclass(frozen=True, eq=False)
class RealScores:
    """A number without bounds for every row: Student's t, which is **approximate**.

    Without bounds on the rows nothing holds for every law (Bahadur, Savage 1956). With few rows, or one that is far
    from the others, the interval can be too short.

    Args:
        n: (N,) test rows, ≥ 0.
        total: (N,) sums over rows.
        squares: (N,) sums of squares.
    """

    n: Floats
    total: Floats
    squares: Floats
    range = (-np.inf, np.inf)

    @property
    def values(self) -> Floats:
        """(N,) means."""
        return _quotient(self.total, self.n)

    def above(self, theta: Floats | float) -> Floats:
        """The t-test's; 1 for fewer than two rows."""
        with np.errstate(divide="ignore", invalid="ignore"):
            # 0/0 is NaN, which counts as p = 1 below.
            t = (self.values - theta) / self._error()
        return np.where(self.n > 1, np.nan_to_num(special.stdtr(np.maximum(1.0, self.n - 1), -t), nan=1.0), 1.0)

    def below(self, theta: Floats | float) -> Floats:
        """The t-test's; 1 for fewer than two rows."""
        return RealScores(self.n, -self.total, self.squares).above(-np.asarray(theta, dtype=np.float64))

    def lower(self, alpha: Floats | float) -> Floats:
        """The t-interval's; −∞ for fewer than two rows."""
        quantile = special.stdtrit(np.maximum(1.0, self.n - 1), 1 - np.asarray(alpha, dtype=np.float64))
        # finite, as rows that are all equal have an error of 0
        quantile = np.minimum(quantile, 1e300)
        return np.where(self.n > 1, np.nan_to_num(self.values) - quantile * self._error(), -np.inf)

    def upper(self, alpha: Floats | float) -> Floats:
        """The t-interval's; ∞ for fewer than two rows."""
        return -RealScores(self.n, -self.total, self.squares).lower(alpha)

    def _error(self) -> Floats:
        spread = np.maximum(0.0, self.squares - self.total * np.nan_to_num(self.values))
        return np.sqrt(spread / np.maximum(1.0, self.n - 1) / np.maximum(1.0, self.n))


S = TypeVar("S", bound=Scores)


def select(scores: S, clients: NDArray[np.intp] | NDArray[np.bool_]) -> S:
    """Those of some clients."""
    return type(scores)(*(getattr(scores, part.name)[clients] for part in fields(scores)))  # pyright: ignore


def _quotient(a: Floats, b: Floats) -> Floats:
    return np.divide(a, b, out=np.full(np.shape(a), np.nan), where=b > 0)


def relative_entropy(a: Floats, b: Floats) -> Floats:
    """kl(a ‖ b) of two Bernoulli laws."""
    return special.rel_entr(a, b) + special.rel_entr(1 - a, 1 - b)


def _entropy_tail(n: Floats, mean: Floats, theta: Floats) -> Floats:
    """P(mean of n ≥ ``mean``) at most, where the true mean is θ; only where mean > θ."""
    return np.exp(-n * relative_entropy(mean, theta))


def entropy_lower(n: Floats, mean: Floats, alpha: Floats) -> Floats:
    """The smallest θ ≤ mean with n·kl(mean ‖ θ) ≤ ln(1/α), by bisection; 0 where n is 0."""
    shape = np.broadcast_shapes(np.shape(n), np.shape(alpha))
    # Kept outside: the bound is the end of the bracket at which the tail is still at most α.
    outside, inside = np.zeros(shape), np.broadcast_to(mean, shape).astype(np.float64)
    log = -np.log(alpha)
    for _ in range(HALVINGS):
        middle = (outside + inside) / 2
        holds = n * relative_entropy(mean, middle) > log
        outside, inside = np.where(holds, middle, outside), np.where(holds, inside, middle)
    return np.where(n > 0, outside, 0.0)
