"""Byzantine-robust aggregation rules, applied to a cohort's vectors before the algorithm weights and sums them.

The algorithms here do more with clients' vectors than average them: λ weights the vectors, and each h_i or c_i follows
one of them. A rule therefore returns a cohort of vectors that can safely be summed with any weights, not a single
vector: the rule's centre plus each client's deviation from it, limited by the rule. Under equal weights their mean is
the centre, which is the rule as published. An algorithm stores the same vectors that it sums, so invariants such as
c = mean_i h_i remain true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from drfl.core import checks
from drfl.resilience.guards import ServerProbe


class Aggregator(Protocol):
    """A robust aggregation rule for clients' implied gradients: a frozen dataclass.

    Every rule is scale-equivariant: multiplying all vectors by a constant multiplies its results by that constant.
    """

    @property
    def min_vectors(self) -> int:
        """Smallest number of vectors the rule can judge; with fewer, no reply is used."""
        ...

    @property
    def memory(self) -> float | None:
        """Momentum of the mean of earlier rounds; None if the rule does not use one."""
        ...

    def expected(self, clients: Tensor, w: Tensor, mean: Tensor) -> Tensor | None:
        """Return the expected vectors, (d,) or (k, d); None if the rule has no expectation.

        Args:
            clients: (k,) Clients that the vectors come from.
            w: (d,) Model at which the vectors were computed.
            mean: (d,) Mean of earlier rounds, if the rule has a memory.
        """
        ...

    def keep(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """Select the clients whose vectors are used, (k,) bool; the others count as missing.

        Args:
            U: (k, d) Finite vectors, k ≥ ``min_vectors``.
            centre: Result of :meth:`expected`.
        """
        ...

    def bound(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """Return the vectors to use, (k, d).

        Args:
            U: (k, d) Vectors of the selected clients, k ≥ 1.
            centre: Result of :meth:`expected` for the same clients.
        """
        ...


class _Rule:
    """Base of the rules: selects all clients, changes nothing and has no memory."""

    @property
    def min_vectors(self) -> int:
        """Three, because the median of two vectors would be one of them."""
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
    """Return the lengths (k,) in float64, because the squares of float32 values could overflow."""
    return torch.linalg.vector_norm(U, dim=1, dtype=torch.float64)


def _shortened(U: Tensor, radius: Tensor) -> Tensor:
    """Shorten vectors (k, d) to at most the radius, keeping their directions."""
    norms = _norms(U)
    # If nothing is cut, the factor is exactly 1, and the vector remains bit-identical.
    return torch.where(norms > radius, radius / norms, 1).to(U)[:, None] * U


def _coordinate_median(U: Tensor) -> Tensor:
    """Return the median (d,); for even k the mean of the middle two, because torch's lower one is biased downwards."""
    ordered, k = U.sort(0).values, len(U)
    return (ordered[(k - 1) // 2] + ordered[k // 2]) / 2


def _around(centre: Tensor, deviations: Tensor) -> Tensor:
    """Add deviations (k, d), less their mean, to the centre (d,)."""
    return centre + (deviations - deviations.mean(0))


@dataclass(frozen=True)
class MedianClip(_Rule):
    """Shortens long vectors to ``factor`` times the median length.

    This is the gentlest rule. It changes no directions, so a client that merely differs from the others is preserved.
    But f of k clients that push in the same direction still move the mean by f/k of the median length in every round.

    Args:
        factor: Maximum length as a multiple of the median length, > 0.

    Raises:
        InputError: If the factor is out of range.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("factor", self.factor)

    def bound(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """See :class:`drfl.resilience.Aggregator`."""
        # Use the median, because malicious clients could raise a mean length at will.
        return _shortened(U, self.factor * _norms(U).median())


@dataclass(frozen=True)
class TrimmedMean(_Rule):
    """Replaces the f largest and f smallest values in each coordinate (trimmed mean, Yin et al. 2018).

    The centre is the mean of the remaining values. Each trimmed value is replaced by the nearest remaining one.

    Args:
        f: Number of values trimmed at each end, at least 1.

    Raises:
        InputError: If f is out of range.
    """

    f: int = 1

    def __post_init__(self) -> None:
        checks.integer("f", self.f)

    @property
    def min_vectors(self) -> int:
        """2f + 1, so that one value remains."""
        return 2 * self.f + 1

    def bound(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """See :class:`drfl.resilience.Aggregator`."""
        # Trim each coordinate separately, because different clients may be extreme in each.
        inner = U.sort(0).values[self.f : len(U) - self.f]
        return _around(inner.mean(0), U.clamp(inner[0], inner[-1]))


@dataclass(frozen=True)
class CoordinateMedian(_Rule):
    """Replaces every client's vector by the coordinate-wise median (Yin et al. 2018).

    No information about single clients remains, so λ no longer affects the model and all drift terms are equal.
    """

    def bound(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """See :class:`drfl.resilience.Aggregator`."""
        return _coordinate_median(U).repeat(len(U), 1)


@dataclass(frozen=True)
class GeometricMedian(_Rule):
    """Uses the geometric median (Pillutla et al. 2022) as the centre and limits the distances from it.

    The geometric median minimises the sum of distances to all vectors. Distances from it are cut to their median.

    Args:
        iterations: Maximum number of iterations of the smoothed Weiszfeld algorithm.
        tolerance: Relative change at which the iteration stops.

    Raises:
        InputError: If a value is out of range.
    """

    iterations: int = 100
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        checks.integer("iterations", self.iterations)
        checks.positive("tolerance", self.tolerance)

    def bound(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """See :class:`drfl.resilience.Aggregator`."""
        V = U.double()
        z = _coordinate_median(V)
        # If the estimate coincides with a vector, its weight would be infinite, so distances are clamped from below.
        smallest = 1e-9 * _norms(V - z).median()
        for _ in range(self.iterations):
            weights = 1 / _norms(V - z).clamp(min=smallest)
            if not bool(torch.isfinite(weights).all()):
                break  # all vectors are equal
            before, z = z, weights / weights.sum() @ V
            if (z - before).norm() <= self.tolerance * (V - z).norm(dim=1).median():
                break
        middle = z.to(U)
        deviations = U - middle
        return _around(middle, _shortened(deviations, _norms(deviations).median()))


@dataclass(frozen=True)
class Krum(_Rule):
    """Uses only vectors that are close to most others (Krum and multi-Krum, Blanchard et al. 2017).

    The score of a vector is the sum of its squared distances to the k − f − 2 nearest others. The ``used`` vectors with
    the smallest scores are used; 1 gives Krum, a larger number multi-Krum. Honest clients whose data differ are
    excluded just like malicious ones.

    Args:
        f: Number of Byzantine clients to withstand, at least 1.
        used: Number of vectors to use; 0 = k − f.

    Raises:
        InputError: If a value is out of range.
    """

    f: int = 1
    used: int = 0

    def __post_init__(self) -> None:
        checks.integer("f", self.f)
        checks.integer("used", self.used, low=0)

    @property
    def min_vectors(self) -> int:
        """2f + 3, as its theorem requires."""
        return 2 * self.f + 3

    def keep(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """See :class:`drfl.resilience.Aggregator`."""
        k = len(U)
        # Compute distances from differences: the shortcut via products loses small distances between long vectors.
        squared = torch.cdist(U.double(), U.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
        scores = squared.sort(1).values[:, 1 : k - self.f - 1].sum(1)  # the first is the distance to itself, 0
        # Use a stable sort, so that the order of equal scores does not depend on the sorting algorithm.
        best = scores.argsort(stable=True)[: self.used or k - self.f]
        return torch.zeros(k, dtype=torch.bool).index_fill(0, best.cpu(), True)


@dataclass(frozen=True)
class CentredClip(_Rule):
    """Limits distances from the expected vector (centred clipping, Karimireddy et al. 2021).

    The expected vector is a running mean of earlier rounds with momentum. A client that pushes in the same direction
    every round is therefore not judged to be farther away because of that.

    Args:
        factor: Radius as a multiple of the median distance, > 0.
        momentum: Momentum of the mean, in [0, 1): v ← momentum·v + (1 − momentum)·mean.

    Raises:
        InputError: If a value is out of range.
    """

    factor: float = 1.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        checks.positive("factor", self.factor)
        checks.decay("momentum", self.momentum)

    @property
    def memory(self) -> float:
        """The momentum of the running mean."""
        return self.momentum

    def expected(self, clients: Tensor, w: Tensor, mean: Tensor) -> Tensor:
        """Return the mean of earlier rounds."""
        return mean

    def bound(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """See :class:`drfl.resilience.Aggregator`."""
        deviations = U if centre is None else U - centre
        # The radius is relative to the median distance, so that it need not be tuned to the size of the gradients.
        cut = _shortened(deviations, self.factor * _norms(deviations).median())
        return cut if centre is None else centre + cut


@dataclass(frozen=True)
class ProbeCosine(_Rule):
    """Uses only vectors that point in a similar direction to the client's gradient on server-held rows.

    Longer vectors are shortened. This is the test of FLTrust (Cao et al. 2021) with a small data set per client in
    place of one for all. Each client is judged by its rows and not by the other clients, so an honest outlier is not
    excluded, and few clients are enough. The rule cannot detect a client whose server-held rows are false too.

    Args:
        probe: Holds the rows; see :class:`drfl.resilience.ServerProbe` for the consequences.
        cosine: Smallest cosine between a vector and the gradient at which the vector is used, in [0, 1]. With few rows,
            noise turns honest vectors too, especially if a client's gradient is small.
        length: Maximum length of a vector as a multiple of the gradient's, > 0.

    Raises:
        InputError: If a value is out of range.
    """

    probe: ServerProbe
    cosine: float = 0.2
    length: float = 2.0

    def __post_init__(self) -> None:
        checks.fraction("cosine", self.cosine)
        checks.positive("length", self.length)

    @property
    def min_vectors(self) -> int:
        """One, because no client is judged by the others."""
        return 1

    def expected(self, clients: Tensor, w: Tensor, mean: Tensor) -> Tensor:
        """Return the gradients at w on the server-held rows, (k, d)."""
        return self.probe.gradients(w, clients)

    def keep(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """See :class:`drfl.resilience.Aggregator`."""
        assert centre is not None
        return (torch.nn.functional.cosine_similarity(U, centre, dim=1) >= self.cosine).cpu()

    def bound(self, U: Tensor, centre: Tensor | None = None) -> Tensor:
        """See :class:`drfl.resilience.Aggregator`."""
        assert centre is not None
        return _shortened(U, self.length * _norms(centre))
