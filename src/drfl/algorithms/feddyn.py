"""Federated learning with dynamic regularisation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.algorithms.drift import check_penalty, penalty, sum_updates
from drfl.algorithms.fedavg import EqualWeights
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Info
from drfl.federation.client_table import ClientTable
from drfl.federation.federation import Federation
from drfl.optim.local import LocalSGD, refuse_epochs, refuse_optimizer


class FedDynState(NamedTuple):
    """State of FedDyn.

    Args:
        w: (d,) Global model.
        c: (d,) Mean of all rows of h.
        h: (N, d) Estimates of the clients' gradients.
    """

    w: Tensor
    c: Tensor
    h: ClientTable


@dataclass(frozen=True)
class FedDyn(EqualWeights):
    """FedDyn (Acar et al. 2021, Algorithm 1).

    Minimises the mean of all f_i without client drift. Client i minimises f_i(u) − ⟨h_i, u⟩ + (μ/2)·‖u − w̄‖², and the
    stationary points of all these problems agree at the optimum.

    ================ ================= =====================================================
    paper            code              meaning
    ================ ================= =====================================================
    θ^t              ``state.w``       (d,) global model, w̄
    ∇L_k(θ_k^t)      ``state.h``       (N, d) row i: gradient of client i at its last model, initially zero
    h^t              ``state.c``       (d,) c = mean_i h_i over all N, at all times
    P_t              ``D``             cohort, uniform without replacement
    α                ``mu``            weight of the penalty
    ================ ================= =====================================================

    Args:
        m: Cohort size; None = :func:`drfl.federation.sampling.size`.
        mu: μ > 0; None = 1/(5ητ), see :func:`drfl.algorithms.drift.penalty`.
        local: Local solver.

    Deviations: the local problem is not solved exactly, but by the τ steps of ``local``. The server stores the h_i and
    sends −h_i along with the model.

    Raises:
        InputError: If mu is not positive, if mu is None with local epochs, if the local solver is not SGD, or if m > N
            (on first use).
    """

    m: int | None = None
    mu: float | None = None
    local: LocalSGD = field(default_factory=LocalSGD)

    def __post_init__(self) -> None:
        check_penalty(self.mu)
        refuse_optimizer("FedDyn", self.local, "its h_i need w − w_i to be a sum of gradients")
        if self.mu is None:
            refuse_epochs("FedDyn", self.local, "without mu, its penalty is set from a fixed number of local steps")

    @property
    def proximal_weight(self) -> float:
        """μ, see :func:`drfl.federation.algorithm.proximal_weight`. The default is small compared with 1/η."""
        return self.mu or 0.0

    def init(self, fed: Federation) -> FedDynState:
        """Return the state with the initial model and zero gradients."""
        sampling.size(self.m, fed.n)
        return FedDynState(fed.w0, torch.zeros_like(fed.w0), fed.client_table())

    def round(self, state: FedDynState, fed: Federation, key: Key) -> tuple[FedDynState, Info]:
        """Run one round of Algorithm 1."""
        (w, c, h), N, mu = state, fed.n, penalty(self.mu, self.local)

        D = sampling.uniform(N, sampling.size(self.m, N), key.fold("D"))
        # The gradient of −⟨h_i, u⟩ + (μ/2)·‖u − w̄‖² is −h_i + μ(u − w̄), a constant shift and a proximal term.
        up = fed.train(D.clients, w, self.local, key.fold("sgd"), prox=mu, shift=h[D.clients].neg_())
        if not up.clients.numel():
            return state, Info.without_replies(D)

        # c is the mean of all N rows h_i. Only the rows of clients that answered change.
        def drift(w_i: Tensor) -> Tensor:  # the change of c if the local models are w_i (k', d)
            return -mu / N * sum_updates(w_i, w)

        def corrected(w_i: Tensor) -> Tensor:  # the global model that local models w_i (k', d) give
            # The mean is over the clients that answered; c is over all N, because the h_i of the others still count.
            return w_i.mean(0) - (c + drift(w_i)) / mu

        h_next = h.add(up.clients, up.w, alpha=-mu, origin=w)
        model = up.merged(corrected)
        return FedDynState(model.w, c + drift(up.w), h_next), Info(D, up.clients, average=model.average)
