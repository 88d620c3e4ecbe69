"""Byzantine-robust aggregation: what is made of a cohort's vectors before the algorithm weighs and sums them.

An algorithm here does more with its clients' vectors than average them: λ weighs them, and h_i or c_i follow each of
them. So a rule does not give one vector in place of a cohort's, but a cohort of vectors that are safe to sum with any
weights: the rule's own centre, and each client's distance from it as far as the rule lets it go. Under equal weights
their mean is the centre, which is the rule as its paper has it; and what an algorithm remembers of a client is what it
summed, so that c = mean_i h_i and its like stay true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from drfl.core import checks
from drfl.resilience.guards import ServerProbe


class Aggregator(Protocol):
    """A rule for what a cohort's clients say of their gradients: a frozen dataclass.

    Every rule is equivariant: vectors in another unit give the same in that unit.
    """

    @property
    def least(self) -> int:
        """Fewest vectors that it can judge. Where fewer come none is used."""
        ...

    @property
    def memory(self) -> float | None:
        """Momentum of the mean of earlier rounds that it goes by; None = it goes by none."""
        ...

    def expected(self, clients: Tensor, w: Tensor, mean: Tensor) -> Tensor | None:
        """Where the vectors are to be, (d,) or (k, d); None for a rule that has no idea.

        Args:
            clients: (k,) whose they are.
            w: (d,) the model at which they were found.
            mean: (d,) of earlier rounds, where the rule has a memory.
        """
        ...

    def keep(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """(k,) bool, whose are used; the others count as missing.

        Args:
            U: (k, d), k ≥ ``least``, finite.
            centre: what :meth:`expected` gave.
        """
        ...

    def bound(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """(k, d) the vectors as they are to be used.

        Args:
            U: (k, d) of the clients that were kept, k ≥ 1.
            centre: of the same.
        """
        ...


class _Rule:
    """A rule that keeps everybody, changes nothing and remembers nothing, for others to begin with."""

    @property
    def least(self) -> int:
        """Three: of two the median is one of them."""
        return 3

    @property
    def memory(self) -> float | None:
        return None

    def expected(self, clients: Tensor, w: Tensor, mean: Tensor) -> Tensor | None:
        return None

    def keep(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        return torch.ones(len(U), dtype=torch.bool)

    def bound(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        return U


def _norms(U: Tensor) -> Tensor:
    """(k,) float64, so that the squares of a float32 do not overflow."""
    return torch.linalg.vector_norm(U, dim=1, dtype=torch.float64)


def _shortened(U: Tensor, radius: Tensor) -> Tensor:
    """(k, d) vectors no longer than the radius, in their directions."""
    norms = _norms(U)
    # If nothing is cut the factor is exactly 1, and the vector stays bit-identical.
    return torch.where(norms > radius, radius / norms, 1).to(U)[:, None] * U


def _coordinate_median(U: Tensor) -> Tensor:
    """(d,) the mean of the two middle ones of an even number: torch's lower one would push all coordinates one way."""
    ordered, k = U.sort(0).values, len(U)
    return (ordered[(k - 1) // 2] + ordered[k // 2]) / 2


def _around(centre: Tensor, away: Tensor) -> Tensor:
    """The centre (d,) and distances from it (k, d), less their mean."""
    return centre + (away - away.mean(0))


@dataclass(frozen=True)
class MedianClip(_Rule):
    """Longer vectors are shortened to ``factor`` times the median length.

    The gentlest rule: directions stay, and so does a client that is merely different. f clients of k that push the same
    way still move the mean by f/k of the median length in every round.

    Args:
        factor: > 0.

    Raises:
        InputError: the factor is out of range.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("factor", self.factor)

    def bound(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """See :class:`drfl.resilience.Aggregator`."""
        return _shortened(U, self.factor * _norms(U).median())


@dataclass(frozen=True)
class TrimmedMean(_Rule):
    """In each coordinate the f largest and the f smallest values are not believed (Yin et al. 2018).

    The centre is the mean of the others; the trimmed values count as the nearest of these.

    Args:
        f: at each end, at least 1.

    Raises:
        InputError: f is out of range.
    """

    f: int = 1

    def __post_init__(self) -> None:
        checks.whole("f", self.f)

    @property
    def least(self) -> int:
        """2f + 1: one is left."""
        return 2 * self.f + 1

    def bound(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """See :class:`drfl.resilience.Aggregator`."""
        # Trim each coordinate separately: each may trust different clients.
        inner = U.sort(0).values[self.f : len(U) - self.f]
        return _around(inner.mean(0), U.clamp(inner[0], inner[-1]))


@dataclass(frozen=True)
class CoordinateMedian(_Rule):
    """Every client's vector is the coordinate-wise median (Yin et al. 2018).

    Nothing of a single client is left: λ has no say in the model then, and drift terms are all alike.
    """

    def bound(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """See :class:`drfl.resilience.Aggregator`."""
        return _coordinate_median(U).repeat(len(U), 1)


@dataclass(frozen=True)
class GeometricMedian(_Rule):
    """The centre has the least sum of distances to all vectors (Pillutla et al. 2022); distances from it are cut to
    their median.

    Args:
        iterations: of Weiszfeld's algorithm, smoothed, at most.
        tolerance: relative change at which it stops.

    Raises:
        InputError: a value is out of range.
    """

    iterations: int = 100
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        checks.whole("iterations", self.iterations)
        checks.positive("tolerance", self.tolerance)

    def bound(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """See :class:`drfl.resilience.Aggregator`."""
        V = U.double()
        z = _coordinate_median(V)
        # A vector that the estimate falls on would have weight ∞: distances count as no less than this.
        least = 1e-9 * _norms(V - z).median()
        for _ in range(self.iterations):
            weights = 1 / _norms(V - z).clamp(min=least)
            if not bool(torch.isfinite(weights).all()):
                break  # all vectors are equal
            before, z = z, weights / weights.sum() @ V
            if (z - before).norm() <= self.tolerance * (V - z).norm(dim=1).median():
                break
        middle = z.to(U)
        away = U - middle
        return _around(middle, _shortened(away, _norms(away).median()))


@dataclass(frozen=True)
class Krum(_Rule):
    """Only the vectors that lie close to most others are used (Blanchard et al. 2017).

    A vector's score is the sum of its squared distances to the k − f − 2 nearest others; the ``used`` with the smallest
    scores are used. With one it is Krum, with more multi-Krum. It is hard on honest clients with other data, which are
    left out like false ones.

    Args:
        f: Byzantine clients that it is to withstand, at least 1.
        used: how many are; 0 = k − f.

    Raises:
        InputError: a value is out of range.
    """

    f: int = 1
    used: int = 0

    def __post_init__(self) -> None:
        checks.whole("f", self.f)
        checks.whole("used", self.used, low=0)

    @property
    def least(self) -> int:
        """2f + 3, as its theorem asks."""
        return 2 * self.f + 3

    def keep(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """See :class:`drfl.resilience.Aggregator`."""
        k = len(U)
        # By differences: the shortcut by products loses small distances between long vectors.
        apart = torch.cdist(U.double(), U.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
        scores = apart.sort(1).values[:, 1 : k - self.f - 1].sum(1)  # the first is its own, 0
        best = scores.argsort(stable=True)[: self.used or k - self.f]
        return torch.zeros(k, dtype=torch.bool).index_fill(0, best.cpu(), True)


@dataclass(frozen=True)
class CentredClip(_Rule):
    """Distances from where the vectors were expected are cut (Karimireddy et al. 2021).

    Expected is the mean of earlier rounds, with momentum, so that a client that pushes the same way in every round is
    not the farther from it for that.

    Args:
        factor: the radius over the median distance, > 0.
        momentum: of the mean, in [0, 1): v ← momentum·v + (1 − momentum)·mean.

    Raises:
        InputError: a value is out of range.
    """

    factor: float = 1.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        checks.positive("factor", self.factor)
        checks.decay("momentum", self.momentum)

    @property
    def memory(self) -> float:
        """The momentum."""
        return self.momentum

    def expected(self, clients: Tensor, w: Tensor, mean: Tensor) -> Tensor:
        """The mean of earlier rounds."""
        return mean

    def bound(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """See :class:`drfl.resilience.Aggregator`."""
        away = U if centre is None else U - centre
        cut = _shortened(away, self.factor * _norms(away).median())
        return cut if centre is None else centre + cut


@dataclass(frozen=True)
class ProbeCosine(_Rule):
    """Only vectors that point the way of the client's own gradient are used, none much longer than that.

    That gradient is found on rows that the server holds of the client. It is FLTrust's test (Cao et al. 2021) with a
    small data set of every client in place of one for all: every client is judged by its own rows and not by the
    others, so that an honest outlier is no liar to it, and few clients are enough. It does not see a client whose rows
    are false as well.

    Args:
        probe: holds the rows; see there for what that means.
        cosine: between a vector and the gradient from which on it is used, in [0, 1]. The noise of few rows turns
            honest vectors too, the more so where a client's gradient is small.
        length: of a vector, at most so many times the gradient's, > 0.

    Raises:
        InputError: a value is out of range.
    """

    probe: ServerProbe
    cosine: float = 0.2
    length: float = 2.0

    def __post_init__(self) -> None:
        checks.fraction("cosine", self.cosine)
        checks.positive("length", self.length)

    @property
    def least(self) -> int:
        """One: nobody is judged by the others."""
        return 1

    def expected(self, clients: Tensor, w: Tensor, mean: Tensor) -> Tensor:
        """(k, d) gradients at w on the held rows."""
        return self.probe.gradients(w, clients)

    def keep(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """See :class:`drfl.resilience.Aggregator`."""
        assert centre is not None
        return (torch.nn.functional.cosine_similarity(U, centre, dim=1) >= self.cosine).cpu()

    def bound(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """See :class:`drfl.resilience.Aggregator`."""
        assert centre is not None
        return _shortened(U, self.length * _norms(centre))
