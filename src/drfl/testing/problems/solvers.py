"""Exact optima by Newton's method and an interior-point method."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.ambiguity import KL, AmbiguitySet, Box, ChiSquare, ChiSquareBall, CVaR, KLBall, Simplex
from drfl.core.errors import InputError
from drfl.testing.problems.objectives import Functions

ITERATIONS = 200


class Point(NamedTuple):
    """A function at one point: value, gradient (d,) and Hessian (d, d)."""

    value: Tensor
    gradient: Tensor
    hessian: Tensor


def minimise(function: Callable[[Tensor], Point], start: Tensor) -> Tensor:
    """Return the minimiser (d,), to the precision at which the gradient vanishes in float64.

    Far away, steps are halved until the value falls enough. Near the minimum, values differ by rounding only and no
    longer show which of two points is better. Then full steps are taken as long as they halve the gradient.

    Args:
        function: Smooth and strongly convex.
        start: (d,) the starting point.

    Raises:
        ArithmeticError: If the norm of the final gradient exceeds 1e-10, relative to 1 + |value|.
    """
    w, here = start, function(start)
    for _ in range(ITERATIONS):
        step = torch.linalg.solve(here.hessian, -here.gradient)
        slope = float(here.gradient @ step)
        visible = -slope > 1e-11 * (1 + abs(float(here.value)))
        size, after = 1.0, function(w + step)
        while visible and size > 1e-9 and not after.value <= here.value + 0.25 * size * slope:
            size /= 2
            after = function(w + size * step)
        if not visible and not after.gradient.norm() < here.gradient.norm() / 2:
            break
        w, here = w + size * step, after
    if not here.gradient.norm() <= 1e-10 * (1 + here.value.abs()):
        raise ArithmeticError(f"Newton's method ended with a gradient of norm {float(here.gradient.norm()):.1e}")
    return w


NEVER = 2.0
"""An upper bound that no entry of a mixture reaches."""


class Mixtures(NamedTuple):
    """Λ = {λ : low ≤ λ_i ≤ high, Σ_i λ_i = 1} with ψ(λ) = (curvature/2)·‖λ − 1/N‖².

    Args:
        n: N.
        low: Lower bound, ≥ 0.
        high: Upper bound, at least 1/N.
        curvature: Weight of the penalty, ≥ 0.
    """

    n: int
    low: float
    high: float
    curvature: float

    @property
    def single(self) -> bool:
        """Whether the uniform mixture is the only one."""
        return self.n * self.low >= 1 - 1e-12 or self.n * self.high <= 1 + 1e-12


class Entropic(NamedTuple):
    """The whole simplex with ψ(λ) = ρ Σ_i λ_i log(λ_i / p_i).

    Args:
        rho: ρ > 0.
        prior: p, with sum 1.
    """

    rho: float
    prior: tuple[float, ...]


class Ball(NamedTuple):
    """The mixtures whose divergence from a centre p is at most a radius; ψ = 0.

    Args:
        radius: Largest divergence, ≥ 0.
        centre: p, with sum 1; uniform for the χ² divergence.
        entropic: Whether to use the Kullback–Leibler divergence instead of the χ² divergence (N/2)·‖λ − p‖².
    """

    radius: float
    centre: tuple[float, ...]
    entropic: bool

    @property
    def simplex(self) -> Mixtures:
        """The set with an infinite radius."""
        return Mixtures(len(self.centre), 0.0, NEVER, 0.0)

    def penalty(self, rho: float) -> Mixtures | Entropic:
        """Return the simplex with ψ = ρ times the divergence."""
        n = len(self.centre)
        return Entropic(rho, self.centre) if self.entropic else Mixtures(n, 0.0, NEVER, rho * n)

    def divergence(self, lam: Tensor) -> float:
        """Return the divergence of λ (N,) from the centre."""
        p = torch.tensor(self.centre, dtype=torch.float64)
        parts = torch.special.xlogy(lam, lam / p) if self.entropic else len(p) / 2 * (lam - p).square()
        return float(parts.sum())


def mixtures_of(ambiguity: AmbiguitySet, n: int) -> Mixtures | Entropic | Ball:
    """Convert a set to one of the kinds that the solver knows.

    Raises:
        InputError: If it is another set, or does not fit N.
    """
    ambiguity.worst_case(torch.zeros(n))  # raises an error if the set does not fit N
    uniform = (1 / n,) * n
    match ambiguity:
        case Simplex(floor=floor):
            return Mixtures(n, floor, NEVER, 0.0)
        case CVaR(alpha=alpha):
            return Mixtures(n, 0.0, _cap(1 / (alpha * n)), 0.0)
        case Box(cap=cap):
            return Mixtures(n, 0.0, _cap(cap), 0.0)
        case ChiSquare(rho=rho):
            return Mixtures(n, 0.0, NEVER, rho * n)
        case ChiSquareBall(radius=radius):
            return Ball(radius, uniform, entropic=False)
        case KL(rho=rho):
            return Entropic(rho, tuple(ambiguity.prior_of(n).tolist())) if rho else Mixtures(n, 0.0, NEVER, 0.0)
        case KLBall(radius=radius):
            return Ball(radius, tuple(ambiguity.prior_of(n).tolist()), entropic=True)
    raise InputError(
        f"no saddle point is known for {type(ambiguity).__name__}. Use a set of drfl.ambiguity.",
        code="unsupported-combination",
        field="ambiguity",
    )


def _cap(cap: float) -> float:
    return cap if cap < 1 else NEVER


class Iterate(NamedTuple):
    """w (d,), λ (N,), ν () for Σ_i λ_i = 1, and multipliers z ≥ 0 and Z ≥ 0 (N,) of the lower and upper bounds."""

    w: Tensor
    lam: Tensor
    nu: Tensor
    z: Tensor
    Z: Tensor


class Conditions(NamedTuple):
    """The residuals of the optimality conditions.

    Args:
        gradient: (d,) Σ_i λ_i ∇f_i(w).
        losses: (N,) f_i(w) − ∇_iψ(λ) − ν + z_i − Z_i.
        total: () Σ_i λ_i − 1.
        lower: (N,) z_i·(λ_i − low) minus the barrier's weight.
        upper: (N,) Z_i·(high − λ_i) minus the barrier's weight.
    """

    gradient: Tensor
    losses: Tensor
    total: Tensor
    lower: Tensor
    upper: Tensor

    def norm(self) -> float:
        """Return the norm of all residuals."""
        return float(torch.cat([part.flatten() for part in self]).norm())


def conditions(functions: Functions, mixtures: Mixtures, at: Iterate, barrier: float = 0.0) -> Conditions:
    """Return the optimality conditions at a point; all are 0 at the saddle point if the barrier's weight is 0."""
    n, low, high, curvature = mixtures
    return Conditions(
        at.lam @ functions.gradients(at.w),
        functions.losses(at.w) - curvature * (at.lam - 1 / n) - at.nu + at.z - at.Z,
        at.lam.sum() - 1,
        at.z * (at.lam - low) - barrier,
        at.Z * (high - at.lam) - barrier,
    )


def interior(functions: Functions, mixtures: Mixtures, w: Tensor, lam: Tensor) -> Iterate:
    """Find a point near the saddle point by Newton steps on the conditions while the barrier's weight goes to 0.

    The problem is convex in w and concave in λ, so a Newton step always brings the conditions nearer to 0.

    Args:
        functions: The f_i.
        mixtures: Λ and ψ.
        w: (d,) starting point.
        lam: (N,) starting point, strictly inside the bounds.
    """
    f = functions.losses(w)
    excess, scale = f - f.mean(), float(1 + f.abs().max())
    # Multipliers must start strictly above 0.
    slack = excess.abs().mean() + 1e-3 * scale
    here = Iterate(w, lam, f.mean(), (-excess).clamp(min=0) + slack, excess.clamp(min=0) + slack)
    for _ in range(ITERATIONS):
        lacking = conditions(functions, mixtures, here)
        gap = float(lacking.lower.sum() + lacking.upper.sum()) / (2 * mixtures.n)
        if gap < 1e-13 * scale and lacking.norm() < 1e-9 * scale:
            break
        barrier = 0.1 * gap
        now = conditions(functions, mixtures, here, barrier)
        # Solve the linearised conditions. The bounds' multipliers are eliminated first, because the remaining system is
        # smaller and symmetric.
        below, above = here.lam - mixtures.low, mixtures.high - here.lam
        stiffness = mixtures.curvature + here.z / below + here.Z / above
        pull = -now.losses + now.lower / below - now.upper / above
        K = _matrix(functions, here.w, here.lam, stiffness, torch.ones_like(here.lam))
        solution = torch.linalg.solve(K, torch.cat([-now.gradient, pull, -now.total[None]]))
        dw, dlam, dnu = solution.split([len(here.w), mixtures.n, 1])
        step = Iterate(dw, dlam, dnu[0], (-now.lower - here.z * dlam) / below, (-now.upper + here.Z * dlam) / above)
        # Use slightly less than the longest step within all bounds, and halve it until the conditions get nearer to 0.
        pairs = (below, step.lam), (above, -step.lam), (here.z, step.z), (here.Z, step.Z)
        room = min(float(torch.where(change < 0, -value / change, torch.inf).min()) for value, change in pairs)
        size, after = min(1.0, 0.995 * room), here
        while size > 1e-12:
            after = Iterate(*(part + size * change for part, change in zip(here, step, strict=True)))
            if conditions(functions, mixtures, after, barrier).norm() <= (1 - 0.01 * size) * now.norm():
                break
            size /= 2
        here = after
    return here


def _matrix(functions: Functions, w: Tensor, lam: Tensor, stiffness: Tensor, free: Tensor) -> Tensor:
    """Return the linearised conditions [[H, Jᵀ, 0], [J, −stiffness, −1], [0, 1ᵀ, 0]], with 0 for fixed entries."""
    d = len(w)
    K = torch.zeros(d + len(lam) + 1, d + len(lam) + 1, dtype=w.dtype)
    K[:d, :d] = functions.hessian(w, lam)
    K[d:-1, :d] = functions.gradients(w) * free[:, None]
    K[d:-1, d:-1] = torch.diag(-stiffness * free)
    K[d:-1, -1], K[-1, d:-1] = -free, free
    K[:d, d:-1] = K[d:-1, :d].T
    return K


def polish(functions: Functions, mixtures: Mixtures, at: Iterate) -> tuple[Tensor, Tensor]:
    """Refine a point to the saddle point (w, λ) by Newton steps on the free λ_i, as long as they halve the residual.

    If gradients are linearly dependent and ψ = 0, λ is not unique; the nearest one is returned.

    Raises:
        ArithmeticError: If the final conditions, including those on the bounds, are not met.
    """
    n, low, high, curvature = mixtures
    scale = float(1 + functions.losses(at.w).abs().max())
    # A bound is active if its multiplier exceeds the distance from it, both in the losses' unit.
    at_low, at_high = (at.lam - low) * scale < at.z, (high - at.lam) * scale < at.Z
    free = (~(at_low | at_high)).double()
    stiffness, none = torch.full_like(free, curvature), torch.zeros_like(free)
    lam = torch.where(at_low, low, torch.where(at_high, high, at.lam))
    at = Iterate(at.w, lam, at.nu, none, none)
    slopes, (residual, norm) = none, _free_conditions(conditions(functions, mixtures, at), free)
    for _ in range(ITERATIONS):
        K = _matrix(functions, at.w, at.lam, stiffness, free)
        step = torch.linalg.lstsq(K, -residual[:, None], driver="gelsd", rcond=1e-13).solution[:, 0]
        dw, dlam, dnu = step.split([len(at.w), n, 1])
        nearer = Iterate(at.w + dw, at.lam + dlam * free, at.nu + dnu[0], none, none)
        after, nearer_norm = _free_conditions(conditions(functions, mixtures, nearer), free)
        if not nearer_norm < norm / 2:
            break
        at, residual, norm = nearer, after, nearer_norm
    # At an active bound, the slope must push λ_i against the bound.
    slopes = conditions(functions, mixtures, at).losses
    outside = (slopes[at_low], -slopes[at_high], low - at.lam, at.lam - high)
    wrong = max(norm, *(float(part.max()) for part in outside if part.numel()))
    if not wrong <= 1e-10 * scale:
        raise ArithmeticError(f"the saddle point's optimality conditions are off by {wrong:.1e}")
    return at.w, at.lam.clamp(low, high)


def _free_conditions(lacking: Conditions, free: Tensor) -> tuple[Tensor, float]:
    """Return the conditions (d + N + 1,) that remain if active bounds are fixed, and their norm."""
    residual = torch.cat([lacking.gradient, lacking.losses * free, lacking.total[None]])
    return residual, float(residual.norm())
