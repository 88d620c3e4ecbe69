"""Distributionally robust federated averaging."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from drfl import checks, cohort
from drfl.algorithm import Average, Info
from drfl.algorithms.dual import snapshot_ascent
from drfl.ambiguity import AmbiguitySet, Simplex
from drfl.cohort import Sampling
from drfl.federation import Federation
from drfl.key import Key
from drfl.local import LocalSGD


class DRFAState(NamedTuple):
    """w (d,) global model; lam (N,) mixture."""

    w: Tensor
    lam: Tensor
    average: Average | None


@dataclass(frozen=True)
class DRFA:
    """DRFA (Deng et al. 2020, Algorithm 1): local SGD at clients drawn by λ, dual ascent at a random snapshot.

    Solves min_w max_{λ∈Λ} Σ_i λ_i f_i(w).

    ========== ================= =====================================================
    paper      code              meaning
    ========== ================= =====================================================
    w̄^(s)      ``state.w``       (d,) global model
    λ^(s)      ``state.lam``     (N,) mixture
    D^(s)      ``D``             m draws from λ, with replacement
    t'         ``t``             snapshot step, uniform on {1, …, τ}, one for the cohort
    w^(t')     ``w_t``           (d,) mean of the local models after step t'
    U, v       ``dual.py``       uniform sample of m clients and their scaled losses
    η, τ       ``local``         local step size and number of steps
    γ          ``gamma``         dual step size; a round moves λ by τγ·v
    ŵ, λ̂       ``state.average`` the averaged solution, output form (1)
    ========== ================= =====================================================

    Args:
        m: cohort size, for training and for the loss reports.
        gamma: dual step size γ ≥ 0.
        local: what a client runs.
        dual_batch: samples per loss report; None = all local training data.
        ambiguity: the set Λ.
        sampling: how D is drawn from λ: ``cohort.with_replacement`` (the paper's), ``cohort.without_replacement`` or
            ``cohort.everybody`` (all clients, weighted by λ).
        averaged: keep the averaged solution as well; clients then send one more vector.

    Deviations: none by default. λ^(0) is uniform (projected on Λ).

    Raises:
        InputError: gamma is negative, or m > N (when first used).
    """

    m: int
    gamma: float = 0.008
    local: LocalSGD = field(default_factory=LocalSGD)
    dual_batch: int | None = 32
    ambiguity: AmbiguitySet = field(default_factory=Simplex)
    sampling: Sampling = cohort.with_replacement
    averaged: bool = False

    def __post_init__(self) -> None:
        checks.non_negative("gamma", self.gamma)
        if self.dual_batch is not None:
            checks.whole("dual_batch", self.dual_batch)

    def init(self, fed: Federation) -> DRFAState:
        """The initial model and the uniform mixture."""
        cohort.check_size(self.m, fed.n)
        lam = self.ambiguity.project(torch.full((fed.n,), 1 / fed.n, dtype=torch.float64))
        return DRFAState(fed.w0, lam, Average.start(fed.w0, lam) if self.averaged else None)

    def round(self, state: DRFAState, fed: Federation, key: Key) -> tuple[DRFAState, Info]:
        """One round, Algorithm 1, lines 2–17."""
        (w, lam, average), m, tau = state, self.m, self.local.steps

        D = self.sampling(lam, m, key.fold("D"))  # D ~ λ
        t = key.fold("t").integer(1, tau)  # t' ~ U{1..τ}
        up = fed.train(D.clients, w, self.local, key.fold("sgd"), snapshot=t, average=self.averaged)
        if not up.clients.numel():
            return state, Info.nobody(D)
        a = D.weights_of(up.clients).to(w)  # multiplicities among those who answered, sum 1
        w_next, w_t = a @ up.w, a @ up.snapshot

        lam_next, f = snapshot_ascent(
            fed,
            w_t,
            lam,
            m=m,
            step=tau * self.gamma,
            ambiguity=self.ambiguity,
            batch=self.dual_batch,
            key=key,
        )
        if average is not None:
            average = average.add(a @ up.average, lam)
        return DRFAState(w_next, lam_next, average), Info(D, up.clients, f)
