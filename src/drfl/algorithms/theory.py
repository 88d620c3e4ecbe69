"""Step sizes, numbers of local steps and penalties prescribed by the papers' theorems.

These are the values that the proofs allow, not those that work best; ``docs/theory.md`` compares them. You supply the
constants (L, μ, L_λx); :func:`linear_smoothness` and :func:`linear_coupling` bound them for linear models.

Example:
    >>> from drfl import theory
    >>> steps = theory.drdm(T=10**6, m=4, n=16, L=2.0)
    >>> steps.tau, steps.mu, steps.rounds
    (15, 8.0, 66667)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError

CROSS_ENTROPY = 0.5
"""Largest curvature of the cross-entropy in its logits: diag(p) − ppᵀ ⪯ ½·I."""

LOGISTIC = 0.25
"""Largest curvature of the binary cross-entropy in its single logit."""

SQUARED = 2.0
"""Curvature of (o − y)² in o; ``nn.MSELoss`` over q outputs has 2/q."""

CROSS_ENTROPY_SLOPE = math.sqrt(2)
"""Largest norm of the cross-entropy's gradient in its logits, ‖p − e_y‖ ≤ √2; for the logistic loss it is 1."""


EXTREME = 1e60
"""Largest constant allowed, so that products and squares do not overflow."""


class DRFASteps(NamedTuple):
    """Parameters of DRFA and DRFA-Prox.

    Args:
        tau: Local steps τ ≥ 1.
        eta: Local step size η.
        gamma: Dual step size γ; a round moves λ by τγ·v, as in `DRFA`.
        rounds: Number of rounds, ⌈T/τ⌉.
    """

    tau: int
    eta: float
    gamma: float
    rounds: int


class DRDMSteps(NamedTuple):
    """Parameters of DRDM: those of DRFA, and the penalty μ."""

    tau: int
    eta: float
    gamma: float
    mu: float
    rounds: int


class PrimalDualSteps(NamedTuple):
    """Parameters of one round of SCAFF-PD.

    Args:
        tau: Primal step size τ_r.
        sigma: Dual step size σ_r.
        theta: Extrapolation θ_r.
    """

    tau: float
    sigma: float
    theta: float


class GradientNoise(NamedTuple):
    """Noise of the local gradients and the error it may leave (Yu et al. 2023, Assumption B.4, Condition 3.2).

    Args:
        variance: ζ² ≥ 0, a bound on E‖g_i(x) − ∇f_i(x)‖² for every client.
        accuracy: ε > 0, target for μ_x·E‖x^R − x*‖² (Corollary 3.6). Half of it is for the noise, the other half for
            the remaining error of the starting point.
        steps: Local steps J ≥ 1.
        chi: χ = max_{λ∈Λ} Σ_i λ_i² (D.4); 1 for the whole simplex.
    """

    variance: float
    accuracy: float
    steps: int = 1
    chi: float = 1.0

    @property
    def constant(self) -> float:
        """C of (E.19) with the rates of :func:`scaffpd_local`: (1 + χ)/16 + (1/64 + 2χ)/J.

        (E.18) contains (3τL + τ²L²/8)·(12(1 + χ) + 3/J)/η_g² with the 12 of Lemma D.2, and (3τL + τ²L²/8)/η_g² ≤ 1/192
        because 16(36τL + 2τ²L²) ≤ η_g². (D.19) adds 2χ/J.
        """
        return (1 + self.chi) / 16 + (1 / 64 + 2 * self.chi) / self.steps


class LocalRates(NamedTuple):
    """The two local rates whose product with J is SCAFF-PD's primal step, τ = server_lr·lr·J.

    Args:
        lr: Local step size η_ℓ.
        server_lr: Server step size η_g ≥ 1.
    """

    lr: float
    server_lr: float


def drfa(T: int, m: int, L: float) -> DRFASteps:
    """Compute τ = T^{1/4}/√m, η = 1/(4L√T), γ = T^{-5/8} for convex losses (Deng et al. 2020, Theorems 1 and 3).

    τ is rounded down, because the terms of the bounds grow with it, but is at least 1. The prescribed value is below 1
    if T < m².

    Args:
        T: Total number of local steps, rounds·τ.
        m: Cohort size.
        L: Smoothness constant of every f_i and of F.

    Raises:
        InputError: If a number is out of range.
    """
    _check(T, L)
    checks.integer("m", m)
    tau = _whole_steps(T**0.25 / math.sqrt(m))
    return DRFASteps(tau, 1 / (4 * L * math.sqrt(T)), T**-0.625, -(-T // tau))


def drfa_nonconvex(T: int, L: float) -> DRFASteps:
    """Compute τ = T^{1/4}, η = 1/(4L·T^{3/4}), γ = 1/√T for nonconvex losses (Deng et al. 2020, Theorems 2 and 4).

    Args:
        T: Total number of local steps, rounds·τ.
        L: Smoothness constant of every f_i and of F.

    Raises:
        InputError: If a number is out of range.
    """
    _check(T, L)
    tau = _whole_steps(T**0.25)
    return DRFASteps(tau, 1 / (4 * L * T**0.75), T**-0.5, -(-T // tau))


def drdm(T: int, m: int, n: int, L: float) -> DRDMSteps:
    """Compute DRFA's parameters and μ = 2L·√(N/m) for convex losses (Krouka et al. 2025, Theorem 1).

    With these values the paper's bound does not converge to 0, see ``docs/theory.md``.

    Args:
        T: Total number of local steps, rounds·τ.
        m: Cohort size, at most n.
        n: Number of clients N.
        L: Smoothness constant of every f_i and of F.

    Raises:
        InputError: If a number is out of range.
    """
    steps = drfa(T, m, L)
    checks.integer("n", n)
    if m > n:
        raise InputError(f"m={m} must be at most the number of clients, n={n}", code="out-of-range", field="m")
    return DRDMSteps(steps.tau, steps.eta, steps.gamma, 2 * L * math.sqrt(n / m), steps.rounds)


def scaffpd_accelerated(
    L_xx: float, L_lx: float, mu: float, *, gamma_0: float = 1.0, growth: float = 0.25, c: float = 1.0
) -> Iterator[PrimalDualSteps]:
    """Yield the steps of each round for strongly convex losses and any ψ (Yu et al. 2023, Condition 3.1, Lemma E.3).

    σ_r = γ_r·τ_r, γ_{r+1} = γ_r(1 + μ'τ_r), τ_{r+1} = τ_r·√(γ_r/γ_{r+1}), θ_r = σ_{r-1}/σ_r, θ_0 = 1. τ_0 is the
    largest value that satisfies (E.35) with δ = 0, 1/τ_0 = 12L_xx + 2L_λx²σ_0/c; every later round then satisfies it
    too. The iterator is endless.

    Args:
        L_xx: Smoothness constant of every f_i.
        L_lx: Lipschitz constant of w ↦ (f_1(w), …, f_N(w)).
        mu: Strong convexity constant μ_x > 0 of every f_i; at most L_xx.
        gamma_0: σ_0/τ_0 > 0.
        growth: μ' = growth·μ_x. The proof supports ¼ (E.2, Remark E.4); Condition 3.1 prints 1.
        c: c_α in (0, 1].

    Raises:
        InputError: If a number is out of range.
    """
    _check_smooth(L_xx, L_lx, "mu", mu)
    _constant("gamma_0", gamma_0)
    for name, value in (("growth", growth), ("c", c)):
        checks.positive(name, value)
        checks.fraction(name, value)
    tau = 2 / (12 * L_xx + math.sqrt(144 * L_xx**2 + 8 * L_lx**2 * gamma_0 / c))  # 2L²γ_0τ²/c + 12Lτ = 1

    # Use an inner generator. If the public function were one, its checks would run only with the first request for a
    # value.
    def steps(tau: float, gamma: float) -> Iterator[PrimalDualSteps]:
        theta = 1.0
        while True:
            yield PrimalDualSteps(tau, gamma * tau, theta)
            theta = 1 / math.sqrt(1 + growth * mu * tau)  # √(γ_r/γ_{r+1})
            gamma, tau = gamma / theta**2, tau * theta

    return steps(tau, gamma_0)


def scaffpd_constant(
    L_xx: float,
    L_lx: float,
    mu_x: float,
    mu_lam: float,
    *,
    c_omega: float = 1.0,
    noise: GradientNoise | None = None,
) -> PrimalDualSteps:
    """Compute the constant steps for strongly convex losses and ψ (Yu et al. 2023, Condition 3.2, Lemma E.8).

    θ = 1 − 1/ω, τ = 4(1−θ)/(θμ_x), σ = (1−θ)/(θμ_λ) (E.51), where ω is c_omega times the positive root of
    μ_xμ_λω² − (μ_xμ_λ + 48μ_λL_xx)ω − 8L_λx² = 0 (E.54, second line). 1 − θ = 1/ω is the rate of convergence.

    With noise, ω is at least 1 + 64C·ζ²/(μ_xε), the other branch of Condition 3.2 (E.64). Then (see ``docs/theory.md``)
    E‖x^R − x*‖² ≤ θ^R·(‖x⁰ − x*‖² + (4μ_λ/μ_x)‖λ⁰ − λ*‖²) + ε/(2μ_x).

    Args:
        L_xx: Smoothness constant of every f_i.
        L_lx: Lipschitz constant of w ↦ (f_1(w), …, f_N(w)).
        mu_x: Strong convexity constant of every f_i; at most L_xx.
        mu_lam: Strong convexity constant of ψ, ``ambiguity.strong_convexity(n)``.
        c_omega: C_ω ≥ 1.
        noise: Noise of the local gradients; None means exact gradients.

    Raises:
        InputError: If a number is out of range.
    """
    _check_smooth(L_xx, L_lx, "mu_x", mu_x)
    _constant("mu_lam", mu_lam)
    if not (math.isfinite(c_omega) and c_omega >= 1):
        raise InputError(
            f"c_omega must be a finite number of at least 1, got {c_omega!r}", code="out-of-range", field="c_omega"
        )
    # The positive root of (E.54) after division by μ_xμ_λ.
    half = 0.5 + 24 * L_xx / mu_x
    omega = c_omega * (half + math.sqrt(half**2 + 8 * L_lx**2 / (mu_x * mu_lam)))
    if noise is not None:
        if noise.variance != 0:
            _constant("variance", noise.variance)
        _constant("accuracy", noise.accuracy)
        checks.integer("steps", noise.steps)
        checks.positive("chi", noise.chi)
        checks.fraction("chi", noise.chi)
        omega = max(omega, 1 + 64 * noise.constant * noise.variance / (mu_x * noise.accuracy))
    ratio = 1 / (omega - 1)  # (1 − θ)/θ
    return PrimalDualSteps(4 * ratio / mu_x, ratio / mu_lam, 1 - 1 / omega)


def scaffpd_local(tau: float, L_xx: float, steps: int) -> LocalRates:
    """Divide the primal step τ among J local steps (Yu et al. 2023, Lemma D.2 and E.18).

    η_g is the smallest value with η_g ≥ 1, 16(36τL_xx + 2τ²L_xx²) ≤ η_g² (E.18) and 4τ²L_xx²(J−1)/J ≤ η_g² (D.7).

    Args:
        tau: τ_0, the largest step of the schedule.
        L_xx: Smoothness constant of every f_i.
        steps: J ≥ 1.

    Raises:
        InputError: If a number is out of range.
    """
    _constant("tau", tau)
    _constant("L_xx", L_xx)
    checks.integer("steps", steps)
    s = tau * L_xx
    # The three lower bounds on η_g, in the order of the docstring.
    server_lr = max(1.0, 4 * math.sqrt(36 * s + 2 * s**2), 2 * s * math.sqrt((steps - 1) / steps))
    return LocalRates(tau / (server_lr * steps), server_lr)


def linear_smoothness(x: Tensor, curvature: float, *, bias: bool = True) -> float:
    """Compute L of one client's mean loss under a linear model: curvature·λ_max(Σ_j x_j x_jᵀ / n), no weight decay.

    Args:
        x: (n, p) The client's inputs, flattened.
        curvature: Curvature of the loss in the outputs, e.g. :data:`CROSS_ENTROPY`.
        bias: Whether the model has a bias, which is treated as an input that is always 1.

    Raises:
        InputError: If x is empty, not finite, or not of shape (n, p).
    """
    checks.positive("curvature", curvature)
    x = _inputs(x, bias)
    gram = x.T @ x if x.shape[1] <= x.shape[0] else x @ x.T  # the same largest eigenvalue
    return curvature * float(torch.linalg.eigvalsh(gram)[-1]) / len(x)


def linear_coupling(clients: Sequence[Tensor], slope: float, *, bias: bool = True) -> float:
    """Bound L_λx under a linear model by slope·√(Σ_i (mean_j ‖x_ij‖)²), since ‖∇f_i‖ ≤ slope·mean_j ‖x_ij‖.

    Weight decay adds the same term to all f_i. It does not move λ, so it is ignored.

    Args:
        clients: (n_i, p) Each client's inputs, flattened.
        slope: Bound on the norm of the loss's gradient in the outputs, e.g. :data:`CROSS_ENTROPY_SLOPE`. The squared
            error has no such bound.
        bias: Whether the model has a bias.

    Raises:
        InputError: If there are no clients, or if an x is empty, not finite, or not of shape (n, p).
    """
    checks.positive("slope", slope)
    if not len(clients):
        raise InputError("clients is empty. Pass the inputs of at least one client", code="empty", field="clients")
    return slope * math.sqrt(sum(float(_inputs(x, bias).norm(dim=1).mean()) ** 2 for x in clients))


def _inputs(x: Tensor, bias: bool) -> Tensor:
    x = torch.as_tensor(x)  # inputs may be NumPy arrays
    if x.dim() != 2 or not x.numel():
        raise InputError(
            f"inputs must have shape (n, p) with n ≥ 1 and p ≥ 1, got {tuple(x.shape)}. Flatten each input",
            code="wrong-shape",
            field="inputs",
        )
    x = x.detach().to("cpu", torch.float64)
    checks.finite("inputs", x)
    return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1) if bias else x


def _whole_steps(tau: float) -> int:
    """Round τ down, but at least to 1; the offset protects integers that rounding made slightly too small."""
    return max(1, math.floor(tau + 1e-9))


def _check(T: int, L: float) -> None:
    checks.integer("T", T)
    _constant("T", T)
    _constant("L", L)


def _constant(name: str, value: float) -> None:
    """Check that a constant is positive and of a size at which products and squares neither overflow nor vanish."""
    checks.positive(name, value)
    if not 1 / EXTREME <= value <= EXTREME:
        raise InputError(
            f"{name} must be between {1 / EXTREME:g} and {EXTREME:g}, got {value}. Use other units",
            code="out-of-range",
            field=name,
        )


def _check_smooth(L_xx: float, L_lx: float, name: str, mu: float) -> None:
    _constant("L_xx", L_xx)
    if L_lx != 0:
        checks.non_negative("L_lx", L_lx)
        _constant("L_lx", L_lx)
    _constant(name, mu)
    if mu > L_xx:
        raise InputError(
            f"{name}={mu} must be at most L_xx={L_xx}, because strong convexity cannot exceed smoothness",
            code="out-of-range",
            field=name,
        )
