"""An algorithm: change `round`, and let test_study.py say whether it still keeps what every algorithm must."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from drfl import Federation, Info, Key, LocalSGD, sampling


class MomentumState(NamedTuple):
    """What passes from round to round: the model w and the velocity v, both (d,)."""

    w: Tensor
    v: Tensor


@dataclass(frozen=True)
class FedAvgM:
    """FedAvg with momentum at the server (Hsu et al. 2019): v ← βv + (w − mean of the local models), w ← w − v.

    Args:
        m: clients a round, drawn uniformly.
        beta: β in [0, 1), a parameter in study.toml as every field is.
        local: the clients' training.
    """

    m: int
    beta: float = 0.5
    local: LocalSGD = field(default_factory=LocalSGD)

    def init(self, fed: Federation) -> MomentumState:
        """Before the first round."""
        return MomentumState(fed.w0, torch.zeros_like(fed.w0))

    def round(self, state: MomentumState, fed: Federation, key: Key) -> tuple[MomentumState, Info]:
        """One round of communication. All randomness is folded from the key."""
        w, v = state
        cohort = sampling.uniform(fed.n, self.m, key.fold("cohort"))
        replies = fed.train(cohort.clients, w, self.local, key.fold("sgd"))
        if not replies.clients.numel():  # clients may fall silent, all of them too
            return state, Info.nobody(cohort)
        weights = fed.shares[replies.clients]
        mean = (weights / weights.sum()).to(w)
        # merged also applies this to averages over local steps, where a run wants them
        model = replies.merged(lambda local: mean @ local - self.beta * v)
        return MomentumState(model.w, w - model.w), Info(cohort, replies.clients, average=model.average)
