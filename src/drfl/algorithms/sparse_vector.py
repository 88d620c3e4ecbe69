"""Vectors over all clients in which only a few entries differ from a common value."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

MANY = 2**16
"""Number of entries above which sums use the stored values and the fill instead of a dense vector."""


class SparseVector(NamedTuple):
    """A vector v (N,) float64 with ``values`` at ``rows`` and ``fill`` everywhere else.

    Args:
        n: Length N.
        rows: (k,) int64, distinct, in any order.
        values: (k,) float64.
        fill: Value of the N − k other entries.
    """

    n: int
    rows: Tensor
    values: Tensor
    fill: float = 0.0

    def dense(self) -> Tensor:
        """Return all entries, (N,)."""
        return torch.full((self.n,), self.fill, dtype=torch.float64).index_copy_(0, self.rows, self.values)

    def sum(self) -> Tensor:
        """Compute Σ_i v_i, ()."""
        if self.n <= MANY:
            return self.dense().sum()
        # Add the fill in one term: nearly all of millions of entries are equal.
        return self._ordered().sum() + (self.n - self.rows.numel()) * self.fill

    def spread(self) -> Tensor:
        """Compute Σ_i (v_i − v̄)², ()."""
        if self.n <= MANY:
            return spread(self.dense())
        mean = self.sum() / self.n
        return (self._ordered() - mean).square_().sum() + (self.n - self.rows.numel()) * (self.fill - mean).square()

    def combined(self, other: SparseVector, f: Callable[[Tensor, Tensor], Tensor]) -> SparseVector:
        """Apply f to every pair of entries of this vector and another one (N,) with the same rows."""
        # f takes tensors, so that it rounds the fill exactly as it rounds an entry.
        fills = torch.tensor([[self.fill], [other.fill]], dtype=torch.float64)
        return self._replace(values=f(self.values, other.values), fill=float(f(*fills)))

    def plus(self, u: Tensor, step: float) -> Tensor:
        """Compute u + step·v (N,), for u (N,)."""
        return (u + step * self.fill).index_copy_(0, self.rows, u[self.rows] + step * self.values)

    def _ordered(self) -> Tensor:
        """Return the values sorted by row, because a sum must not depend on the order in which clients reported."""
        return self.values[self.rows.argsort()]


def spread(v: Tensor) -> Tensor:
    """Compute Σ_i (v_i − v̄)² of v (N,), ()."""
    return (v - v.mean()).square_().sum()
