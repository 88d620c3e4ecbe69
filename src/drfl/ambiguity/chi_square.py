"""Ambiguity sets based on the χ² divergence from uniform weights: as a penalty and as a ball."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import torch
from torch import Tensor

from drfl.ambiguity.ambiguity_set import Constraint, WorstCase, finite_vector, on_simplex, quarter_gaps
from drfl.ambiguity.simplex import ascending, onto_simplex
from drfl.core import checks


@dataclass(frozen=True)
class ChiSquare:
    """The simplex with the χ² penalty ψ(λ) = ρ/(2N)·Σ_i (Nλ_i − 1)² (Yu et al. 2023, eq. B.2).

    The objective is between the worst and the mean loss.

    Args:
        rho: Weight ρ ≥ 0 of the penalty; 0 = no penalty. As ρ grows, λ approaches uniform weights.

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
        """Return ψ(λ) = ρ·(N/2)·‖λ − 1/N‖²."""
        return self.rho * divergence(finite_vector(lam))

    def penalty_gradient(self, lam: Tensor) -> Tensor:
        """Return ∇ψ(λ) = ρ(Nλ − 1) (N,)."""
        lam = finite_vector(lam)
        return self.rho * (lam.numel() * lam - 1)

    def project(self, v: Tensor) -> Tensor:
        """Project v (N,) onto the simplex exactly, by sorting, in O(N log N)."""
        return onto_simplex(finite_vector(v))

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Project v/(1 + step·ρN) onto the simplex, in O(N log N). This is the prox, because ψ is quadratic."""
        checks.non_negative("step", step)
        v = finite_vector(v)
        # The quarters cancel. An infinite product gives gaps of 0 and therefore uniform weights.
        return onto_simplex(quarter_gaps(v) / ((1 + step * self.rho * v.numel()) / 4))

    def worst_case(self, losses: Tensor) -> WorstCase:
        """Project f/(ρN) onto the simplex, in O(N log N); with ρ = 0, only the largest losses have weight.

        On the support S of λ with k clients, f_i − ρ(Nλ_i − 1) is a constant ν = mean_S f − ρ(N − k)/k. The value is
        (λ·f + ν)/2, a form without cancellation for huge ρ.
        """
        losses = finite_vector(losses)
        n, gaps = losses.numel(), quarter_gaps(losses)
        # The gap of the largest losses is 0 for any ρ; 0/0 would be NaN. With ρ = 0, the other gaps are −∞, outside the
        # support.
        lam = onto_simplex(torch.where(gaps < 0, gaps / (self.rho * n / 4), 0.0))
        support = lam > 0
        k = int(support.sum())
        nu = 4 * float(losses.max() / 4 + gaps[support].mean()) - self.rho * (n - k) / k
        return WorstCase(float(lam @ losses) / 2 + nu / 2, lam)

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Return whether λ (N,) is on the simplex within the tolerance."""
        return on_simplex(finite_vector(lam), tolerance)

    def strong_convexity(self, n: int) -> float:
        """Return ρN."""
        return self.rho * n


@dataclass(frozen=True)
class ChiSquareBall(Constraint):
    """A χ² ball: Λ = {λ ≥ 0 : Σ_i λ_i = 1, (1/(2N))·Σ_i (Nλ_i − 1)² ≤ radius}, ψ = 0.

    This is the constrained version of :class:`ChiSquare`. The constraint is equivalent to ‖λ‖² ≤ (2·radius + 1)/N.
    Radius 0 contains only uniform weights. A radius of (N − 1)/2 or more gives the whole simplex.

    Args:
        radius: Radius ≥ 0 in units of the divergence.

    Raises:
        InputError: If radius is negative or not finite.
    """

    radius: float

    def __post_init__(self) -> None:
        checks.non_negative("radius", self.radius)

    def project(self, v: Tensor) -> Tensor:
        """Project v exactly in O(N log N): project κv onto the simplex, with the largest κ ≤ 1 inside the ball."""
        v = finite_vector(v)
        lam = onto_simplex(v)
        return lam if divergence(lam) <= self.radius else self._on_sphere(v)

    def worst_case(self, losses: Tensor) -> WorstCase:
        """Weight the largest losses equally; if that is outside the ball, maximise the weighted loss on the sphere."""
        losses = finite_vector(losses)
        # Among all weights on the largest losses, equal weights have the smallest divergence. If they are outside the
        # ball, so are all others.
        top = (losses == losses.max()).double()
        lam = top / top.sum()
        lam = lam if divergence(lam) <= self.radius else self._on_sphere(losses)
        return WorstCase(float(lam @ losses), lam)

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Return whether λ (N,) is on the simplex and in the ball within the tolerance."""
        lam = finite_vector(lam)
        return on_simplex(lam, tolerance) and divergence(lam) <= self.radius + tolerance

    def _on_sphere(self, v: Tensor) -> Tensor:
        """Project κv onto the simplex, for the κ that puts the result on the sphere ‖λ‖² = (2·radius + 1)/N.

        The support contains the k clients with the largest entries, with λ_i = 1/k + κ(v_i − mean), so κ follows from
        the norm. As κ grows, ‖λ‖² increases and k decreases. Bisection determines k by comparing the norm of the sphere
        with that of the point at which the (k + 1)th client leaves the support, λ_i ∝ v_i − v_(k+1). All quantities are
        ratios, so v may have any scale.
        """
        n, gaps = v.numel(), quarter_gaps(v)
        ordered = ascending(gaps).flip(0)

        def is_inside(k: int) -> bool:
            # k is at least `tied`, so ordered[k] < 0.
            scaled = 1 - ordered[:k] / ordered[k]
            return bool(n * scaled.square().sum() <= (2 * self.radius + 1) * scaled.sum().square())

        tied = int((ordered == 0).sum())
        k = tied + bisect_left(range(tied, n), True, key=is_inside)
        if k == tied:  # Only rounding leads here: equal weights of the largest entries are on the sphere.
            return (gaps == 0).double() / tied
        # Select by value, not by position, because clients with equal entries enter the support together.
        support = gaps >= ordered[k - 1]
        scaled = gaps / -ordered[k - 1]
        centred = torch.where(support, scaled - scaled[support].mean(), 0)
        length = max(2 * self.radius * k - (n - k), 0.0) / (n * k)  # ‖λ‖² − 1/k
        lam = (support.double() / k + length**0.5 * centred / centred.norm()).clamp(min=0)
        return lam / lam.sum()


def divergence(lam: Tensor) -> float:
    """Compute the χ² divergence (1/(2N))·Σ_i (Nλ_i − 1)² of λ (N,) from uniform weights."""
    n = lam.numel()
    return float((n * lam - 1).square().sum()) / (2 * n)
