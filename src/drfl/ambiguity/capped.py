"""The simplex with a cap on every weight: the superquantile (CVaR), and the box."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from drfl import checks
from drfl.ambiguity.contract import Constraint, WorstCase
from drfl.ambiguity.sorting import onto_capped_simplex
from drfl.ambiguity.vectors import finite, on_simplex
from drfl.errors import InputError


@dataclass(frozen=True)
class CVaR(Constraint):
    """Λ = {λ : 0 ≤ λ_i ≤ 1/(αN), Σ_i λ_i = 1}, ψ = 0: the worst case is the mean loss of the worst α of the clients.

    SCAFF-PD (Yu et al. 2023), appendix B; the superquantile of Δ-FL with tail α = 1 − θ. CVaR(1) is the uniform point
    alone; with α ≤ 1/N it is the simplex.

    Args:
        alpha: the share of the clients that counts, in (0, 1].

    Raises:
        InputError: alpha is out of range.
    """

    alpha: float

    def __post_init__(self) -> None:
        checks.positive("alpha", self.alpha)
        if self.alpha > 1:
            raise InputError(f"alpha must be in (0, 1], not {self.alpha}")

    def project(self, v: Tensor) -> Tensor:
        """Exact by sorting, O(N log N): λ_i = v_i − θ, cut to [0, 1/(αN)], with θ such that the sum is 1."""
        v = finite(v)
        return onto_capped_simplex(v, self._cap(v.numel()))

    def worst_case(self, losses: Tensor) -> WorstCase:
        """The cap on each of the largest losses, and what is left of 1 on the next; the first of equals come first."""
        losses = finite(losses)
        return _fill(losses, self._cap(losses.numel()))

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Whether λ (N,) is on the simplex and no entry exceeds 1/(αN), up to the tolerance."""
        lam = finite(lam)
        return on_simplex(lam, tolerance) and bool((lam <= self._cap(lam.numel()) + tolerance).all())

    def _cap(self, n: int) -> float:
        return min(1 / self.alpha / n, 1.0)


@dataclass(frozen=True)
class Box(Constraint):
    """Λ = {λ : 0 ≤ λ_i ≤ cap, Σ_i λ_i = 1}, ψ = 0: nobody weighs more than the cap, however many clients there are.

    Args:
        cap: the greatest weight of any client, in (0, 1]; must leave room, N·cap ≥ 1.

    Raises:
        InputError: cap is out of range, or too small for N (when first used).
    """

    cap: float

    def __post_init__(self) -> None:
        checks.positive("cap", self.cap)
        if self.cap > 1:
            raise InputError(f"cap must be in (0, 1], not {self.cap}")

    def project(self, v: Tensor) -> Tensor:
        """Exact by sorting, O(N log N): λ_i = v_i − θ, cut to [0, cap], with θ such that the sum is 1."""
        v = self._fitting(v)
        return onto_capped_simplex(v, self.cap)

    def worst_case(self, losses: Tensor) -> WorstCase:
        """The cap on each of the largest losses, and what is left of 1 on the next; the first of equals come first."""
        return _fill(self._fitting(losses), self.cap)

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Whether λ (N,) is on the simplex and no entry exceeds the cap, up to the tolerance."""
        lam = self._fitting(lam)
        return on_simplex(lam, tolerance) and bool((lam <= self.cap + tolerance).all())

    def _fitting(self, v: Tensor) -> Tensor:
        v, n = finite(v), v.numel()
        if n * self.cap < 1 - 1e-12:
            raise InputError(f"cap={self.cap} is too small for {n} clients: at least 1/{n}")
        return v


def _fill(losses: Tensor, cap: float) -> WorstCase:
    """The mixture capped at ``cap`` that puts its weight on the largest losses."""
    n = losses.numel()
    if n * cap <= 1 + 1e-12:
        lam = torch.full_like(losses, 1 / n)
        return WorstCase(float(lam @ losses), lam)
    full = min(math.floor(1 / cap), n - 1)
    order = losses.argsort(descending=True, stable=True)
    lam = torch.zeros_like(losses)
    lam[order[:full]] = cap
    lam[order[full]] = max(1 - full * cap, 0.0)
    return WorstCase(float(lam @ losses), lam)
