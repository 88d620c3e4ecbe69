"""The simplex, with a floor under every weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drfl import checks
from drfl.ambiguity.contract import Constraint, WorstCase
from drfl.ambiguity.sorting import onto_simplex
from drfl.ambiguity.vectors import finite, on_simplex
from drfl.errors import InputError


@dataclass(frozen=True)
class Simplex(Constraint):
    """Λ = {λ : λ_i ≥ floor, Σ_i λ_i = 1}, ψ = 0. With floor 0 it is the whole simplex of DRFA, AFL and DRDM, eq. (2).

    Args:
        floor: the least weight of any client; must leave room, N·floor ≤ 1.

    Raises:
        InputError: floor is negative, or too large for N (when first used).
    """

    floor: float = 0.0

    def __post_init__(self) -> None:
        checks.non_negative("floor", self.floor)
        if self.floor > 1:
            raise InputError(f"floor must be in [0, 1], not {self.floor}")

    def project(self, v: Tensor) -> Tensor:
        """Exact by sorting, O(N log N): λ_i = floor + max(v_i − θ, 0) with θ such that the sum is 1.

        Raises:
            NonFiniteError: v holds NaN or infinity.
        """
        v = finite(v)
        return onto_simplex(v, self._room(v.numel())) + self.floor

    def worst_case(self, losses: Tensor) -> WorstCase:
        """The floor for everybody and the rest on the (first) largest loss.

        Raises:
            NonFiniteError: a loss is NaN or infinite.
        """
        losses = finite(losses)
        lam = torch.full_like(losses, self.floor)
        lam[losses.argmax()] += self._room(losses.numel())
        return WorstCase(float(lam @ losses), lam)

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Whether λ (N,) sums to 1 and no entry is below the floor, up to the tolerance."""
        lam = finite(lam)
        self._room(lam.numel())
        return on_simplex(lam, tolerance) and bool((lam >= self.floor - tolerance).all())

    def _room(self, n: int) -> float:
        room = 1 - n * self.floor
        if room < -1e-12:
            raise InputError(f"floor={self.floor} is too large for {n} clients: at most 1/{n}")
        return max(room, 0.0)
