"""Distributionally robust federated learning with client-drift minimisation."""

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


class DRDMState(NamedTuple):
    """w (d,) global model; lam (N,) mixture; c (d,) mean of all rows of h; h (N, d) drift terms."""

    w: Tensor
    lam: Tensor
    c: Tensor
    h: Tensor
    average: Average | None


@dataclass(frozen=True)
class DRDM:
    """DRDM (Krouka et al. 2025, Algorithms 1–3), as published: DRFA with FedDyn's dynamic regularisation.

    ============ ================= =====================================================
    paper        code              meaning
    ============ ================= =====================================================
    w̄^(s)        ``state.w``       (d,) global model
    λ^(s)        ``state.lam``     (N,) mixture
    ∇f_i(w_i)    ``state.h[i]``    (d,) drift term of client i, recursively estimated
    c^(s)        ``state.c``       (d,) c = mean_i h_i, at all times
    D^(s)        ``D``             m draws from λ, with replacement
    t'           ``t``             snapshot step, uniform on {1, …, τ}, one for the cohort
    w^(t')       ``w_t``           (d,) the global model as it would be after step t'
    U, v         ``dual.py``       uniform sample of m clients and their scaled losses
    η, τ         ``local``         local step size and number of steps
    μ            ``mu``            weight of the penalty (μ/2)·‖w − w̄‖²
    γ            ``gamma``         dual step size; a round moves λ by τγ·v
    ŵ, λ̂         ``state.average`` the averaged solution of Theorem 1
    ============ ================= =====================================================

    Args:
        m: cohort size, for training and for the loss reports.
        mu: penalty μ > 0.
        gamma: dual step size γ ≥ 0.
        local: what a client runs.
        dual_batch: samples per loss report; None = all local training data.
        ambiguity: the set Λ.
        sampling: how D is drawn from λ: ``cohort.with_replacement`` (the paper's), ``cohort.without_replacement`` or
            ``cohort.everybody`` (all clients, weighted by λ).
        averaged: keep the averaged solution as well; clients then send one more vector.

    Deviations: none by default. λ^(0) is uniform (projected on Λ), c^(0) = h_i^(0) = 0. In lines 17 and 18 the sum
    runs over the *distinct* clients of the cohort and over both terms, Σ_{i∈D}(w_i − w̄): a client drawn twice trains
    once and moves its h_i once, and only so is c = mean_i h_i. In lines 19 and 20 a client drawn twice counts twice.

    c is the *uniform* mean of the h_i: ``docs/algorithms/drdm.md`` says what that does to the fixed point.

    Raises:
        InputError: mu or gamma is out of range, or m > N (when first used).
    """

    m: int
    mu: float = 0.1
    gamma: float = 0.0001
    local: LocalSGD = field(default_factory=LocalSGD)
    dual_batch: int | None = 32
    ambiguity: AmbiguitySet = field(default_factory=Simplex)
    sampling: Sampling = cohort.with_replacement
    averaged: bool = False

    def __post_init__(self) -> None:
        checks.positive("mu", self.mu)
        checks.non_negative("gamma", self.gamma)
        if self.dual_batch is not None:
            checks.whole("dual_batch", self.dual_batch)

    def init(self, fed: Federation) -> DRDMState:
        """The initial model, the uniform mixture, and no drift."""
        cohort.check_size(self.m, fed.n)
        w, lam = fed.w0, self.ambiguity.project(torch.full((fed.n,), 1 / fed.n, dtype=torch.float64))
        h = torch.zeros(fed.n, w.numel(), dtype=w.dtype, device=w.device)
        return DRDMState(w, lam, torch.zeros_like(w), h, Average.start(w, lam) if self.averaged else None)

    def round(self, state: DRDMState, fed: Federation, key: Key) -> tuple[DRDMState, Info]:
        """One round, Algorithm 1, lines 5–21."""
        (w, lam, c, h, average), N, m, mu, tau = state, fed.n, self.m, self.mu, self.local.steps

        D = self.sampling(lam, m, key.fold("D"))  # D ~ λ
        t = key.fold("t").integer(1, tau)  # t' ~ U{1..τ}
        up = fed.train(
            D.clients, w, self.local, key.fold("sgd"),
            prox=mu, shift=-h[D.clients], snapshot=t, average=self.averaged,
        )  # fmt: skip
        if not up.clients.numel():
            return state, Info.nobody(D)
        a = D.weights_of(up.clients).to(w)  # multiplicities among those who answered, sum 1

        def drift(w_i: Tensor) -> Tensor:  # what c changes by when the local models are w_i (k, d)
            return -mu / N * (w_i - w).sum(0)

        def corrected(w_i: Tensor) -> Tensor:  # the global model that local models w_i (k, d) make
            return a @ w_i - (c + drift(w_i)) / mu

        h_next = h.index_add(0, up.clients.to(h.device), up.w - w, alpha=-mu)  # line 10
        w_t, w_next = corrected(up.snapshot), corrected(up.w)  # lines 17–20

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
        if average is not None:  # the mean of w^(t) over the steps: `corrected` is affine
            average = average.add(corrected(up.average), lam)
        return DRDMState(w_next, lam_next, c + drift(up.w), h_next, average), Info(D, up.clients, f)
