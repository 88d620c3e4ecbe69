"""The simplex and its subsets with bounds on each weight: CVaR and Box."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from drfl.ambiguity.ambiguity_set import Constraint, WorstCase, finite_vector, on_simplex
from drfl.core import checks
from drfl.core.errors import InputError

SUM_ERROR = 1e-13
"""Error of a projection's sum above which it is corrected."""

PASSES = 6
"""Maximum number of passes to find the support of a projection without sorting."""

MANY = 2**16
"""Number of entries above which unnecessary copies are avoided."""


def onto_simplex(v: Tensor, room: float = 1.0, floor: float = 0.0) -> Tensor:
    """Return floor + max(v_i − θ, 0), where the second term is the projection of v onto {u ≥ 0 : Σ u_i = room}.

    Args:
        v: Vector (N,), float64. Entries may be −∞ if the largest is finite.
        room: Sum of the projection, at least 0.
        floor: Number added to each entry.
    """
    # Shifting v does not change the result. Entries more than `room` below the largest are projected to 0, so clipping
    # them there keeps sums exact for entries of any size.
    # Work in place from here, because allocating a long vector takes longer than summing it.
    v = (v - v.amax()).clamp_(min=-room)
    theta, rows = _threshold(v, room)
    lam = (v if rows is None else v[rows]).sub_(theta).clamp_(min=0)
    # If one entry dominates and very many share the rest, rounding errors of θ add up in the sum.
    for _ in range(3):
        excess = lam.sum() - room
        if abs(excess) <= SUM_ERROR:
            break
        support = lam > 0
        lam.sub_(support.double().mul_(excess / support.count_nonzero())).clamp_(min=0)
    lam = lam.add_(floor) if floor else lam
    return lam if rows is None else v.fill_(floor).index_copy_(0, rows, lam)


def _threshold(v: Tensor, room: float) -> tuple[Tensor, Tensor | None]:
    """Find θ with Σ_i max(v_i − θ, 0) = room for finite v (N,), and indices that include all entries above θ.

    The indices are None if they are all. Entries of v below θ may be raised in place, but not above θ.

    The θ computed from all entries is at most the exact one, so entries below it are not in the support. Without them,
    θ is larger (Michelot 1986). Near uniform weights, one or two passes find the support, and no sorting is needed.
    """
    theta, raised, rows = v.new_zeros(()), 0, None
    for _ in range(PASSES):
        theta = (v.sum() - raised * theta - room) / (v.numel() - raised)
        above = v.numpy() > float(theta)  # NumPy takes a quarter of torch's time, here and below.
        left = int(np.count_nonzero(above))
        if left >= v.numel() - raised:
            return theta, rows
        if not left:  # due to rounding
            break
        # Copying many entries takes longer than raising the others in place to a value that is known.
        if v.numel() > MANY and left > v.numel() // 8:
            v, raised = v.clamp_(min=float(theta)), v.numel() - left
        else:
            indices = torch.from_numpy(np.flatnonzero(above))
            v, raised, rows = v[indices], 0, indices if rows is None else rows[indices]
    ordered = ascending(v).flip(0)
    thetas = (ordered.cumsum(0) - room) / torch.arange(1, v.numel() + 1, dtype=v.dtype)
    # In descending order, each entry is compared with the θ of the entries up to it. Those above are the support (Duchi
    # et al. 2008). The clamp handles rounding, because the largest entry is always in the support.
    return thetas[int((ordered > thetas).sum().clamp(min=1)) - 1], rows


def ascending(v: Tensor) -> Tensor:
    """Sort v (N,) in ascending order with NumPy, which takes a third of torch's time."""
    return torch.from_numpy(np.sort(v.numpy()))


def onto_capped_simplex(v: Tensor, cap: float) -> Tensor:
    """Project v onto {λ : 0 ≤ λ_i ≤ cap, Σ_i λ_i = 1}: λ_i = v_i − θ, clipped to [0, cap].

    The sum decreases with θ and is linear between the 2N breakpoints v_i and v_i − cap. Bisection over the sorted
    breakpoints finds the interval in which it passes 1.

    Args:
        v: Finite vector (N,), float64.
        cap: Upper bound with N·cap ≥ 1, except for rounding.
    """
    n = v.numel()
    if n * cap <= 1 + 1e-12:
        return torch.full_like(v, 1 / n)
    # With K = ⌈1/cap⌉, θ is between v_(K) − cap and v_(K), because the sum is at least 1 at the former and at most 1 at
    # the latter. Shifting by v_(K) and clipping to [−cap, cap] does not change λ, for entries of any size.
    ordered = ascending(v)
    pivot = ordered[n - math.ceil(1 / cap)]
    v, ordered = (v - pivot).clamp(-cap, cap), (ordered - pivot).clamp(-cap, cap)
    points = ordered.numpy()
    lowered, below = points - cap, np.concatenate([[0.0], np.cumsum(points)])

    def is_below_one(theta: float) -> bool:  # whether the sum for θ is below 1
        # In ascending order, entries before `positive` contribute 0, those before `capped` v − θ, and the rest the cap.
        positive, capped = np.searchsorted(points, theta, "right"), np.searchsorted(lowered, theta, "right")
        return below[capped] - below[positive] - (capped - positive) * theta + (n - capped) * cap < 1

    # The sum decreases with θ, so `is_below_one` changes once along each of the two sorted lists. They need no merging.
    last = [(line, bisect_left(line, True, key=is_below_one) - 1) for line in (points, lowered)]
    left = float(max(line[k] for line, k in last if k >= 0))
    full = v - cap > left
    free = (v > left) & ~full
    # From `left` to the next breakpoint, the sum is Σ_free (v_i − θ) + cap·#full. It is computed relative to `left`, so
    # that differences of close numbers remain exact. If no entry is free, θ is the breakpoint.
    theta = left + (float((v[free] - left).sum()) - (1 - cap * int(full.sum()))) / max(int(free.sum()), 1)
    lam = (v - theta).clamp(0, cap)
    # Distribute the rounding error of the sum over the entries that are not at a bound.
    free = (lam > 0) & (lam < cap)
    return (lam - free * ((lam.sum() - 1) / free.sum().clamp(min=1))).clamp(0, cap)


@dataclass(frozen=True)
class Simplex(Constraint):
    """The simplex with a floor: Λ = {λ : λ_i ≥ floor, Σ_i λ_i = 1}, ψ = 0.

    With floor 0, it is the whole simplex of DRFA, AFL and DRDM, eq. (2).

    Args:
        floor: Smallest weight of any client, with N·floor ≤ 1.

    Raises:
        InputError: If floor is negative, or (when first used) too large for N.
    """

    floor: float = 0.0

    def __post_init__(self) -> None:
        checks.non_negative("floor", self.floor)
        if self.floor > 1:
            raise InputError(f"floor must be in [0, 1], got {self.floor!r}", code="out-of-range", field="floor")

    def project(self, v: Tensor) -> Tensor:
        """Project v exactly in O(N log N): λ_i = floor + max(v_i − θ, 0), with θ such that the sum is 1.

        Raises:
            NonFiniteError: If v holds NaN or infinity.
        """
        v = finite_vector(v)
        return onto_simplex(v, self._room(v.numel()), self.floor)

    def worst_case(self, losses: Tensor) -> WorstCase:
        """Give each client the floor, and the rest to the (first) largest loss.

        Raises:
            NonFiniteError: If a loss is NaN or infinite.
        """
        losses = finite_vector(losses)
        lam = torch.full_like(losses, self.floor)
        lam[losses.argmax()] += self._room(losses.numel())
        return WorstCase(float(lam @ losses), lam)

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Return whether λ (N,) sums to 1 and no entry is below the floor, within the tolerance."""
        lam = finite_vector(lam)
        self._room(lam.numel())
        return on_simplex(lam, tolerance) and bool((lam >= self.floor - tolerance).all())

    def _room(self, n: int) -> float:
        # The tolerance accepts a floor that is intended as 1/N and is larger because of rounding.
        room = 1 - n * self.floor
        if room < -1e-12:
            raise InputError(
                f"floor={self.floor} is too large for {n} clients: it must be at most 1/{n}",
                code="out-of-range",
                field="floor",
            )
        return max(room, 0.0)


@dataclass(frozen=True)
class CVaR(Constraint):
    """Conditional value at risk: Λ = {λ : 0 ≤ λ_i ≤ 1/(αN), Σ_i λ_i = 1}, ψ = 0.

    The worst case is the mean loss of the worst share α of the clients. See SCAFF-PD (Yu et al. 2023), appendix B. It
    is the superquantile of Δ-FL with tail α = 1 − θ. CVaR(1) contains only uniform weights. With α ≤ 1/N, it is the
    whole simplex.

    Args:
        alpha: Share α of the worst clients, in (0, 1].

    Raises:
        InputError: If alpha is out of range.
    """

    alpha: float

    def __post_init__(self) -> None:
        checks.positive("alpha", self.alpha)
        if self.alpha > 1:
            raise InputError(f"alpha must be in (0, 1], got {self.alpha!r}", code="out-of-range", field="alpha")

    def project(self, v: Tensor) -> Tensor:
        """Project v exactly in O(N log N): λ_i = v_i − θ, clipped to [0, 1/(αN)], with θ such that the sum is 1."""
        v = finite_vector(v)
        return onto_capped_simplex(v, self._cap(v.numel()))

    def worst_case(self, losses: Tensor) -> WorstCase:
        """Give the largest losses the maximum weight and the next one the rest; ties go to the first client."""
        losses = finite_vector(losses)
        return _fill(losses, self._cap(losses.numel()))

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Return whether λ (N,) is on the simplex and no entry exceeds 1/(αN), within the tolerance."""
        lam = finite_vector(lam)
        return on_simplex(lam, tolerance) and bool((lam <= self._cap(lam.numel()) + tolerance).all())

    def _cap(self, n: int) -> float:
        # For α < 1/N the quotient exceeds 1, which no weight can.
        return min(1 / self.alpha / n, 1.0)


@dataclass(frozen=True)
class Box(Constraint):
    """The simplex with a cap: Λ = {λ : 0 ≤ λ_i ≤ cap, Σ_i λ_i = 1}, ψ = 0.

    Args:
        cap: Largest weight of any client, in (0, 1], with N·cap ≥ 1. It does not depend on the number of clients.

    Raises:
        InputError: If cap is out of range, or (when first used) too small for N.
    """

    cap: float

    def __post_init__(self) -> None:
        checks.positive("cap", self.cap)
        if self.cap > 1:
            raise InputError(f"cap must be in (0, 1], got {self.cap!r}", code="out-of-range", field="cap")

    def project(self, v: Tensor) -> Tensor:
        """Project v exactly in O(N log N): λ_i = v_i − θ, clipped to [0, cap], with θ such that the sum is 1."""
        v = self._checked(v)
        return onto_capped_simplex(v, self.cap)

    def worst_case(self, losses: Tensor) -> WorstCase:
        """Give the largest losses the maximum weight and the next one the rest; ties go to the first client."""
        return _fill(self._checked(losses), self.cap)

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Return whether λ (N,) is on the simplex and no entry exceeds the cap, within the tolerance."""
        lam = self._checked(lam)
        return on_simplex(lam, tolerance) and bool((lam <= self.cap + tolerance).all())

    def _checked(self, v: Tensor) -> Tensor:
        v = finite_vector(v)
        n = v.numel()
        if n * self.cap < 1 - 1e-12:
            raise InputError(
                f"cap={self.cap} is too small for {n} clients: it must be at least 1/{n}",
                code="out-of-range",
                field="cap",
            )
        return v


def _fill(losses: Tensor, cap: float) -> WorstCase:
    """Find the worst case with weights of at most ``cap``."""
    n = losses.numel()
    if n * cap <= 1 + 1e-12:
        # N·cap = 1 leaves only uniform weights; the tolerance accepts a cap whose product with N was rounded.
        lam = torch.full_like(losses, 1 / n)
        return WorstCase(float(lam @ losses), lam)
    full = min(math.floor(1 / cap), n - 1)
    # Use a stable sort, so that the result for equal losses does not depend on the sorting algorithm.
    order = losses.argsort(descending=True, stable=True)
    lam = torch.zeros_like(losses)
    lam[order[:full]] = cap
    lam[order[full]] = max(1 - full * cap, 0.0)
    return WorstCase(float(lam @ losses), lam)
