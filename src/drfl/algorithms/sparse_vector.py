"""Vectors over all clients in which all entries but those of a few are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

MANY = 2**16
"""Entries above which sums go over the few and the rest, not over every entry."""


class SparseVector(NamedTuple):
    """A vector v (N,) float64 that holds ``values`` at ``rows`` and ``fill`` everywhere else.

    Args:
        n: N.
        rows: (k,) int64, distinct, in any order.
        values: (k,) float64.
        fill: the N − k other entries.
    """

    n: int
    rows: Tensor
    values: Tensor
    fill: float = 0.0

    def dense(self) -> Tensor:
        """All entries (N,)."""
        return torch.full((self.n,), self.fill, dtype=torch.float64).index_copy_(0, self.rows, self.values)

    def sum(self) -> Tensor:
        """() Σ_i v_i."""
        if self.n <= MANY:
            return self.dense().sum()
        # Add the rest in one term: nearly all of millions of entries are equal.
        return self._ordered().sum() + (self.n - self.rows.numel()) * self.fill

    def spread(self) -> Tensor:
        """() Σ_i (v_i − v̄)²."""
        if self.n <= MANY:
            return spread(self.dense())
        mean = self.sum() / self.n
        return (self._ordered() - mean).square_().sum() + (self.n - self.rows.numel()) * (self.fill - mean).square()

    def combined(self, other: SparseVector, f: Callable[[Tensor, Tensor], Tensor]) -> SparseVector:
        """f(v_i, u_i) for every entry of this vector v and of another one u (N,) with the same rows."""
        # f takes tensors, and must round the fill as it rounds an entry.
        fills = torch.tensor([[self.fill], [other.fill]], dtype=torch.float64)
        return self._replace(values=f(self.values, other.values), fill=float(f(*fills)))

    def plus(self, u: Tensor, step: float) -> Tensor:
        """u + step·v (N,), for u (N,)."""
        return (u + step * self.fill).index_copy_(0, self.rows, u[self.rows] + step * self.values)

    def _ordered(self) -> Tensor:
        """The values in the order of their rows: a sum must not depend on who reported first."""
        return self.values[self.rows.argsort()]


def spread(v: Tensor) -> Tensor:
    """() Σ_i (v_i − v̄)² of v (N,)."""
    return (v - v.mean()).square_().sum()
