"""Exact optima: Newton's method, interior points and mixtures."""

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


def minimise(function: Callable[[Tensor], Point], start: Tensor, tolerance: float = 1e-10) -> Tensor:
    """The minimiser (d,), as precisely as float64 lets the gradient vanish.

    Far away, steps are halved until the value falls enough. Once values differ by rounding only, full steps are taken
    as long as they halve the gradient, since the value no longer says which of two points is better.

    Args:
        function: smooth and strongly convex.
        start: (d,).
        tolerance: bound on the gradient's norm, relative to 1 + |value|.

    Raises:
        ArithmeticError: the gradient is larger than that in the end.
    """
    w, at = start, function(start)
    for _ in range(ITERATIONS):
        step = torch.linalg.solve(at.hessian, -at.gradient)
        slope = float(at.gradient @ step)
        visible = -slope > 1e-11 * (1 + abs(float(at.value)))
        size, after = 1.0, function(w + step)
        while visible and size > 1e-9 and not after.value <= at.value + 0.25 * size * slope:
            size /= 2
            after = function(w + size * step)
        if not visible and not after.gradient.norm() < at.gradient.norm() / 2:
            break
        w, at = w + size * step, after
    if not at.gradient.norm() <= tolerance * (1 + at.value.abs()):
        raise ArithmeticError(f"Newton's method ended with a gradient of norm {float(at.gradient.norm()):.1e}")
    return w


NEVER = 2.0
"""An upper bound that no entry of a mixture reaches."""


class Mixtures(NamedTuple):
    """Λ = {λ : low ≤ λ_i ≤ high, Σ_i λ_i = 1} with ψ(λ) = (curvature/2)·‖λ − 1/N‖².

    Args:
        n: N.
        low: ≥ 0.
        high: at least 1/N.
        curvature: ≥ 0.
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
        prior: p, of sum 1.
    """

    rho: float
    prior: tuple[float, ...]


class Ball(NamedTuple):
    """Those mixtures of the simplex whose divergence from a centre p is at most a radius; ψ = 0.

    Args:
        radius: ≥ 0.
        centre: p, of sum 1; uniform for the χ² divergence.
        entropic: whether the divergence is Kullback and Leibler's; otherwise (N/2)·‖λ − p‖², the χ² divergence.
    """

    radius: float
    centre: tuple[float, ...]
    entropic: bool

    @property
    def simplex(self) -> Mixtures:
        """The set with an infinite radius."""
        return Mixtures(len(self.centre), 0.0, NEVER, 0.0)

    def penalty(self, rho: float) -> Mixtures | Entropic:
        """The simplex with ψ = ρ times the divergence."""
        n = len(self.centre)
        return Entropic(rho, self.centre) if self.entropic else Mixtures(n, 0.0, NEVER, rho * n)

    def divergence(self, lam: Tensor) -> float:
        """Of λ (N,) from the centre."""
        p = torch.tensor(self.centre, dtype=torch.float64)
        parts = torch.special.xlogy(lam, lam / p) if self.entropic else len(p) / 2 * (lam - p).square()
        return float(parts.sum())


def mixtures_of(ambiguity: AmbiguitySet, n: int) -> Mixtures | Entropic | Ball:
    """The set as one of the kinds that the solver knows.

    Raises:
        InputError: it is another set, or does not go with N.
    """
    ambiguity.worst_case(torch.zeros(n))  # refuses numbers that do not go with N
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
        f"no saddle point is known for {type(ambiguity).__name__}: take one of drfl.ambiguity's own sets",
        code="unsupported-combination",
        field="ambiguity",
    )


def _cap(cap: float) -> float:
    return cap if cap < 1 else NEVER


class Iterate(NamedTuple):
    """w (d,), λ (N,), ν () for Σ_i λ_i = 1, and z ≥ 0, Z ≥ 0 (N,) for the lower and the upper bounds."""

    w: Tensor
    lam: Tensor
    nu: Tensor
    z: Tensor
    Z: Tensor


class Conditions(NamedTuple):
    """What the optimality conditions lack.

    Args:
        gradient: (d,) Σ_i λ_i ∇f_i(w).
        losses: (N,) f_i(w) − ∇_iψ(λ) − ν + z_i − Z_i.
        total: () Σ_i λ_i − 1.
        lower: (N,) z_i·(λ_i − low), less the barrier's weight.
        upper: (N,) Z_i·(high − λ_i), less the barrier's weight.
    """

    gradient: Tensor
    losses: Tensor
    total: Tensor
    lower: Tensor
    upper: Tensor

    def norm(self) -> float:
        """Of all of them."""
        return float(torch.cat([part.flatten() for part in self]).norm())


def conditions(functions: Functions, mixtures: Mixtures, at: Iterate, barrier: float = 0.0) -> Conditions:
    """The optimality conditions at a point; all 0 at the saddle point, where the barrier's weight is 0 too."""
    n, low, high, curvature = mixtures
    return Conditions(
        at.lam @ functions.gradients(at.w),
        functions.losses(at.w) - curvature * (at.lam - 1 / n) - at.nu + at.z - at.Z,
        at.lam.sum() - 1,
        at.z * (at.lam - low) - barrier,
        at.Z * (high - at.lam) - barrier,
    )


def interior(functions: Functions, mixtures: Mixtures, w: Tensor, lam: Tensor) -> Iterate:
    """A point near the saddle point: Newton steps on the conditions while the barrier's weight goes to 0.

    The problem is convex in w and concave in λ, so that a Newton step always brings the conditions nearer to 0.

    Args:
        functions: the f_i.
        mixtures: Λ and ψ.
        w: (d,) where to start.
        lam: (N,) strictly inside the bounds.
    """
    f = functions.losses(w)
    excess, scale = f - f.mean(), float(1 + f.abs().max())
    # Multipliers must start strictly above 0.
    slack = excess.abs().mean() + 1e-3 * scale
    at = Iterate(w, lam, f.mean(), (-excess).clamp(min=0) + slack, excess.clamp(min=0) + slack)
    for _ in range(ITERATIONS):
        lacking = conditions(functions, mixtures, at)
        gap = float(lacking.lower.sum() + lacking.upper.sum()) / (2 * mixtures.n)
        if gap < 1e-13 * scale and lacking.norm() < 1e-9 * scale:
            break
        barrier = 0.1 * gap
        now = conditions(functions, mixtures, at, barrier)
        step = _newton_step(functions, mixtures, at, now)
        # Slightly less than the longest step within all bounds, halved until the conditions get nearer to 0.
        pairs = (
            (at.lam - mixtures.low, step.lam), (mixtures.high - at.lam, -step.lam), (at.z, step.z), (at.Z, step.Z),
        )  # fmt: skip
        room = min(float(torch.where(change < 0, -value / change, torch.inf).min()) for value, change in pairs)
        size, after = min(1.0, 0.995 * room), at
        while size > 1e-12:
            after = Iterate(*(part + size * change for part, change in zip(at, step, strict=True)))
            if conditions(functions, mixtures, after, barrier).norm() <= (1 - 0.01 * size) * now.norm():
                break
            size /= 2
        at = after
    return at


def _newton_step(functions: Functions, mixtures: Mixtures, at: Iterate, r: Conditions) -> Iterate:
    """Solves the linearised conditions; the bounds' multipliers are eliminated first."""
    below, above = at.lam - mixtures.low, mixtures.high - at.lam
    stiffness = mixtures.curvature + at.z / below + at.Z / above
    pull = -r.losses + r.lower / below - r.upper / above
    K = _matrix(functions, at.w, at.lam, stiffness, torch.ones_like(at.lam))
    solution = torch.linalg.solve(K, torch.cat([-r.gradient, pull, -r.total[None]]))
    dw, dlam, dnu = solution.split([len(at.w), len(at.lam), 1])
    return Iterate(dw, dlam, dnu[0], (-r.lower - at.z * dlam) / below, (-r.upper + at.Z * dlam) / above)


def _matrix(functions: Functions, w: Tensor, lam: Tensor, stiffness: Tensor, free: Tensor) -> Tensor:
    """The linearised conditions [[H, Jᵀ, 0], [J, −stiffness, −1], [0, 1ᵀ, 0]]; rows and columns not free are 0."""
    d = len(w)
    K = torch.zeros(d + len(lam) + 1, d + len(lam) + 1, dtype=w.dtype)
    K[:d, :d] = functions.hessian(w, lam)
    K[d:-1, :d] = functions.gradients(w) * free[:, None]
    K[d:-1, d:-1] = torch.diag(-stiffness * free)
    K[d:-1, -1], K[-1, d:-1] = -free, free
    K[:d, d:-1] = K[d:-1, :d].T
    return K


def polish(functions: Functions, mixtures: Mixtures, at: Iterate) -> tuple[Tensor, Tensor]:
    """The saddle point (w, λ) near a point: Newton steps on the free λ_i, as long as they halve what is lacking.

    Where gradients are linearly dependent and ψ = 0, λ is not unique; the nearest one is taken.

    Raises:
        ArithmeticError: the conditions, those on the bounds included, are not met in the end.
    """
    n, low, high, curvature = mixtures
    scale = float(1 + functions.losses(at.w).abs().max())
    # A bound is active if its multiplier exceeds the distance from it, both in the losses' unit.
    at_low, at_high = (at.lam - low) * scale < at.z, (high - at.lam) * scale < at.Z
    free = (~(at_low | at_high)).double()
    stiffness, none = torch.full_like(free, curvature), torch.zeros_like(free)
    lam = torch.where(at_low, low, torch.where(at_high, high, at.lam))
    at = Iterate(at.w, lam, at.nu, none, none)
    slopes, (residual, norm) = none, _held(conditions(functions, mixtures, at), free)
    for _ in range(ITERATIONS):
        K = _matrix(functions, at.w, at.lam, stiffness, free)
        step = torch.linalg.lstsq(K, -residual[:, None], driver="gelsd", rcond=1e-13).solution[:, 0]
        dw, dlam, dnu = step.split([len(at.w), n, 1])
        nearer = Iterate(at.w + dw, at.lam + dlam * free, at.nu + dnu[0], none, none)
        after, nearer_norm = _held(conditions(functions, mixtures, nearer), free)
        if not nearer_norm < norm / 2:
            break
        at, residual, norm = nearer, after, nearer_norm
    # At an active bound, the slope must push λ_i against it.
    slopes = conditions(functions, mixtures, at).losses
    outside = (slopes[at_low], -slopes[at_high], low - at.lam, at.lam - high)
    wrong = max(norm, *(float(part.max()) for part in outside if part.numel()))
    if not wrong <= 1e-10 * scale:
        raise ArithmeticError(f"the saddle point's optimality conditions are off by {wrong:.1e}")
    return at.w, at.lam.clamp(low, high)


def _held(lacking: Conditions, free: Tensor) -> tuple[Tensor, float]:
    """The conditions (d + N + 1,) that remain when bounds are held, and their norm."""
    residual = torch.cat([lacking.gradient, lacking.losses * free, lacking.total[None]])
    return residual, float(residual.norm())
