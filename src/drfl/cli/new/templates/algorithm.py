"""An algorithm: change `round`, then run test_study.py to check that it still meets all requirements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from drfl import Federation, Info, Key, LocalSGD, sampling


class MomentumState(NamedTuple):
    """State between rounds: the model w and the velocity v, both (d,)."""

    w: Tensor
    v: Tensor


@dataclass(frozen=True)
class FedAvgM:
    """FedAvg with momentum at the server (Hsu et al. 2019): v ← βv + (w − mean of the local models), w ← w − v.

    Args:
        m: Number of clients per round, drawn uniformly.
        beta: β in [0, 1). Like every field, it is a parameter in study.toml.
        local: Local training of the clients.
    """

    m: int
    beta: float = 0.5
    local: LocalSGD = field(default_factory=LocalSGD)

    def init(self, fed: Federation) -> MomentumState:
        """Return the state before the first round."""
        return MomentumState(fed.w0, torch.zeros_like(fed.w0))

    def round(self, state: MomentumState, fed: Federation, key: Key) -> tuple[MomentumState, Info]:
        """Run one round of communication, with all randomness from the key."""
        w, v = state
        cohort = sampling.uniform(fed.n, self.m, key.fold("cohort"))
        replies = fed.train(cohort.clients, w, self.local, key.fold("sgd"))
        if not replies.clients.numel():  # any number of clients may drop out, even all
            return state, Info.without_replies(cohort)
        weights = fed.shares[replies.clients]
        mean = (weights / weights.sum()).to(w)
        # merged also applies this function to averages over local steps, if the run uses them
        model = replies.merged(lambda local: mean @ local - self.beta * v)
        return MomentumState(model.w, w - model.w), Info(cohort, replies.clients, average=model.average)
