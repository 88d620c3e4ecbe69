"""Test that an algorithm written only from docs/library.md and ``fedavg.py`` passes the conformance suite."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from drfl import Info, LocalSGD
from drfl.algorithms.fedavg import FedAvgState
from drfl.federation import sampling
from drfl.testing import Solves, check_algorithm
from drfl.testing.convergence import losses_at, stationary


@dataclass(frozen=True)
class TERM:
    """Tilted ERM over clients (Li et al. 2021): local models weighted by n_i·exp(t·f_i(w))."""

    m: int
    t: float = 1.0
    loss_batch: int | None = None
    local: LocalSGD = field(default_factory=LocalSGD)

    def init(self, fed):
        return FedAvgState(fed.w0)

    def round(self, state, fed, key):
        D = sampling.uniform(fed.n, self.m, key.fold("D"))
        reports = fed.losses(D.clients, state.w, key.fold("xi"), batch=self.loss_batch)
        if not reports.clients.numel():
            return state, Info.without_replies(D)
        up = fed.train(reports.clients, state.w, self.local, key.fold("sgd"))
        if not up.clients.numel():
            return state, Info.without_replies(D)
        tilted = torch.zeros(fed.n, dtype=torch.float64)
        tilted[reports.clients] = fed.shares[reports.clients] * torch.softmax(self.t * reports.values, 0)
        a = tilted[up.clients] / tilted[up.clients].sum()
        model = up.merged(lambda w_i: a.to(w_i) @ w_i)
        return FedAvgState(model.w), Info(D, up.clients, reports, average=model.average)


def residual(fed, algorithm, state):
    """Return the gradient of (1/t) log Σ_i (n_i/n) exp(t f_i(w)), up to a factor."""
    return stationary(fed, state.w, fed.shares * torch.softmax(algorithm.t * losses_at(fed, state.w), 0))


def test_algorithm_written_from_the_docs_passes_all_checks():
    tilted = Solves("the tilted optimum", residual)
    report = check_algorithm(TERM(m=3, local=LocalSGD(steps=1, lr=0.05)), solves=tilted)
    assert len(report.passed) == 22
