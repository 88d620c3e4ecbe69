"""Distributionally robust federated learning with client-drift minimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from drfl import cohort
from drfl.algorithm import Average, Info
from drfl.algorithms.dual import CORRECTED_RATE, SnapshotMethod, first_mixture, no_scale
from drfl.algorithms.penalty import check_penalty, penalty
from drfl.algorithms.sums import moves
from drfl.federation import Federation
from drfl.key import Key
from drfl.table import Table


class DRDMState(NamedTuple):
    """w (d,) global model; lam (N,) mixture; c (d,) mean of all rows of h; h (N, d) drift terms; scale () largest mean
    loss report so far.
    """

    w: Tensor
    lam: Tensor
    c: Tensor
    h: Table
    scale: Tensor
    average: Average | None


@dataclass(frozen=True)
class DRDM(SnapshotMethod):
    """DRDM (Krouka et al. 2025, Algorithms 1–3), as published: DRFA with FedDyn's dynamic regularisation.

    ============ ================= =====================================================
    paper        code              meaning
    ============ ================= =====================================================
    w̄^(s)        ``state.w``       (d,) global model
    λ^(s)        ``state.lam``     (N,) mixture
    ∇f_i(w_i)    ``state.h``       (N, d) drift terms, row i of client i, recursively estimated
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
        mu: penalty μ > 0; None = 1/(5ητ), see :func:`drfl.algorithms.penalty.penalty`.
        table_dir: folder for the file that holds the table h; None = it is in memory. On the CPU only.

    Its other parameters are those of :class:`drfl.algorithms.dual.SnapshotMethod`.

    Deviations: none where μ and γ are given. λ^(0) is uniform (projected on Λ), c^(0) = h_i^(0) = 0. In lines 17 and 18
    the sum runs over the *distinct* clients of the cohort and over both terms, Σ_{i∈D}(w_i − w̄): a client drawn twice
    trains once and moves its h_i once, and only so is c = mean_i h_i. In lines 19 and 20 a client drawn twice counts
    twice. A ψ, of which the paper has none, is met by DRFA-Prox's dual step.

    c is the *uniform* mean of the h_i: ``docs/fixed-point.md`` says what that does. :class:`DualDRDM` weighs them by λ.
    A client with λ_i = 0 is not drawn, and its old h_i stays in c: then a run ends neither at the average optimum nor
    at the saddle point. ``Simplex(floor)`` with a floor above 0, or ``sampling=cohort.everybody``, keeps all h_i fresh.

    Raises:
        InputError: mu or gamma is out of range, m > N or table_dir cannot be used (the latter two when first used).
    """

    mu: float | None = None
    table_dir: str | None = None

    rate: ClassVar[float] = CORRECTED_RATE

    def __post_init__(self) -> None:
        super().__post_init__()
        check_penalty(self.mu)

    def init(self, fed: Federation) -> DRDMState:
        """The initial model, the uniform mixture, and no drift."""
        cohort.check_size(self.m, fed.n)
        w, lam = fed.w0, first_mixture(self.ambiguity, fed.n)
        h = Table.zeros(fed.n, w, self.table_dir)
        average = Average.start(w, lam) if self.averaged else None
        return DRDMState(w, lam, torch.zeros_like(w), h, no_scale(), average)

    def round(self, state: DRDMState, fed: Federation, key: Key) -> tuple[DRDMState, Info]:
        """One round, Algorithm 1, lines 5–21."""
        (w, lam, c, h, scale, average), N, m, tau = state, fed.n, self.m, self.local.steps
        mu = penalty(self.mu, self.local)

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
            return -mu / N * moves(w_i, w)

        def corrected(w_i: Tensor) -> Tensor:  # the global model that local models w_i (k, d) make
            return a @ w_i - (c + drift(w_i)) / mu

        h_next = h.add(up.clients, (w_i - w for w_i in up.w), alpha=-mu)  # line 10
        w_t, w_next = corrected(up.snapshot), corrected(up.w)  # lines 17–20

        dual = self.snapshot_ascent(fed, w_t, lam, scale, key)  # line 21
        if average is not None:  # the mean of w^(t) over the steps: `corrected` is affine
            average = average.add(corrected(up.average), lam)
        next_state = DRDMState(w_next, dual.lam, c + drift(up.w), h_next, dual.scale, average)
        return next_state, Info(D, up.clients, dual.losses)
