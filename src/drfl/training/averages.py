"""Averages over the rounds of a run: the decaying one that a run returns, and the one that the theorems speak of."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

DECAY = 8
"""s of the polynomial decay: the average reaches back over about a ninth of the rounds."""


class DecayingAverage(NamedTuple):
    """The polynomial-decay average of the server's models and mixtures (Shamir and Zhang 2013).

    w̄ ← w̄ + (s+1)/(t+s)·(w − w̄) after the t-th round, so that the weight of a round grows like t^s: it forgets the
    start of a run of any length, and costs no communication. The last iterate of a min–max method circles around the
    saddle point; this average does not.

    Args:
        w: (d,) of the global models after each round.
        lam: (N,) float64, of the mixtures after each round.
        rounds: () int64, how many are in it.
    """

    w: Tensor
    lam: Tensor
    rounds: Tensor

    @classmethod
    def start(cls, w: Tensor, lam: Tensor) -> DecayingAverage:
        """No round yet; (w, lam) stands in until there is one."""
        # Copies: a checkpoint takes no two tensors that share memory, and the state holds these.
        return cls(w.clone(), lam.clone(), torch.zeros((), dtype=torch.int64))

    def add(self, w: Tensor, lam: Tensor) -> DecayingAverage:
        """With one more round, which ended in (w, lam)."""
        rounds = self.rounds + 1
        weight = (DECAY + 1) / (int(rounds) + DECAY)
        return DecayingAverage(self.w + weight * (w - self.w), (lam - self.lam).mul_(weight).add_(self.lam), rounds)

    def wrong(self) -> str | None:
        """See :class:`drfl.federation.algorithm.Consistent`."""
        return "an average of fewer than no rounds" if self.rounds < 0 else None


class Average(NamedTuple):
    """The averaged solution (ŵ, λ̂) that the theorems speak of, as a running mean over rounds.

    Args:
        w: (d,) mean of what the rounds gave, see :class:`drfl.federation.algorithm.Info`: of the (virtual) global
            models at every local step so far, or of SCAFF-PD's models after each round.
        lam: (N,) mean of the mixtures that go with them.
        rounds: () int64, how many rounds are in the means.
        weight: () float64, the sum of their weights; as many as rounds where these count alike.
    """

    w: Tensor
    lam: Tensor
    rounds: Tensor
    weight: Tensor

    @classmethod
    def start(cls, w: Tensor, lam: Tensor) -> Average:
        """No round yet; (w, lam) stands in until there is one."""
        # Copies: a checkpoint takes no two tensors that share memory, and the state holds these.
        none = torch.zeros((), dtype=torch.int64)
        return cls(w.clone(), lam.clone(), none, none.double())

    def add(self, w: Tensor, lam: Tensor, weight: float = 1.0) -> Average:
        """With one more round of a weight above 0, which gave the model w and the mixture lam."""
        total = self.weight + weight
        # A running mean: a sum would grow with the rounds and lose digits in single precision.
        share = float(total) / weight
        return Average(self.w + (w - self.w) / share, self.lam + (lam - self.lam) / share, self.rounds + 1, total)

    def wrong(self) -> str | None:
        """See :class:`drfl.federation.algorithm.Consistent`."""
        if self.rounds < 0:
            return "a mean of fewer than no rounds"
        return None if (self.weight > 0) == (self.rounds > 0) else "weights that do not go with the number of rounds"
