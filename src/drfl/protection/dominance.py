"""A client on which nearly all the weight stays."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drfl import checks


@dataclass(frozen=True)
class Dominance:
    """One client that holds a large share of λ for long gets a line of warning: it may be hard, or dishonest.

    Args:
        share: of λ, in [0, 1]; more than it counts.
        long: rounds in a row, at least 1.

    Raises:
        InputError: a value is out of range.
    """

    share: float = 0.5
    long: int = 10

    def __post_init__(self) -> None:
        checks.fraction("share", self.share)
        checks.whole("long", self.long)

    def after(self, rounds: Tensor, lam: Tensor) -> Tensor:
        """(N,) int64 rounds in a row with more than the share, after one more that ended in λ (N,)."""
        return torch.where(lam.cpu() > self.share, rounds + 1, 0)

    def found(self, rounds: Tensor) -> list[int]:
        """Clients that have just reached the number of rounds."""
        return (rounds == self.long).nonzero().flatten().tolist()
