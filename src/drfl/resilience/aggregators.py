"""Byzantine-robust aggregation: what is made of a cohort's vectors before the algorithm weighs and sums them.

An algorithm here does more with its clients' vectors than average them: λ weighs them, and h_i or c_i follow each of
them. So a rule does not give one vector in place of a cohort's, but a cohort of vectors that are safe to sum with any
weights: the rule's own centre, and each client's distance from it as far as the rule lets it go. Under equal weights
their mean is the centre, which is the rule as its paper has it; and what an algorithm remembers of a client is what it
summed, so that c = mean_i h_i and its like stay true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from drfl import checks
from drfl.resilience.guards import ServerProbe


class Aggregated(NamedTuple):
    """What a rule leaves of k vectors.

    Args:
        kept: (k,) bool; the others count as missing.
        vectors: (k', d) those of the kept, as they are to be used.
    """

    kept: Tensor
    vectors: Tensor


class Aggregator(Protocol):
    """A rule for what a cohort's clients say of their gradients: a frozen dataclass.

    Every rule is equivariant: vectors in another unit, or with the opposite sign, give the same in that unit. Where it
    ``selects``, it leaves clients out and changes nothing else: what it decides on models then holds for whatever came
    with them.
    """

    selects: ClassVar[bool]

    @property
    def memory(self) -> float | None:
        """Momentum of the mean of earlier rounds that it goes by; None = it goes by none."""
        ...

    @property
    def least(self) -> int:
        """Fewest vectors that it can judge. Where fewer come none is used."""
        ...

    def expected(self, clients: Tensor, w: Tensor, mean: Tensor) -> Tensor | None:
        """Where the vectors are to be, (d,) or (k, d); None for a rule that has no idea.

        Args:
            clients: (k,) whose they are.
            w: (d,) the model at which they were found.
            mean: (d,) of earlier rounds, where the rule has a memory.
        """
        ...

    def apply(self, U: Tensor, centre: Tensor | None = None) -> Aggregated:
        """Judge vectors.

        Args:
            U: (k, d), k ≥ ``least``, finite.
            centre: what :meth:`expected` gave.
        """
        ...


class _Rule:
    """What most rules have in common."""

    selects: ClassVar[bool] = False

    @property
    def memory(self) -> float | None:
        """None."""
        return None

    def expected(self, clients: Tensor, w: Tensor, mean: Tensor) -> Tensor | None:
        """None."""
        return None


def _all(vectors: Tensor) -> Aggregated:
    return Aggregated(torch.ones(len(vectors), dtype=torch.bool), vectors)


def _norms(U: Tensor) -> Tensor:
    """(k,) float64, so that the squares of a float32 do not overflow."""
    return torch.linalg.vector_norm(U, dim=1, dtype=torch.float64)


def _shortened(U: Tensor, radius: Tensor) -> Tensor:
    """(k, d) vectors no longer than the radius, in their directions."""
    norms = _norms(U)
    return torch.where(norms > radius, radius / norms, 1).to(U)[:, None] * U


def _coordinate_median(U: Tensor) -> Tensor:
    """(d,) the mean of the two middle ones of an even number: torch's lower one would push all coordinates one way."""
    ordered, k = U.sort(0).values, len(U)
    return (ordered[(k - 1) // 2] + ordered[k // 2]) / 2


def _near(U: Tensor, centre: Tensor | None, factor: float) -> Aggregated:
    """Distances from the centre, (d,) or (k, d), cut to ``factor`` times their median; None = 0."""
    away = U if centre is None else U - centre
    cut = _shortened(away, factor * _norms(away).median())
    return _all(cut if centre is None else centre + cut)


def _around(centre: Tensor, away: Tensor) -> Aggregated:
    """The centre (d,) and distances from it (k, d), less their mean."""
    return _all(centre + (away - away.mean(0)))


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

    @property
    def least(self) -> int:
        """Three: of two the median is one of them."""
        return 3

    def apply(self, U: Tensor, centre: Tensor | None = None) -> Aggregated:
        """See :class:`drfl.resilience.Aggregator`."""
        return _all(_shortened(U, self.factor * _norms(U).median()))


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

    def apply(self, U: Tensor, centre: Tensor | None = None) -> Aggregated:
        """See :class:`drfl.resilience.Aggregator`."""
        inner = U.sort(0).values[self.f : len(U) - self.f]
        return _around(inner.mean(0), U.clamp(inner[0], inner[-1]))


@dataclass(frozen=True)
class CoordinateMedian(_Rule):
    """Every client's vector is the coordinate-wise median (Yin et al. 2018).

    Nothing of a single client is left: λ has no say in the model then, and drift terms are all alike.
    """

    @property
    def least(self) -> int:
        """Three."""
        return 3

    def apply(self, U: Tensor, centre: Tensor | None = None) -> Aggregated:
        """See :class:`drfl.resilience.Aggregator`."""
        return _all(_coordinate_median(U).repeat(len(U), 1))


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

    @property
    def least(self) -> int:
        """Three: between two every point will do."""
        return 3

    def apply(self, U: Tensor, centre: Tensor | None = None) -> Aggregated:
        """See :class:`drfl.resilience.Aggregator`."""
        middle = self._median(U.double())
        away = U - middle.to(U)
        return _around(middle.to(U), _shortened(away, _norms(away).median()))

    def _median(self, U: Tensor) -> Tensor:
        z = _coordinate_median(U)
        # A vector that the estimate falls on would have weight ∞: distances count as no less than this.
        least = 1e-9 * _norms(U - z).median()
        for _ in range(self.iterations):
            weights = 1 / _norms(U - z).clamp(min=least)
            if not bool(torch.isfinite(weights).all()):
                return z  # all vectors are one
            before, z = z, weights / weights.sum() @ U
            if (z - before).norm() <= self.tolerance * (U - z).norm(dim=1).median():
                break
        return z


@dataclass(frozen=True)
class Krum(_Rule):
    """Only the vectors that lie close to most others are used (Blanchard et al. 2017).

    A vector's score is the sum of its squared distances to the k − f − 2 nearest others; the ``keep`` with the smallest
    scores are used. With one it is Krum, with more multi-Krum. It is hard on honest clients with other data, which are
    left out like false ones.

    Args:
        f: Byzantine clients that it is to withstand, at least 1.
        keep: how many are used; 0 = k − f.

    Raises:
        InputError: a value is out of range.
    """

    f: int = 1
    keep: int = 0
    selects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.whole("f", self.f)
        checks.whole("keep", self.keep, low=0)

    @property
    def least(self) -> int:
        """2f + 3, as its theorem asks."""
        return 2 * self.f + 3

    def apply(self, U: Tensor, centre: Tensor | None = None) -> Aggregated:
        """See :class:`drfl.resilience.Aggregator`."""
        k = len(U)
        # By differences: the shortcut by products loses small distances between long vectors.
        apart = torch.cdist(U.double(), U.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
        scores = apart.sort(1).values[:, 1 : k - self.f - 1].sum(1)  # the first is its own, 0
        best = scores.argsort(stable=True)[: self.keep or k - self.f]
        kept = torch.zeros(k, dtype=torch.bool).index_fill(0, best.cpu(), True)
        return Aggregated(kept, U[kept.to(U.device)])


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
        checks.fraction("momentum", self.momentum)
        checks.positive("1 - momentum", 1 - self.momentum)

    @property
    def memory(self) -> float:
        """The momentum."""
        return self.momentum

    def expected(self, clients: Tensor, w: Tensor, mean: Tensor) -> Tensor:
        """The mean of earlier rounds."""
        return mean

    @property
    def least(self) -> int:
        """Three: of two the median distance is one of them."""
        return 3

    def apply(self, U: Tensor, centre: Tensor | None = None) -> Aggregated:
        """See :class:`drfl.resilience.Aggregator`."""
        return _near(U, centre, self.factor)


@dataclass(frozen=True)
class ProbeClip(_Rule):
    """Distances from the gradient on rows that the server holds of each client are cut.

    Every client is judged by its own rows and not by the others, so that an honest outlier is no liar to it, and few
    clients are enough. The radius is the median distance, which the noise of the held rows makes. What a client may
    still do is to be as far from its gradient as an ordinary one.

    Args:
        probe: holds the rows; see there for what that means.
        factor: the radius over the median distance, > 0.

    Raises:
        InputError: the factor is out of range.
    """

    probe: ServerProbe
    factor: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("factor", self.factor)

    @property
    def least(self) -> int:
        """Three: of two the median distance is one of them."""
        return 3

    def expected(self, clients: Tensor, w: Tensor, mean: Tensor) -> Tensor:
        """(k, d) gradients at w on the held rows."""
        return self.probe.gradients(w, clients)

    def apply(self, U: Tensor, centre: Tensor | None = None) -> Aggregated:
        """See :class:`drfl.resilience.Aggregator`."""
        return _near(U, centre, self.factor)
