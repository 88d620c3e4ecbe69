"""Federated learning with dynamic regularisation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from drfl import cohort
from drfl.algorithm import Average, Info
from drfl.algorithms.averaging import uniform_weights
from drfl.algorithms.penalty import check_penalty, penalty
from drfl.algorithms.sums import moves
from drfl.federation import Federation
from drfl.key import Key
from drfl.local import LocalSGD
from drfl.table import Table


class FedDynState(NamedTuple):
    """w (d,) global model; lam (N,) uniform; c (d,) mean of all rows of h; h (N, d) the clients' gradients."""

    w: Tensor
    lam: Tensor
    c: Tensor
    h: Table
    average: Average | None


@dataclass(frozen=True)
class FedDyn:
    """FedDyn (Acar et al. 2021, Algorithm 1).

    Minimises the mean of all f_i without client drift: client i minimises f_i(u) − ⟨h_i, u⟩ + (μ/2)·‖u − w̄‖², whose
    stationary points all agree at the optimum.

    ================ ================= =====================================================
    paper            code              meaning
    ================ ================= =====================================================
    θ^t              ``state.w``       (d,) global model, w̄
    ∇L_k(θ_k^t)      ``state.h``       (N, d) row i: gradient of client i at its last model, zero at first
    h^t              ``state.c``       (d,) c = mean_i h_i over all N, at all times
    P_t              ``D``             cohort, uniform without replacement
    α                ``mu``            weight of the penalty
    ================ ================= =====================================================

    Args:
        m: cohort size; None = all N clients.
        mu: μ > 0; None = 1/(5ητ), see :func:`drfl.algorithms.penalty.penalty`.
        local: what a client runs.
        averaged: keep the mean over all local steps as well; clients then send one more vector.
        table_dir: folder for the file that holds the table h; None = it is in memory. On the CPU only.

    Deviations: the local problem is not solved exactly but by the τ steps of ``local``. The h_i lie at the server,
    which sends −h_i along with the model.

    Raises:
        InputError: mu is not positive, m > N or table_dir cannot be used (the latter two when first used).
    """

    m: int | None = None
    mu: float | None = None
    local: LocalSGD = field(default_factory=LocalSGD)
    averaged: bool = False
    table_dir: str | None = None

    def __post_init__(self) -> None:
        check_penalty(self.mu)

    def init(self, fed: Federation) -> FedDynState:
        """The initial model and no gradients yet."""
        cohort.size(self.m, fed.n)
        w, lam = fed.w0, uniform_weights(fed.n)
        average = Average.start(w, lam) if self.averaged else None
        return FedDynState(w, lam, torch.zeros_like(w), Table.zeros(fed.n, w, self.table_dir), average)

    def round(self, state: FedDynState, fed: Federation, key: Key) -> tuple[FedDynState, Info]:
        """One round of Algorithm 1."""
        (w, lam, c, h, average), N, mu = state, fed.n, penalty(self.mu, self.local)

        D = cohort.uniform(N, cohort.size(self.m, N), key.fold("D"))
        up = fed.train(
            D.clients, w, self.local, key.fold("sgd"), prox=mu, shift=-h[D.clients], average=self.averaged
        )  # fmt: skip
        if not up.clients.numel():
            return state, Info.nobody(D)

        def drift(w_i: Tensor) -> Tensor:  # what c changes by when the local models are w_i (k', d)
            return -mu / N * moves(w_i, w)

        def corrected(w_i: Tensor) -> Tensor:  # the global model that local models w_i (k', d) make
            return w_i.mean(0) - (c + drift(w_i)) / mu

        h_next = h.add(up.clients, (w_i - w for w_i in up.w), alpha=-mu)
        if average is not None:  # the mean of the virtual global models over the steps: `corrected` is affine
            average = average.add(corrected(up.average), lam)
        return FedDynState(corrected(up.w), lam, c + drift(up.w), h_next, average), Info(D, up.clients)
