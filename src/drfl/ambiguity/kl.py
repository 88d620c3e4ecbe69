"""Ambiguity sets based on the Kullback–Leibler divergence from a prior: as a penalty and as a ball."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from drfl.ambiguity._kl_solver import LEAST, TINY, Direction, log_mean_exp
from drfl.ambiguity.ambiguity_set import Constraint, WorstCase, finite_vector, on_simplex, quarter_gaps
from drfl.ambiguity.simplex import onto_simplex
from drfl.core import checks
from drfl.core.errors import InputError

Prior = Sequence[float] | Tensor | None
"""N positive numbers that sum to 1, or None for uniform weights with any number of clients."""

LEAST_PRIOR = 1e-300
"""Smallest entry of a prior. Products with smaller numbers would underflow to 0."""


class FromPrior:
    """Base class of sets with a field ``prior``, which is stored as a tuple of float64 numbers that sum to 1."""

    prior: Prior

    def __post_init__(self) -> None:
        prior = self.prior
        if prior is None:
            return
        try:
            p = torch.as_tensor(prior, dtype=torch.float64, device="cpu").detach()
        except (TypeError, ValueError, RuntimeError):
            raise InputError(
                f"the prior must be a vector of numbers, got {prior!r}", code="wrong-type", field="prior"
            ) from None
        if p.dim() != 1 or not len(p):
            raise InputError(
                f"the prior must be a vector (N,) with N ≥ 1, got shape {tuple(p.shape)}",
                code="wrong-shape",
                field="prior",
            )
        if not bool((p >= LEAST_PRIOR).all()):
            bad = int((~(p >= LEAST_PRIOR)).nonzero()[0])
            raise InputError(
                f"the prior must be positive, but entry {bad} is {float(p[bad])}. Exclude that client.",
                code="out-of-range",
                field="prior",
            )
        total = math.fsum(p.tolist())
        # The tolerance accepts a prior that was normalised in single precision. The condition also rejects NaN.
        if not abs(total - 1) <= 1e-6:
            raise InputError(
                f"the prior must sum to 1, but its sum is {total}. Divide it by its sum.",
                code="invalid-value",
                field="prior",
            )
        # A tuple can be compared and hashed, as a frozen dataclass requires; a tensor cannot.
        object.__setattr__(self, "prior", tuple((p / total).tolist()))

    def prior_of(self, n: int) -> Tensor:
        """Return the prior (N,) for n clients, float64.

        Raises:
            InputError: If the prior has another number of entries.
        """
        if self._prior is None:
            return torch.full((n,), 1 / n, dtype=torch.float64)
        if len(self._prior) != n:
            raise InputError(
                f"the prior has {len(self._prior)} entries, but there are {n} clients",
                code="count-mismatch",
                field="prior",
            )
        return self._prior

    @cached_property
    def _prior(self) -> Tensor | None:
        return None if self.prior is None else torch.tensor(self.prior, dtype=torch.float64)


def divergence(lam: Tensor, prior: Tensor) -> float:
    """Compute KL(λ‖p) = Σ_i λ_i log(λ_i/p_i) of client weights (N,), with 0·log 0 = 0."""
    # A weight that rounding made negative would give NaN. The divergence itself may round to slightly below 0.
    lam = lam.clamp(min=0)
    return max(float((torch.xlogy(lam, lam) - lam * prior.log()).sum()), 0.0)


NO_PENALTY = 1e-15
"""Penalty weight below which the penalty changes each λ_i by less than 1e-13."""

NO_BALL = 1e-22
"""Radius below which each λ_i differs from p_i by less than 1e-11."""


@dataclass(frozen=True)
class KL(FromPrior):
    """The simplex with the penalty ψ(λ) = ρ·Σ_i λ_i log(λ_i/p_i).

    The worst case is a soft maximum, ρ·log Σ_i p_i e^{f_i/ρ}, the objective of tilted empirical risk minimisation. Deng
    et al. (2020, DRFA), section 5.1, mention this regulariser.

    Args:
        rho: Weight ρ ≥ 0 of the penalty; 0 = no penalty. As ρ grows, λ approaches p.
        prior: Prior p, positive numbers that sum to 1, one per client; None = uniform.

    Raises:
        InputError: If rho is negative or not finite, the prior is invalid, or (when first used) the prior has another
            number of entries than there are clients.
    """

    rho: float
    prior: Prior = None

    def __post_init__(self) -> None:
        checks.non_negative("rho", self.rho)
        super().__post_init__()

    @property
    def penalised(self) -> bool:
        """Whether ρ > 0."""
        return self.rho > 0

    def penalty(self, lam: Tensor) -> float:
        """Return ψ(λ) = ρ·KL(λ‖p), with 0·log 0 = 0."""
        lam = finite_vector(lam)
        return self.rho * divergence(lam, self.prior_of(lam.numel()))

    def penalty_gradient(self, lam: Tensor) -> Tensor:
        """Return ∇ψ(λ) = ρ(log(λ/p) + 1) (N,).

        Raises:
            InputError: If some λ_i is 0, because ψ then has no gradient.
        """
        lam = finite_vector(lam)
        p = self.prior_of(lam.numel())
        if not self.penalised:
            return torch.zeros_like(lam)
        if not bool((lam > 0).all()):
            bad = int((lam <= 0).nonzero()[0])
            raise InputError(
                f"KL has a gradient only if all client weights are positive, but entry {bad} of λ is {float(lam[bad])}",
                code="invalid-value",
                field="lam",
            )
        return self.rho * (lam.log() - p.log() + 1)

    def project(self, v: Tensor) -> Tensor:
        """Project v (N,) onto the simplex exactly, by sorting, in O(N log N)."""
        v = finite_vector(v)
        self.prior_of(v.numel())
        return onto_simplex(v)

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Compute the prox in O(N log N).

        With t = step·ρ and Wright's ω, λ_i = t·ω((v_i − ν)/t + log(p_i/t)), with ν such that the sum is 1.
        """
        checks.non_negative("step", step)
        v = finite_vector(v)
        # The tilt is only defined for κ = 4/t > 0, so t must remain finite.
        p, t = self.prior_of(v.numel()), min(step * self.rho, 1e308)
        lam = onto_simplex(v)
        if t < NO_PENALTY:
            return lam
        # The optimality condition of the prox, log(λ/p) + λ/t = (v − ν)/t, is the tilt's equation with κ = 4/t,
        # g = (v − max v)/4 and q = 1/4.
        direction = Direction(p.numpy(), quarter_gaps(v).numpy(), 0.25, divergence(lam, p), float(lam.max()))
        return torch.from_numpy(direction.tilt(4 / t).lam)

    def worst_case(self, losses: Tensor) -> WorstCase:
        """Compute λ_i ∝ p_i·e^{f_i/ρ} in O(N); with ρ = 0, the prior restricted to the largest losses."""
        losses = finite_vector(losses)
        p, gaps = self.prior_of(losses.numel()), quarter_gaps(losses)
        # The exponent of the largest losses is 0 for any ρ, including 0. The others are clipped at LEAST, which gives
        # e^x = 0.
        exponents = torch.where(gaps < 0, (gaps / (self.rho / 4)).clamp(min=LEAST), 0.0)
        lam = p * exponents.exp()
        value = float(losses.max()) + self.rho * log_mean_exp(p.numpy(), exponents.numpy())
        return WorstCase(value, lam / lam.sum())

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Return whether λ (N,) is on the simplex within the tolerance."""
        lam = finite_vector(lam)
        self.prior_of(lam.numel())
        return on_simplex(lam, tolerance)

    def strong_convexity(self, n: int) -> float:
        """Return ρ, because the curvature is ρ/λ_i and λ_i ≤ 1."""
        return self.rho


@dataclass(frozen=True)
class KLBall(FromPrior, Constraint):
    """A KL ball: Λ = {λ ≥ 0 : Σ_i λ_i = 1, Σ_i λ_i log(λ_i/p_i) ≤ radius}, ψ = 0.

    This is the constrained version of :class:`KL`. Radius 0 contains only the prior. A radius of −log min_i p_i or more
    (log N for a uniform prior) gives the whole simplex.

    Args:
        radius: Radius ≥ 0 in nats.
        prior: Prior p, positive numbers that sum to 1, one per client; None = uniform.

    Raises:
        InputError: If radius is negative or not finite, the prior is invalid, or (when first used) the prior has
            another number of entries than there are clients.
    """

    radius: float
    prior: Prior = None

    def __post_init__(self) -> None:
        checks.non_negative("radius", self.radius)
        super().__post_init__()

    def project(self, v: Tensor) -> Tensor:
        """Compute the prox of t·KL with the t ≥ 0 that reaches the ball, by safeguarded Newton steps, in O(N log N)."""
        v = finite_vector(v)
        p, lam = self.prior_of(v.numel()), onto_simplex(v)
        g = quarter_gaps(v).numpy()
        scale = max(1.0, float(-g.min())) ** 0.5  # Prevents overflow and underflow of κ and κg.
        direction = Direction(p.numpy(), g / scale, 0.25 / scale, divergence(lam, p), float(lam.max()))
        if direction.pull <= self.radius:
            return lam
        # Return a copy, because the prior is cached and the caller may change the result in place.
        return p.clone() if self.radius < NO_BALL else self._on_sphere(direction)

    def worst_case(self, losses: Tensor) -> WorstCase:
        """Restrict the prior to the largest losses, or find λ_i ∝ p_i·e^{κf_i} on the sphere by Newton, in O(N)."""
        losses = finite_vector(losses)
        p, is_largest = self.prior_of(losses.numel()), losses == losses.max()
        top, rest = p * is_largest, float(p[~is_largest].sum())
        # For κ → ∞, λ is the prior restricted to the largest losses. Its divergence is −log of their prior mass. If the
        # mass of the others is small, computing it from theirs is more accurate.
        pull = -math.log1p(-rest) if rest < 0.5 else -math.log(float(top.sum()))
        if pull <= self.radius:
            lam = top / top.sum()
        else:
            g = quarter_gaps(losses).numpy()
            scale = max(float(-g.min()), TINY)
            lam = self._on_sphere(Direction(p.numpy(), g / (scale if scale < 1 else scale**0.5), 0.0, pull))
        return WorstCase(float(lam @ losses), lam)

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Return whether λ (N,) is on the simplex and in the ball within the tolerance."""
        lam = finite_vector(lam)
        p = self.prior_of(lam.numel())
        return on_simplex(lam, tolerance) and divergence(lam, p) <= self.radius + tolerance

    def _on_sphere(self, direction: Direction) -> Tensor:
        """Return the tilt whose divergence equals the radius, for 0 ≤ radius < direction.pull."""
        p, pull = direction.p, direction.pull
        # To first order in κ, λ is p·(1 + κ(height − mean of height)).
        height = direction.g - direction.q * p
        spread = math.sqrt(float(p @ np.square(height - p @ height)))
        if self.radius == 0 or spread == 0:
            return torch.from_numpy(p.copy())
        # For small κ, the divergence is approximately (κ·spread)²/2. In terms of the odds that `with_divergence`
        # linearises, radius/(pull − radius) = (κ·spread)²/(2·pull).
        start = math.sqrt(2 * self.radius) * math.sqrt(pull / (pull - self.radius)) / spread
        return torch.from_numpy(direction.with_divergence(self.radius, start))
