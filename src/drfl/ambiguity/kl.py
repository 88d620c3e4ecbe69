"""Kullback-Leibler regularisation and balls around a mixture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from drfl.ambiguity._kl_solver import LEAST, TINY, Direction, log_mean_exp
from drfl.ambiguity.base import Constraint, WorstCase, finite, on_simplex, quarter_gaps
from drfl.ambiguity.simplex import onto_simplex
from drfl.core import checks
from drfl.core.errors import InputError

Prior = Sequence[float] | Tensor | None
"""N positive numbers of sum 1, or None for the uniform mixture of however many clients there are."""

LEAST_PRIOR = 1e-300
"""Below this a number cannot be told from 0 where it is multiplied."""


class FromPrior:
    """What sets with a field ``prior`` share; the field is kept as a tuple of float64 numbers of sum 1."""

    prior: Prior

    def __post_init__(self) -> None:
        prior = self.prior
        if prior is None:
            return
        try:
            p = torch.as_tensor(prior, dtype=torch.float64, device="cpu").detach()
        except (TypeError, ValueError, RuntimeError):
            raise InputError(
                f"the prior must be a vector of numbers, not {prior!r}", code="wrong-type", field="prior"
            ) from None
        if p.dim() != 1 or not len(p):
            raise InputError(
                f"the prior must be a vector (N,) with N ≥ 1, not of shape {tuple(p.shape)}",
                code="wrong-shape",
                field="prior",
            )
        if not bool((p >= LEAST_PRIOR).all()):
            bad = int((~(p >= LEAST_PRIOR)).nonzero()[0])
            raise InputError(
                f"the prior must be positive, but entry {bad} is {float(p[bad])}: leave that client out",
                code="out-of-range",
                field="prior",
            )
        total = math.fsum(p.tolist())
        # Wide enough for a prior that was normalised in single precision; a NaN is refused, too.
        if not abs(total - 1) <= 1e-6:
            raise InputError(
                f"the prior must sum to 1, not {total}: divide it by its sum", code="invalid-value", field="prior"
            )
        object.__setattr__(self, "prior", tuple((p / total).tolist()))

    def prior_of(self, n: int) -> Tensor:
        """The prior (N,) for n clients, float64.

        Raises:
            InputError: If it was given for another number of clients.
        """
        if self._given is None:
            return torch.full((n,), 1 / n, dtype=torch.float64)
        if len(self._given) != n:
            raise InputError(
                f"the prior has {len(self._given)} entries, but there are {n} clients",
                code="count-mismatch",
                field="prior",
            )
        return self._given

    @cached_property
    def _given(self) -> Tensor | None:
        return None if self.prior is None else torch.tensor(self.prior, dtype=torch.float64)


def divergence(lam: Tensor, prior: Tensor) -> float:
    """KL(λ‖p) = Σ_i λ_i log(λ_i/p_i) of mixtures (N,), with 0·log 0 = 0."""
    lam = lam.clamp(min=0)
    return max(float((torch.xlogy(lam, lam) - lam * prior.log()).sum()), 0.0)


NO_PENALTY = 1e-15
"""A penalty of a weight below this moves no λ_i by 1e-13."""

NO_BALL = 1e-22
"""In a ball of a radius below this no λ_i is 1e-11 away from p_i."""


@dataclass(frozen=True)
class KL(FromPrior):
    """Λ = the simplex, ψ(λ) = ρ·Σ_i λ_i log(λ_i/p_i): the worst case is ρ·log Σ_i p_i e^{f_i/ρ}, a soft maximum.

    Deng et al. 2020 (DRFA), section 5.1, name it as a regulariser; it is that of tilted empirical risk minimisation.

    Args:
        rho: ρ ≥ 0. With 0 there is no penalty; as it grows, λ tends to p.
        prior: P, positive numbers of sum 1, one per client; None = uniform.

    Raises:
        InputError: If rho is negative or not finite, or prior is no prior, or for another N (when first used).
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
        """ψ(λ) = ρ·KL(λ‖p), with 0·log 0 = 0."""
        lam = finite(lam)
        return self.rho * divergence(lam, self.prior_of(lam.numel()))

    def penalty_gradient(self, lam: Tensor) -> Tensor:
        """∇ψ(λ) = ρ(log(λ/p) + 1) (N,).

        Raises:
            InputError: If a λ_i is 0: there ψ has no gradient.
        """
        lam = finite(lam)
        p = self.prior_of(lam.numel())
        if not self.penalised:
            return torch.zeros_like(lam)
        if not bool((lam > 0).all()):
            bad = int((lam <= 0).nonzero()[0])
            raise InputError(
                f"KL has no gradient where a weight is 0, and entry {bad} of λ is {float(lam[bad])}",
                code="invalid-value",
                field="lam",
            )
        return self.rho * (lam.log() - p.log() + 1)

    def project(self, v: Tensor) -> Tensor:
        """The nearest point of the simplex, exact by sorting, O(N log N)."""
        v = finite(v)
        self.prior_of(v.numel())
        return onto_simplex(v)

    def prox(self, v: Tensor, step: float) -> Tensor:
        """λ_i = t·ω((v_i − ν)/t + log(p_i/t)), t = step·ρ, with Wright's ω; ν makes the sum 1. O(N log N)."""
        checks.non_negative("step", step)
        v = finite(v)
        # The tilt is defined for κ = 4/t > 0 only, so that t must stay finite.
        p, t = self.prior_of(v.numel()), min(step * self.rho, 1e308)
        lam = onto_simplex(v)
        if t < NO_PENALTY:
            return lam
        # Optimality of the prox, log(λ/p) + λ/t = (v − ν)/t, is the tilt's equation at κ = 4/t: g is (v − max v)/4, q
        # is 1/4.
        direction = Direction(p.numpy(), quarter_gaps(v).numpy(), 0.25, divergence(lam, p), float(lam.max()))
        return torch.from_numpy(direction.at(4 / t).lam)

    def worst_case(self, losses: Tensor) -> WorstCase:
        """λ_i ∝ p_i·e^{f_i/ρ}; with ρ = 0, p_i on the largest losses. O(N)."""
        losses = finite(losses)
        p, behind = self.prior_of(losses.numel()), quarter_gaps(losses)
        # The largest stay at 0 whatever ρ is, 0 included; the others are then cut at LEAST, where e^x is 0.
        lean = torch.where(behind < 0, (behind / (self.rho / 4)).clamp(min=LEAST), 0.0)
        lam = p * lean.exp()
        value = float(losses.max()) + self.rho * log_mean_exp(p.numpy(), lean.numpy())
        return WorstCase(value, lam / lam.sum())

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Whether λ (N,) is on the simplex, up to the tolerance."""
        lam = finite(lam)
        self.prior_of(lam.numel())
        return on_simplex(lam, tolerance)

    def strong_convexity(self, n: int) -> float:
        """ρ: the curvature is ρ/λ_i, and λ_i ≤ 1."""
        return self.rho


@dataclass(frozen=True)
class KLBall(FromPrior, Constraint):
    """Λ = {λ ≥ 0 : Σ_i λ_i = 1, Σ_i λ_i log(λ_i/p_i) ≤ radius}, ψ = 0: the constrained twin of :class:`KL`.

    Radius 0 is the prior alone; −log min_i p_i or more (log N when uniform), the simplex.

    Args:
        radius: ≥ 0, in nats.
        prior: P, positive numbers of sum 1, one per client; None = uniform.

    Raises:
        InputError: If radius is negative or not finite, or prior is no prior, or for another N (when first used).
    """

    radius: float
    prior: Prior = None

    def __post_init__(self) -> None:
        checks.non_negative("radius", self.radius)
        super().__post_init__()

    def project(self, v: Tensor) -> Tensor:
        """The prox of t·KL for the t ≥ 0 that brings it into the ball, by safeguarded Newton steps, O(N log N)."""
        v = finite(v)
        p, lam = self.prior_of(v.numel()), onto_simplex(v)
        g = quarter_gaps(v).numpy()
        scale = max(1.0, float(-g.min())) ** 0.5  # so that neither κ nor κg leaves the floating-point numbers
        direction = Direction(p.numpy(), g / scale, 0.25 / scale, divergence(lam, p), float(lam.max()))
        if direction.pull <= self.radius:
            return lam
        return p.clone() if self.radius < NO_BALL else self._on_sphere(direction)

    def worst_case(self, losses: Tensor) -> WorstCase:
        """λ_i ∝ p_i·e^{κf_i} on the sphere, or p_i on the largest losses where that is inside; κ by Newton, O(N)."""
        losses = finite(losses)
        p, first = self.prior_of(losses.numel()), losses == losses.max()
        top, rest = p * first, float(p[~first].sum())
        # For κ → ∞ λ is the prior on the largest losses, whose divergence is −log of their prior mass. Where the others
        # have little mass it is taken from theirs, which holds more digits.
        pull = -math.log1p(-rest) if rest < 0.5 else -math.log(float(top.sum()))
        if pull <= self.radius:
            lam = top / top.sum()
        else:
            g = quarter_gaps(losses).numpy()
            scale = max(float(-g.min()), TINY)
            lam = self._on_sphere(Direction(p.numpy(), g / (scale if scale < 1 else scale**0.5), 0.0, pull))
        return WorstCase(float(lam @ losses), lam)

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Whether λ (N,) is on the simplex with a divergence of at most the radius, up to the tolerance."""
        lam = finite(lam)
        p = self.prior_of(lam.numel())
        return on_simplex(lam, tolerance) and divergence(lam, p) <= self.radius + tolerance

    def _on_sphere(self, direction: Direction) -> Tensor:
        """The tilt whose divergence is the radius, for 0 ≤ radius < direction.pull."""
        p, pull = direction.p, direction.pull
        # For small κ, λ is p·(1 + κ(height − mean of height)) to first order.
        height = direction.g - direction.q * p
        spread = math.sqrt(float(p @ np.square(height - p @ height)))
        if self.radius == 0 or spread == 0:
            return torch.from_numpy(p.copy())
        # The divergence is near (κ·spread)²/2 for small κ. With the odds that with_divergence takes to be
        # straight that is radius/(pull − radius) = (κ·spread)²/(2·pull).
        start = math.sqrt(2 * self.radius) * math.sqrt(pull / (pull - self.radius)) / spread
        return torch.from_numpy(direction.with_divergence(self.radius, start))
