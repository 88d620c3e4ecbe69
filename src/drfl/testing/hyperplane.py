"""An ambiguity set without boundaries, for properties that hold on average."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drfl.ambiguity import WorstCase


@dataclass(frozen=True)
class Hyperplane:
    """Λ = all λ with sum 1, including negative entries: projections never clip, so expectations pass through them."""

    def project(self, v: Tensor) -> Tensor:
        """Return the nearest vector with sum 1."""
        v = v.double()
        return v + (1 - v.sum()) / len(v)

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Return the projection, because there is no penalty."""
        return self.project(v)

    def worst_case(self, losses: Tensor) -> WorstCase:
        """Return infinity, because the worst case is unbounded."""
        return WorstCase(float("inf"), torch.full_like(losses, float("nan")))

    @property
    def penalised(self) -> bool:
        """False."""
        return False

    def penalty(self, lam: Tensor) -> float:
        """Return 0."""
        return 0.0

    def penalty_gradient(self, lam: Tensor) -> Tensor:
        """Return zeros."""
        return torch.zeros_like(lam)

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Return whether the sum is 1."""
        return abs(float(lam.sum()) - 1) <= tolerance

    def strong_convexity(self, n: int) -> float:
        """Return 0."""
        return 0.0
