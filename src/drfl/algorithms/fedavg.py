"""Federated averaging."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from drfl import cohort
from drfl.algorithm import Average, Info
from drfl.cohort import Cohort
from drfl.federation import Federation
from drfl.key import Key
from drfl.local import LocalSGD


class FedAvgState(NamedTuple):
    """w (d,); lam (N,) the fixed weights of the objective."""

    w: Tensor
    lam: Tensor
    average: Average | None


@dataclass(frozen=True)
class FedAvg:
    """FedAvg (McMahan et al. 2017, Algorithm 1) with a fixed number of local steps.

    Minimises Σ_i λ_i f_i(w) with fixed λ: the clients' shares of the samples, or uniform.

    ====== =============== =====================================================
    paper  code            meaning
    ====== =============== =====================================================
    w_t    ``state.w``     (d,) global model
    S_t    ``D``           cohort, uniform without replacement
    m      ``m``           cohort size; None = all N clients
    E, B   ``local``       steps τ (not epochs), minibatch, step size η
    ====== =============== =====================================================

    Args:
        m: cohort size.
        local: what a client runs.
        by_samples: weight clients by their samples (the default) or all alike.
        averaged: keep the mean over all local steps as well.

    Deviations: local work is counted in steps, as in DRFA and DRDM, not in epochs.

    Raises:
        InputError: m > N (when first used).
    """

    m: int | None = None
    local: LocalSGD = field(default_factory=LocalSGD)
    by_samples: bool = True
    averaged: bool = False

    def init(self, fed: Federation) -> FedAvgState:
        """The initial model and the fixed weights."""
        cohort.check_size(self.cohort_size(fed), fed.n)
        lam = fed.shares.double() if self.by_samples else torch.full((fed.n,), 1 / fed.n, dtype=torch.float64)
        return FedAvgState(fed.w0, lam, Average.start(fed.w0, lam) if self.averaged else None)

    def cohort_size(self, fed: Federation) -> int:
        """m, or N where it is None."""
        return fed.n if self.m is None else self.m

    def round(self, state: FedAvgState, fed: Federation, key: Key) -> tuple[FedAvgState, Info]:
        """One round: local steps at a uniform cohort, then the weighted mean of those who answered."""
        (w, lam, average), N = state, fed.n

        D = cohort.uniform(N, self.cohort_size(fed), key.fold("D"))
        up = fed.train(D.clients, w, self.local, key.fold("sgd"), average=self.averaged)
        if not up.clients.numel():
            return state, Info.nobody(D)
        a = Cohort(D.clients, lam[D.clients]).weights_of(up.clients).to(w)
        if average is not None:
            average = average.add(a @ up.average, lam)
        return FedAvgState(a @ up.w, lam, average), Info(D, up.clients)
