"""The Karush-Kuhn-Tucker conditions of project, prox and worst_case, from the definitions of the sets.

All three maximise v·λ − (q/2)‖λ‖² − c·ψ(λ) over λ, subject to lo ≤ λ_i ≤ hi, Σλ = 1, and in a ball D(λ) ≤ radius.
A projection and a prox have q = 1, a worst case has q = 0; c is 0, the step, or 1. λ is the answer if and only if
numbers θ and κ ≥ 0 exist such that

    g = v − qλ − c∇ψ(λ) − κ∇D(λ)    has    g_i ≤ θ where λ_i < hi,    g_i ≥ θ where λ_i > lo,

and κ = 0 unless D(λ) = radius. The NumPy code checks many rows at once. Of a set it reads only the parameters.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from drfl.ambiguity import KL, AmbiguitySet, Box, ChiSquare, ChiSquareBall, CVaR, KLBall, Simplex

AT = 1e-12
"""Distance below which λ_i counts as being at a bound."""
LEAST = 1e-300
"""A λ_i below this counts as 0 for a logarithm."""
LARGE = 1e6
"""Residuals are absolute if the terms of g are at most this large, and relative to size/LARGE otherwise."""


class Definition(NamedTuple):
    """A set: its bounds, the weight ρ of ψ, a ball's radius, and their divergence, "square" or "kl"."""

    n: int
    lo: float = 0.0
    hi: float = 1.0
    rho: float = 0.0
    radius: float | None = None
    kind: str = "square"
    prior: np.ndarray | None = None

    def gradient(self, lam: np.ndarray) -> np.ndarray:
        """Return ∇D (draws, n)."""
        if self.kind == "square":
            return self.n * lam - 1
        return np.log(np.maximum(lam, LEAST) / self.prior)

    def size(self, lam: np.ndarray) -> np.ndarray:
        """Return the largest of the terms (draws,) whose difference is ∇D."""
        if self.kind == "square":
            return np.maximum(self.n * lam.max(1), 1)
        return np.maximum(np.abs(np.log(np.maximum(lam, LEAST))).max(1), np.abs(np.log(self.prior)).max())

    def divergence(self, lam: np.ndarray) -> np.ndarray:
        """Return D (draws,): (1/2N)Σ(Nλ_i − 1)², or Σλ_i log(λ_i/p_i)."""
        if self.kind == "square":
            return np.square(self.n * lam - 1).sum(1) / (2 * self.n)
        return (lam * self.gradient(lam)).sum(1)


def definition(ambiguity: AmbiguitySet, n: int) -> Definition:
    """Return the definition of a set for n clients, from its documentation."""
    prior = getattr(ambiguity, "prior", None)
    prior = np.full(n, 1 / n) if prior is None else np.array(prior)
    if isinstance(ambiguity, CVaR):
        return Definition(n, hi=min(1 / (ambiguity.alpha * n), 1.0))
    if isinstance(ambiguity, Box):
        return Definition(n, hi=ambiguity.cap)
    if isinstance(ambiguity, ChiSquare):
        return Definition(n, rho=ambiguity.rho)
    if isinstance(ambiguity, KL):
        return Definition(n, rho=ambiguity.rho, kind="kl", prior=prior)
    if isinstance(ambiguity, ChiSquareBall):
        return Definition(n, radius=ambiguity.radius)
    if isinstance(ambiguity, KLBall):
        return Definition(n, radius=ambiguity.radius, kind="kl", prior=prior)
    assert isinstance(ambiguity, Simplex), f"{ambiguity} has no definition here"
    return Definition(n, lo=ambiguity.floor)


def residual(what: Definition, v: np.ndarray, lam: np.ndarray, q: float, c: np.ndarray) -> np.ndarray:
    """Return the violation (draws,) of the conditions at λ (draws, n), with v (draws, n), c (draws,)."""
    shrunk = np.where(np.abs(v).max(1) > 1e280, 2.0**-60, 1.0)  # scale g down to avoid overflow
    v, q, c = v * shrunk[:, None], q * shrunk[:, None], c * shrunk
    infeasible = np.abs(lam.sum(1) - 1)
    infeasible = np.maximum(infeasible, (what.lo - lam).max(1))
    infeasible = np.maximum(infeasible, (lam - what.hi).max(1))
    g = v - q * lam
    if what.rho:
        g = g - (c * what.rho)[:, None] * what.gradient(lam)
    size = np.maximum(np.abs(v).max(1), c * what.rho * what.size(lam) if what.rho else 0)
    missed = _missed(what, g, lam, what.rho > 0) / np.maximum(1, size / LARGE)
    if what.radius is not None:
        D = what.divergence(lam)
        infeasible = np.maximum(infeasible, D - what.radius)
        if what.radius == 0:  # the only member is the prior, so a multiplier need not exist
            only = what.prior if what.prior is not None else 1 / what.n
            return np.maximum(infeasible, np.abs(lam - only).max(1))
        kappa = _multiplier(what, g, lam)
        pull = kappa[:, None] * what.gradient(lam)
        size = np.maximum(size, kappa * what.size(lam))
        on = _missed(what, g - pull, lam, True) / np.maximum(1, size / LARGE)
        missed = np.minimum(missed, np.maximum(on, np.abs(D - what.radius)))
    return np.maximum(infeasible, missed)


def _missed(what: Definition, g: np.ndarray, lam: np.ndarray, everywhere: bool) -> np.ndarray:
    """Return the violation for the best θ; with a logarithm ``everywhere``, only λ_i that round to 0 count as 0."""
    held = LEAST if everywhere and what.kind == "kl" else what.lo + AT
    above = np.where(lam < what.hi - AT, g, -np.inf).max(1)
    below = np.where(lam > held, g, np.inf).min(1)
    return np.maximum(above - below, 0) / 2


def _multiplier(what: Definition, g: np.ndarray, lam: np.ndarray) -> np.ndarray:
    """Return κ (draws,) ≥ 0 by least squares over the support, where g = θ + κ∇D(λ)."""
    support = lam > (LEAST if what.kind == "kl" else what.lo + AT)
    scale = np.maximum(np.abs(g).max(1, keepdims=True), 1e-290)
    count = support.sum(1, keepdims=True)

    def centred(x: np.ndarray) -> np.ndarray:
        x = np.where(support, x, 0)
        return np.where(support, x - x.sum(1, keepdims=True) / count, 0)

    slopes, heights = centred(what.gradient(lam)), centred(g / scale)
    square = np.square(slopes).sum(1)
    kappa = np.divide((slopes * heights).sum(1), square, out=np.zeros(len(g)), where=square > 0)
    return np.maximum(kappa, 0) * scale[:, 0]
