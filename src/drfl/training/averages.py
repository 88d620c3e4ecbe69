"""Averages over the rounds of a run: the decaying average that a run returns, and the average used by the theorems."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

DECAY = 8
"""Exponent s of the polynomial decay: the average covers about the last ninth of the rounds."""


class DecayingAverage(NamedTuple):
    """The polynomial-decay average of the global models and client weights (Shamir and Zhang 2013).

    After round t, w̄ ← w̄ + (s+1)/(t+s)·(w − w̄). The weight of a round thus grows like t^s, so the average forgets the
    start of a run of any length. It costs no communication. The last iterate of a min–max method circles around the
    saddle point; this average does not.

    Args:
        w: (d,) average of the global models after each round.
        lam: (N,) float64, average of the client weights after each round.
        rounds: () int64, number of rounds in the average.
    """

    w: Tensor
    lam: Tensor
    rounds: Tensor

    @classmethod
    def start(cls, w: Tensor, lam: Tensor) -> DecayingAverage:
        """Return an average of no rounds, which holds (w, lam) until the first round is added."""
        # Copy, because a checkpoint rejects two tensors that share memory, and the state holds these.
        return cls(w.clone(), lam.clone(), torch.zeros((), dtype=torch.int64))

    def add(self, w: Tensor, lam: Tensor) -> DecayingAverage:
        """Return the average with one more round, which ended with the model w and the client weights lam."""
        rounds = self.rounds + 1
        # Round 1 has weight 1 and replaces the initial model; later weights fall like (s + 1)/r.
        weight = (DECAY + 1) / (int(rounds) + DECAY)
        w, lam = ((new - old).mul_(weight).add_(old) for new, old in ((w, self.w), (lam, self.lam)))
        return DecayingAverage(w, lam, rounds)

    def describe_fault(self) -> str | None:
        """Describe an inconsistency, see :class:`drfl.federation.algorithm.Consistent`."""
        return "the number of rounds is negative" if self.rounds < 0 else None


class Average(NamedTuple):
    """The averaged solution (ŵ, λ̂) of the theorems, as a running mean over rounds.

    Args:
        w: (d,) mean of the models that the rounds report in :class:`drfl.federation.algorithm.Info`: the (virtual)
            global models at every local step, or SCAFF-PD's models after each round.
        lam: (N,) mean of the corresponding client weights.
        rounds: () int64, number of rounds in the means.
        weight: () float64, sum of the rounds' weights; equals ``rounds`` if all rounds have weight 1.
    """

    w: Tensor
    lam: Tensor
    rounds: Tensor
    weight: Tensor

    @classmethod
    def start(cls, w: Tensor, lam: Tensor) -> Average:
        """Return an average of no rounds, which holds (w, lam) until the first round is added."""
        # Copy, because a checkpoint rejects two tensors that share memory, and the state holds these.
        none = torch.zeros((), dtype=torch.int64)
        return cls(w.clone(), lam.clone(), none, none.double())

    def add(self, w: Tensor, lam: Tensor, weight: float = 1.0) -> Average:
        """Return the average with one more round: its model w, its client weights lam and its weight > 0."""
        total = self.weight + weight
        # Use a running mean, because a sum would grow with the rounds and lose digits in single precision.
        share = float(total) / weight
        return Average(self.w + (w - self.w) / share, self.lam + (lam - self.lam) / share, self.rounds + 1, total)

    def describe_fault(self) -> str | None:
        """Describe an inconsistency, see :class:`drfl.federation.algorithm.Consistent`."""
        if self.rounds < 0:
            return "the number of rounds is negative"
        return None if (self.weight > 0) == (self.rounds > 0) else "the sum of weights contradicts the number of rounds"
