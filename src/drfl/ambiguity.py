"""Ambiguity sets Λ: which mixtures λ of the clients' losses the model must stand up to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from drfl.errors import InputError, NonFiniteError


class WorstCase(NamedTuple):
    """max_{λ∈Λ} Σ_i λ_i f_i − ψ(λ) and a λ (N,) that attains it."""

    value: float
    lam: Tensor


class AmbiguitySet(Protocol):
    """A closed convex set Λ of mixtures with a convex regulariser ψ (0 unless the set says otherwise)."""

    def project(self, v: Tensor) -> Tensor:
        """The point of Λ nearest to v (N,), in float64."""
        ...

    def prox(self, v: Tensor, step: float) -> Tensor:
        """argmin_{u∈Λ} ψ(u) + ‖u − v‖²/(2·step), in float64."""
        ...

    def worst_case(self, losses: Tensor) -> WorstCase:
        """The mixture that these losses (N,) suffer most from."""
        ...


@dataclass(frozen=True)
class Simplex:
    """Λ = {λ : λ_i ≥ floor, Σ_i λ_i = 1}, ψ = 0. With floor 0 it is the whole simplex of DRFA, AFL and DRDM, eq. (2).

    Args:
        floor: the least weight of any client; must leave room, N·floor ≤ 1.

    Raises:
        InputError: floor is negative, or too large for N (when first used).
    """

    floor: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= 1:
            raise InputError(f"floor must be in [0, 1], not {self.floor}")

    def project(self, v: Tensor) -> Tensor:
        """Exact by sorting, O(N log N): λ_i = floor + max(v_i − θ, 0) with θ such that the sum is 1.

        Raises:
            NonFiniteError: v holds NaN or infinity.
        """
        v = _finite(v)
        room = self._room(v.numel())
        # Shifting v changes nothing; entries more than `room` below the largest come out at the floor in any case, so
        # cutting them there keeps sums exact however large the entries are.
        v = (v - v.max()).clamp(min=-room)
        ordered = v.sort(descending=True).values
        thetas = (ordered.cumsum(0) - room) / torch.arange(1, v.numel() + 1, dtype=v.dtype)
        support = int((ordered > thetas).sum().clamp(min=1))
        return (v - thetas[support - 1]).clamp(min=0) + self.floor

    def prox(self, v: Tensor, step: float) -> Tensor:
        """The projection: ψ is 0."""
        return self.project(v)

    def worst_case(self, losses: Tensor) -> WorstCase:
        """The floor for everybody and the rest on the (first) largest loss.

        Raises:
            NonFiniteError: a loss is NaN or infinite.
        """
        losses = _finite(losses)
        lam = torch.full_like(losses, self.floor)
        lam[losses.argmax()] += self._room(losses.numel())
        return WorstCase(float(lam @ losses), lam)

    def _room(self, n: int) -> float:
        room = 1 - n * self.floor
        if room < -1e-12:
            raise InputError(f"floor={self.floor} is too large for {n} clients: at most 1/{n}")
        return max(room, 0.0)


def _finite(v: Tensor) -> Tensor:
    v = v.detach().to("cpu", torch.float64)
    if v.dim() != 1 or v.numel() == 0:
        raise InputError(f"expected a vector (N,) with N ≥ 1, got shape {tuple(v.shape)}")
    if not bool(torch.isfinite(v).all()):
        bad = int((~torch.isfinite(v)).nonzero()[0])
        raise NonFiniteError(f"entry {bad} of the vector is {float(v[bad])}: λ would be poisoned for good")
    return v
