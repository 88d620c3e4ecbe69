"""The χ² divergence from the uniform mixture, as a penalty and as a ball."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import torch
from torch import Tensor

from drfl.ambiguity.base import Constraint, WorstCase, finite, on_simplex, quarter_gaps
from drfl.ambiguity.simplex import ascending, onto_simplex
from drfl.core import checks


@dataclass(frozen=True)
class ChiSquare:
    """Λ = the simplex, ψ(λ) = ρ/(2N)·Σ_i (Nλ_i − 1)² (Yu et al. 2023, eq. B.2): between the worst and the mean loss.

    Args:
        rho: ρ ≥ 0. With 0 there is no penalty; as it grows, λ tends to the uniform mixture.

    Raises:
        InputError: If rho is negative or not finite.
    """

    rho: float

    def __post_init__(self) -> None:
        checks.non_negative("rho", self.rho)

    @property
    def penalised(self) -> bool:
        """Whether ρ > 0."""
        return self.rho > 0

    def penalty(self, lam: Tensor) -> float:
        """ψ(λ) = ρ·(N/2)·‖λ − 1/N‖²."""
        return self.rho * divergence(finite(lam))

    def penalty_gradient(self, lam: Tensor) -> Tensor:
        """∇ψ(λ) = ρ(Nλ − 1) (N,)."""
        lam = finite(lam)
        return self.rho * (lam.numel() * lam - 1)

    def project(self, v: Tensor) -> Tensor:
        """The nearest point of the simplex, exact by sorting, O(N log N)."""
        return onto_simplex(finite(v))

    def prox(self, v: Tensor, step: float) -> Tensor:
        """The nearest point of the simplex to v/(1 + step·ρN): ψ is a square like the distance. O(N log N)."""
        checks.non_negative("step", step)
        v = finite(v)
        # The quarters cancel. An infinite product gives gaps of 0, hence the uniform mixture.
        return onto_simplex(quarter_gaps(v) / ((1 + step * self.rho * v.numel()) / 4))

    def worst_case(self, losses: Tensor) -> WorstCase:
        """λ = the nearest point of the simplex to f/(ρN), O(N log N); with ρ = 0 the largest losses take all weight.

        On the support S of λ, k clients, f_i − ρ(Nλ_i − 1) is the same number ν = mean_S f − ρ(N − k)/k, and the value
        is (λ·f + ν)/2, which does not cancel where ρ is huge.
        """
        losses = finite(losses)
        n, behind = losses.numel(), quarter_gaps(losses)
        # The largest stay at 0 whatever ρ is: 0/0 would be NaN. With ρ = 0 the others are at −∞, outside the support.
        lam = onto_simplex(torch.where(behind < 0, behind / (self.rho * n / 4), 0.0))
        support = lam > 0
        k = int(support.sum())
        nu = 4 * float(losses.max() / 4 + behind[support].mean()) - self.rho * (n - k) / k
        return WorstCase(float(lam @ losses) / 2 + nu / 2, lam)

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Whether λ (N,) is on the simplex, up to the tolerance."""
        return on_simplex(finite(lam), tolerance)

    def strong_convexity(self, n: int) -> float:
        """ρN."""
        return self.rho * n


@dataclass(frozen=True)
class ChiSquareBall(Constraint):
    """Λ = {λ ≥ 0 : Σ_i λ_i = 1, (1/(2N))·Σ_i (Nλ_i − 1)² ≤ radius}, ψ = 0: the constrained twin of :class:`ChiSquare`.

    In other words ‖λ‖² ≤ (2·radius + 1)/N. Radius 0 is the uniform mixture alone; (N − 1)/2 or more, the simplex.

    Args:
        radius: ≥ 0, in units of the divergence.

    Raises:
        InputError: If radius is negative or not finite.
    """

    radius: float

    def __post_init__(self) -> None:
        checks.non_negative("radius", self.radius)

    def project(self, v: Tensor) -> Tensor:
        """Exact by sorting, O(N log N): the simplex's nearest point to κv, with the greatest κ ≤ 1 that is inside."""
        v = finite(v)
        lam = onto_simplex(v)
        return lam if divergence(lam) <= self.radius else self._on_sphere(v)

    def worst_case(self, losses: Tensor) -> WorstCase:
        """All weight on the largest losses, evenly, where that is inside; else the sphere's point farthest along f."""
        losses = finite(losses)
        # Of all mixtures of the largest losses the even one has the least divergence: if it is outside, so are all.
        top = (losses == losses.max()).double()
        lam = top / top.sum()
        lam = lam if divergence(lam) <= self.radius else self._on_sphere(losses)
        return WorstCase(float(lam @ losses), lam)

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Whether λ (N,) is on the simplex with a divergence of at most the radius, up to the tolerance."""
        lam = finite(lam)
        return on_simplex(lam, tolerance) and divergence(lam) <= self.radius + tolerance

    def _on_sphere(self, v: Tensor) -> Tensor:
        """The point of the simplex nearest to κv, for the κ that puts it on the sphere ‖λ‖² = (2·radius + 1)/N.

        With k clients in the support, the k first when sorted, λ_i = 1/k + κ(v_i − mean), so that κ follows from the
        norm. ‖λ‖² grows with κ while k falls: k is found by bisection, comparing the sphere's norm with that of the
        point at which the (k + 1)th client leaves, λ_i ∝ v_i − v_(k+1). All are ratios, so v may have any scale.
        """
        n, behind = v.numel(), quarter_gaps(v)
        ordered = ascending(behind).flip(0)

        def inside(k: int) -> bool:
            # Called for k ≥ tied only, so that ordered[k] < 0.
            scaled = 1 - ordered[:k] / ordered[k]
            return bool(n * scaled.square().sum() <= (2 * self.radius + 1) * scaled.sum().square())

        tied = int((ordered == 0).sum())
        k = tied + bisect_left(range(tied, n), True, key=inside)
        if k == tied:  # only rounding leads here: the even mixture of the largest is on the sphere
            return (behind == 0).double() / tied
        # By value, not by position: clients with equal entries are in the support together.
        support = behind >= ordered[k - 1]
        scaled = behind / -ordered[k - 1]
        centred = torch.where(support, scaled - scaled[support].mean(), 0)
        length = max(2 * self.radius * k - (n - k), 0.0) / (n * k)  # ‖λ‖² − 1/k
        lam = (support.double() / k + length**0.5 * centred / centred.norm()).clamp(min=0)
        return lam / lam.sum()


def divergence(lam: Tensor) -> float:
    """(1/(2N))·Σ_i (Nλ_i − 1)² of λ (N,)."""
    n = lam.numel()
    return float((n * lam - 1).square().sum()) / (2 * n)
