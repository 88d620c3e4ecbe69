"""Which rows of a pool of samples belong to which client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The rows of all clients, one client after the other.

    Args:
        index: (Σ_i n_i,) int64 rows of the pool.
        starts: (N,) where each client's begin in ``index``.
        sizes: (N,) n_i ≥ 1.
    """

    index: Tensor
    starts: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, lists: Sequence[Tensor]) -> Rows:
        """From one tensor of rows a client."""
        sizes = torch.tensor([len(rows) for rows in lists])
        return cls(torch.cat(list(lists)).cpu(), sizes.cumsum(0) - sizes, sizes)

    @property
    def n(self) -> int:
        """Number of clients."""
        return len(self.sizes)

    def of_client(self, i: int) -> Tensor:
        """(n_i,) rows of client i."""
        return self.index[int(self.starts[i]) : int(self.starts[i] + self.sizes[i])]

    @cached_property
    def owners(self) -> Tensor:
        """(Σ_i n_i,) whom each entry of ``index`` belongs to."""
        return torch.arange(self.n).repeat_interleave(self.sizes)

    @cached_property
    def distinct(self) -> tuple[Tensor, Tensor]:
        """The distinct rows, ascending, and for each entry of ``index`` its place among them."""
        rows, at = self.index.unique(return_inverse=True)
        return rows, at

    def means(self, values: Tensor) -> Tensor:
        """(N,) float64 mean over each client of values (Σ_i n_i,) float64."""
        return torch.zeros(self.n, dtype=torch.float64).index_add_(0, self.owners, values) / self.sizes
