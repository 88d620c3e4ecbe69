"""Test rows as evidence about each client's true score: hypothesis tests and confidence bounds.

A client's true score μ_i is its mean over the population that its test rows come from. Each class here provides the
same four methods for all clients at once, and larger scores are better in all of them. The p-values are valid for every
n_i, except those of :class:`RealScores` and :class:`DeLongScores`, which are approximate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

HALVINGS = 60
"""Bisection steps on an interval of length 1, enough for the last digit of a float64."""

NEWTON = 6
"""Newton steps for the number of pseudo-rows."""

TINY, LARGE = 1e-12, 1e12
"""Smallest and largest number of pseudo-rows."""


class Scores(Protocol):
    """N clients' test results; ``theta`` and ``alpha`` broadcast against (N,)."""

    @property
    def n(self) -> Floats:
        """(N,) test rows."""
        ...

    @property
    def values(self) -> Floats:
        """(N,) measured scores; NaN for a client without a score."""
        ...

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest possible true score."""
        ...

    def above(self, theta: Floats | float) -> Floats:
        """Return p-values of the hypotheses μ_i ≤ θ; small if client i is better than θ."""
        ...

    def below(self, theta: Floats | float) -> Floats:
        """Return p-values of the hypotheses μ_i ≥ θ; small if client i is worse than θ."""
        ...

    def lower(self, alpha: Floats | float) -> Floats:
        """Return lower bounds: μ_i is below its bound with probability at most α."""
        ...

    def upper(self, alpha: Floats | float) -> Floats:
        """Return upper bounds: μ_i is above its bound with probability at most α."""
        ...


class MirroredScores(ABC):
    """Scores in [0, 1] whose upper bounds and p-values of :meth:`below` are those of 1 − score at the other end."""

    range = (0.0, 1.0)

    @abstractmethod
    def above(self, theta: Floats | float) -> Floats:
        """See :class:`Scores`."""

    @abstractmethod
    def lower(self, alpha: Floats | float) -> Floats:
        """See :class:`Scores`."""

    @abstractmethod
    def mirrored(self) -> MirroredScores:
        """Return the scores 1 − score."""

    def below(self, theta: Floats | float) -> Floats:
        """Return the p-values of 1 − score above 1 − θ."""
        return self.mirrored().above(1 - np.asarray(theta, dtype=np.float64))

    def upper(self, alpha: Floats | float) -> Floats:
        """Return one minus the lower bounds of 1 − score."""
        return 1 - self.mirrored().lower(alpha)


@dataclass(frozen=True, eq=False)
class BinaryScores:
    """Right or wrong in every row, with exact binomial tails (Clopper and Pearson 1934).

    Args:
        n: (N,) Test rows, at least 0. They need not be whole: an effective number has the variance of another estimate.
        count: (N,) Right answers.
    """

    n: Floats
    count: Floats
    range = (0.0, 1.0)

    @property
    def values(self) -> Floats:
        """(N,) shares of right answers."""
        return _quotient(self.count, self.n)

    def above(self, theta: Floats | float) -> Floats:
        """Return P(B(n_i, θ) ≥ count_i)."""
        # betainc is NaN if its first argument is 0. Without a right answer the p-value is 1.
        count = np.where(self.count > 0, self.count, 1.0)
        return np.where(self.count > 0, special.betainc(count, self.n - self.count + 1, theta), 1.0)

    def below(self, theta: Floats | float) -> Floats:
        """Return P(B(n_i, θ) ≤ count_i)."""
        # betaincc computes the tail directly: 1 − betainc would lose the digits of small p-values.
        wrong = self.n - self.count
        return np.where(wrong > 0, special.betaincc(self.count + 1, np.where(wrong > 0, wrong, 1.0), theta), 1.0)

    def lower(self, alpha: Floats | float) -> Floats:
        """Return the lower Clopper–Pearson bounds."""
        bound = special.betaincinv(np.where(self.count > 0, self.count, 1.0), self.n - self.count + 1, alpha)
        return np.where(self.count > 0, bound, 0.0)

    def upper(self, alpha: Floats | float) -> Floats:
        """Return the upper Clopper–Pearson bounds."""
        wrong = self.n - self.count
        return np.where(wrong > 0, special.betainccinv(self.count + 1, np.where(wrong > 0, wrong, 1.0), alpha), 1.0)


@dataclass(frozen=True, eq=False)
class BoundedScores(MirroredScores):
    """A number in [0, 1] for every row, known by its sum and its sum of squares.

    Two bounds are combined, each at level α/2. Hoeffding's bound with the relative entropy (Hoeffding 1963, Theorem 1)
    uses only the mean. Maurer and Pontil's bound (2009, Theorem 4) is tighter if the rows vary little.

    Args:
        n: (N,) Test rows, at least 0.
        total: (N,) Sums over rows.
        squares: (N,) Sums of squares.
    """

    n: Floats
    total: Floats
    squares: Floats

    @property
    def values(self) -> Floats:
        """(N,) means."""
        return _quotient(self.total, self.n)

    def above(self, theta: Floats | float) -> Floats:
        """Return twice the smaller p-value of the two bounds."""
        mean, theta = np.nan_to_num(self.values), np.asarray(theta, dtype=np.float64)
        # At level δ, Maurer and Pontil's bound has the distance √(2V/n)·√l + 7/(3(n−1))·l from the mean, with
        # l = ln(2/δ). Solve this quadratic equation in √l for δ.
        a, b = 7 / (3 * np.maximum(1.0, self.n - 1)), np.sqrt(2 * self._variance() / np.maximum(1.0, self.n))
        root = (-b + np.sqrt(b**2 + 4 * a * np.maximum(0.0, mean - theta))) / (2 * a)
        bernstein = np.where(self.n > 1, np.minimum(1.0, 2 * np.exp(-(root**2))), 1.0)
        two = np.minimum(entropy_tail(self.n, mean, theta), bernstein)
        return np.where(mean > theta, np.minimum(1.0, 2 * two), 1.0)

    def lower(self, alpha: Floats | float) -> Floats:
        """Return the larger of the two bounds."""
        mean, half = np.nan_to_num(self.values), np.asarray(alpha, dtype=np.float64) / 2
        log = np.log(2 / half)
        with np.errstate(divide="ignore", invalid="ignore"):
            # Maurer and Pontil's Theorem 4, at α/2.
            bernstein = mean - np.sqrt(2 * self._variance() * log / self.n) - 7 * log / (3 * (self.n - 1))
        return np.fmax(entropy_lower(self.n, mean, half), np.where(self.n > 1, bernstein, 0.0))

    def mirrored(self) -> BoundedScores:
        """Return the scores 1 − score."""
        return BoundedScores(self.n, self.n - self.total, self.n - 2 * self.total + self.squares)

    def _variance(self) -> Floats:
        """Return unbiased variances (N,); 0 for fewer than two rows."""
        spread = self.squares - self.total * np.nan_to_num(self.values)
        return np.where(self.n > 1, np.maximum(0.0, spread) / np.maximum(1.0, self.n - 1), 0.0)


@dataclass(frozen=True, eq=False)
class RankScores(MirroredScores):
    """The area under the ROC curve, known by Mann and Whitney's count.

    The area is a mean over pairings of min(n⁺, n⁻) independent pairs of rows each. Hoeffding's bound applies to it,
    given the number of rows of each class (Hoeffding 1963, Section 5b). It is valid for every distribution of the
    outputs and therefore wide.

    Args:
        positive: (N,) Rows of the positive class.
        negative: (N,) Rows of the negative class.
        pairs: (N,) Pairs in the right order; a tie counts half.
    """

    positive: Floats
    negative: Floats
    pairs: Floats

    @property
    def n(self) -> Floats:
        """(N,) test rows."""
        return self.positive + self.negative

    @property
    def values(self) -> Floats:
        """(N,) areas; NaN if one of the classes has no row."""
        return _quotient(self.pairs, self.positive * self.negative)

    def above(self, theta: Floats | float) -> Floats:
        """Return p-values by Hoeffding's bound."""
        mean, theta = np.nan_to_num(self.values), np.asarray(theta, dtype=np.float64)
        return np.where(mean > theta, entropy_tail(self._independent(), mean, theta), 1.0)

    def lower(self, alpha: Floats | float) -> Floats:
        """Return lower bounds by Hoeffding's inequality."""
        return entropy_lower(self._independent(), np.nan_to_num(self.values), np.asarray(alpha, dtype=np.float64))

    def mirrored(self) -> RankScores:
        """Return the scores 1 − area."""
        return RankScores(self.positive, self.negative, self.positive * self.negative - self.pairs)

    def gain(self, other: RankScores, products: Floats) -> RankScores:
        """Return the scores (1 + d)/2, where d is another model's area on the same rows minus this one's.

        Like an area, (1 + d)/2 is a mean over pairs of numbers in [0, 1].

        Args:
            other: Scores of the other model.
            products: (N, 2) See :func:`drfl.data.row_scores.products`.
        """
        del products  # not used by the distribution-free bound
        # Like an area, (1 + d)/2 is in [0, 1], so the bounds for areas apply.
        pairs = (self.positive * self.negative + other.pairs - self.pairs) / 2
        return RankScores(self.positive, self.negative, pairs)

    def _independent(self) -> Floats:
        # The largest number of pairs of which no two share a row.
        return np.minimum(self.positive, self.negative)


@dataclass(frozen=True, eq=False)
class DeLongScores(RankScores):
    """The area under the ROC curve with DeLong's variance (DeLong, DeLong and Clarke-Pearson 1988).

    A row's placement is the share of the other class's rows that it is ordered correctly with. The area is the mean of
    either class's placements. Its variance is the sum over both classes of the placements' variance divided by the
    number of rows.

    The normal approximation fails for few rows: if placements are rarely far off, few rows do not reveal their
    variance. So the tail at θ is the binomial tail of an effective number of right and wrong answers, the number that
    has the estimated variance, as Korn and Graubard (1998) do for samples with unequal weights. For this, each class
    gets k pseudo-rows. Half of them are as far off as possible on the side of θ, or they vary as right and wrong
    answers do, whichever varies more; k is the likelihood ratio statistic of θ. Agresti and Coull (1998) treat a
    proportion similarly: they add z² rows, half of them wrong. The effective number is at least the number of rows of
    the smaller class, because no area has more variance. Validity rests on simulations, not on a proof: see
    ``evidence/assessment_coverage.py``.

    Args:
        positive: (N,) Rows of the positive class.
        negative: (N,) Rows of the negative class.
        pairs: (N,) Pairs in the right order; a tie counts half.
        positive_squares: (N,) Sums over positive rows of the squared number of ordered pairs that each row is in.
        negative_squares: (N,) The same over negative rows.
    """

    positive_squares: Floats
    negative_squares: Floats

    def above(self, theta: Floats | float) -> Floats:
        """Return the binomial tails at the effective number of answers."""
        theta, area = np.asarray(theta, dtype=np.float64), np.nan_to_num(self.values)
        # Solve k·variance(k) = 2·binomial·entropy by Newton's method from above. Each class alone gives an upper bound
        # of k.
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
        """Find the θ at which the p-value of :meth:`above` is α, by bisection."""
        low, high = np.zeros(np.broadcast_shapes(np.shape(self.positive), np.shape(alpha))), 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            holds = self.above(middle) <= alpha
            low, high = np.where(holds, middle, low), np.where(holds, high, middle)
        return low

    def mirrored(self) -> DeLongScores:
        """Return the scores 1 − area."""
        positive, negative = (
            rows * other**2 - 2 * other * self.pairs + squares for rows, other, squares in self._classes
        )
        return DeLongScores(
            self.positive, self.negative, self.positive * self.negative - self.pairs, positive, negative
        )

    def gain(self, other: RankScores, products: Floats) -> RankScores:
        """Return the scores (1 + d)/2, as :meth:`RankScores.gain` does, with the squares of their placements."""
        whole = super().gain(other, products)
        if not isinstance(other, DeLongScores):
            return whole
        squares = []
        for k, ((rows, others, first), (_, _, second)) in enumerate(zip(self._classes, other._classes, strict=True)):
            change = 2 * others * (other.pairs - self.pairs) + first + second - 2 * products[..., k]
            squares.append((rows * others**2 + change) / 4)
        return DeLongScores(whole.positive, whole.negative, whole.pairs, squares[0], squares[1])

    @property
    def _classes(self) -> tuple[tuple[Floats, Floats, Floats], ...]:
        """For the positive and the negative class: rows, rows of the other class, squares."""
        return (
            (self.positive, self.negative, self.positive_squares),
            (self.negative, self.positive, self.negative_squares),
        )

    def _variance(self, k: Floats, most: Floats) -> tuple[Floats, Floats]:
        """Compute DeLong's variance with k pseudo-rows per class of variance ``most``, and its derivative in k."""
        total, slope = np.zeros_like(k), np.zeros_like(k)
        for rows, spread in self._spreads:
            free = rows - 1 + k
            part = (spread + k * most) / free
            total, slope = total + part / rows, slope + (most - part) / free / rows
        return total, slope

    @cached_property  # the bisection for a bound needs it hundreds of times
    def _spreads(self) -> list[tuple[Floats, Floats]]:
        """For the positive and the negative class: rows, at least 1, and the squared distances of their placements."""
        mean, spreads = np.nan_to_num(self.values), []
        for count, other, squares in self._classes:
            rows = np.maximum(1.0, count)
            spreads.append((rows, np.maximum(0.0, squares / np.maximum(1.0, other) ** 2 - rows * mean**2)))
        return spreads


@dataclass(frozen=True, eq=False)
class RealScores:
    """An unbounded number for every row, with Student's t, which is **approximate**.

    For unbounded rows, no interval is valid for every distribution (Bahadur and Savage 1956). With few rows, or with
    one row far from the others, the interval can be too short.

    If all n rows of a client have the same value x, their spread cannot be estimated. With confidence 1 − α, at most a
    share q = 1 − α^(1/n) of its population then has other values, and its mean is at least x − (x − least)·q if no row
    is below ``least``. The upper bound is analogous. Both are valid for every distribution within the bounds: by
    Markov's inequality, the values x for which the bound is too high have a probability p ≤ α^(1/n) together, and n
    equal ones p^n ≤ α.

    Args:
        n: (N,) Test rows, at least 0.
        total: (N,) Sums over rows.
        squares: (N,) Sums of squares.
        bounds: Smallest and largest possible value of a row. They are used only for clients whose rows are all equal.
    """

    n: Floats
    total: Floats
    squares: Floats
    bounds: tuple[float, float] = (-np.inf, np.inf)
    range = (-np.inf, np.inf)

    @property
    def values(self) -> Floats:
        """(N,) means."""
        return _quotient(self.total, self.n)

    def above(self, theta: Floats | float) -> Floats:
        """Return p-values of the t-test, or those of the bound for equal rows; 1 for fewer than two rows."""
        with np.errstate(divide="ignore", invalid="ignore"):
            # 0/0 is NaN, which counts as p = 1 below.
            t = (self.values - theta) / self._error()
            share = np.clip((theta - self.bounds[0]) / (self.values - self.bounds[0]), 0, 1)
        p = np.where(self._equal, share**self.n, special.stdtr(np.maximum(1.0, self.n - 1), -t))
        return np.where(self.n > 1, np.nan_to_num(p, nan=1.0), 1.0)

    def below(self, theta: Floats | float) -> Floats:
        """Return p-values of the t-test, or those of the bound for equal rows; 1 for fewer than two rows."""
        return self.mirrored().above(-np.asarray(theta, dtype=np.float64))

    def lower(self, alpha: Floats | float) -> Floats:
        """Return lower ends of the t-interval, or the bound for equal rows; −∞ for fewer than two rows."""
        alpha, mean, n = np.asarray(alpha, dtype=np.float64), np.nan_to_num(self.values), np.maximum(1.0, self.n)
        with np.errstate(invalid="ignore"):
            # ∞·0 is NaN for clients whose rows are all equal, which have the second bound.
            student = mean - special.stdtrit(np.maximum(1.0, self.n - 1), 1 - alpha) * self._error()
            equal = mean - (mean - self.bounds[0]) * (1 - alpha ** (1 / n))
        return np.where(self.n > 1, np.where(self._equal, equal, student), -np.inf)

    def upper(self, alpha: Floats | float) -> Floats:
        """Return upper ends of the t-interval, or the bound for equal rows; ∞ for fewer than two rows."""
        return -self.mirrored().lower(alpha)

    def mirrored(self) -> RealScores:
        """Return the scores −score."""
        return RealScores(self.n, -self.total, self.squares, (-self.bounds[1], -self.bounds[0]))

    @property
    def _equal(self) -> NDArray[np.bool_]:
        """(N,) whether all rows of a client are equal."""
        return spreads(self) == 0

    def _error(self) -> Floats:
        return np.sqrt(spreads(self) / np.maximum(1.0, self.n - 1) / np.maximum(1.0, self.n))


S = TypeVar("S", bound=Scores)


def select(scores: S, clients: NDArray[np.intp] | NDArray[np.bool_]) -> S:
    """Return the scores of some clients."""
    parts = {part.name: getattr(scores, part.name) for part in fields(scores)}  # pyright: ignore
    return replace(scores, **{name: x[clients] for name, x in parts.items() if isinstance(x, np.ndarray)})  # pyright: ignore


def spreads(scores: BoundedScores | RealScores) -> Floats:
    """Return (N,) sums over rows of squared deviations from the client's mean; 0 if all rows are equal."""
    spread = scores.squares - scores.total * np.nan_to_num(scores.values)
    # A sum of n equal numbers has a relative error of up to n/2 units in the last place.
    return np.where(spread > 4 * scores.n * np.finfo(np.float64).eps * scores.squares, spread, 0.0)


def _quotient(a: Floats, b: Floats) -> Floats:
    return np.divide(a, b, out=np.full(np.shape(a), np.nan), where=b > 0)


def relative_entropy(a: Floats, b: Floats) -> Floats:
    """Compute kl(a ‖ b) of two Bernoulli distributions."""
    return special.rel_entr(a, b) + special.rel_entr(1 - a, 1 - b)


def entropy_tail(n: Floats, mean: Floats, theta: Floats) -> Floats:
    """Bound P(mean of n rows ≥ ``mean``) for the true mean θ; valid only for mean > θ."""
    return np.exp(-n * relative_entropy(mean, theta))


def entropy_lower(n: Floats, mean: Floats, alpha: Floats) -> Floats:
    """Find the smallest θ ≤ mean with n·kl(mean ‖ θ) ≤ ln(1/α), by bisection; 0 if n is 0."""
    shape = np.broadcast_shapes(np.shape(n), np.shape(alpha))
    # The bound is the outer end of the bracket, where the tail is still at most α.
    outside, inside = np.zeros(shape), np.broadcast_to(mean, shape).astype(np.float64)
    log = -np.log(alpha)
    for _ in range(HALVINGS):
        middle = (outside + inside) / 2
        holds = n * relative_entropy(mean, middle) > log
        outside, inside = np.where(holds, middle, outside), np.where(holds, inside, middle)
    return np.where(n > 0, outside, 0.0)
