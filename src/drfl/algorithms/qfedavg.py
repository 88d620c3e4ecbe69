"""q-fair federated averaging."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from drfl.algorithms import dual
from drfl.algorithms.drift import sum_rows
from drfl.algorithms.fedavg import EqualWeights, FedAvgState
from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Info
from drfl.federation.federation import Federation
from drfl.optim.local import LocalSGD, refuse_optimizer


@dataclass(frozen=True)
class QFedAvg(EqualWeights):
    """q-FedAvg (Li et al. 2020, Algorithm 2).

    Minimises Σ_k F_k(w)^{q+1} / ((q+1)·N). The larger q is, the more weight clients with large losses get.

    =========== ===================== =====================================================
    paper       code                  meaning
    =========== ===================== =====================================================
    w^t         ``state.w``           (d,) global model
    S_t, K      ``D``, ``m``          cohort, uniform without replacement
    F_k(w^t)    ``F``                 loss *before* training
    w̄_k^{t+1}   ``up.w``              (d,) local model after the last step
    L           ``L``                 Lipschitz constant of ∇F_k, set to 1/η
    Δw_k^t      ``dw``                (d,) L·(w^t − w̄_k^{t+1})
    Δ_k^t       ``Delta``             (d,) F_k^q·Δw_k
    h_k^t       ``h``                 q·F_k^{q−1}·‖Δw_k‖² + L·F_k^q
    p_k         ``state.lam``         1/N
    =========== ===================== =====================================================

    Args:
        m: Cohort size; None = :func:`drfl.federation.sampling.size`.
        q: q ≥ 0; 0 is FedAvg with uniform weights. The default, 1, weights clients in proportion to their losses.
        local: Local solver. Momentum, weight decay and radius are allowed, because the method treats any local update
            as a pseudo-gradient. L remains 1/η.
        loss_batch: Samples per reported loss; None uses all local training data.

    Deviations: p_k = 1/N instead of the share of the samples, so that all clients have equal weight. Losses are
    reported in a separate exchange; only clients that report are asked to train. If F_k = 0 and q < 1,
    F_k^{q−1}·‖Δw_k‖² counts as 0, because it is at most 2L·F_k^q for smooth F_k ≥ 0.

    Raises:
        InputError: If q is negative, if m > N (on first use), if the local solver is not SGD, or if a loss is negative.
    """

    m: int | None = None
    q: float = 1.0
    local: LocalSGD = field(default_factory=LocalSGD)
    loss_batch: int | None = None

    no_average: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.non_negative("q", self.q)
        refuse_optimizer("QFedAvg", self.local, "it assumes steps of η times the gradient, because it sets L = 1/η")
        if self.loss_batch is not None:
            checks.integer("loss_batch", self.loss_batch)

    def init(self, fed: Federation) -> FedAvgState:
        """Return the state with the initial model."""
        sampling.size(self.m, fed.n)
        return FedAvgState(fed.w0)

    def round(self, state: FedAvgState, fed: Federation, key: Key) -> tuple[FedAvgState, Info]:
        """Run one round of Algorithm 2."""
        w, N, L = state.w, fed.n, 1 / self.local.eta

        D = sampling.uniform(N, sampling.size(self.m, N), key.fold("D"))
        f = dual.check_finite(fed.losses(D.clients, w, key.fold("xi"), batch=self.loss_batch), fed)
        if not f.clients.numel():
            return state, Info.without_replies(D)
        negative = f.values < 0
        if bool(negative.any()):
            raise InputError(
                f"{fed.name_of(int(f.clients[negative][0]))} reported the negative loss "
                f"{float(f.values[negative][0]):.4g}, but QFedAvg raises losses to the power q. Use a loss that is "
                "never negative",
                code="out-of-range",
                field="losses",
            )
        # Index by client, because models may arrive in another order than losses, or not at all.
        F = torch.zeros(N, dtype=torch.float64).index_copy(0, f.clients, f.values)
        # Train only clients that reported: without a loss a client has no weight.
        up = fed.train(f.clients.sort().values, w, self.local, key.fold("sgd"))
        if not up.clients.numel():
            return state, Info.without_replies(D)

        F_q, slope = powers(F[up.clients], self.q)  # F_k^q and q·F_k^{q−1}, up to a factor that cancels

        def dw(part: slice) -> Tensor:  # Δw_k in a slice of columns, (k', part)
            return L * (w[part] - up.w[:, part])

        Delta = sum_rows(dw, w, F_q.to(w))  # Σ_k Δ_k
        # Process one client at a time, so that the differences (k', d) are never all in memory.
        norms = torch.stack([(L * (w - w_k)).norm() for w_k in up.w]).double().cpu()
        h = float((slope * norms**2 + L * F_q).sum())  # Σ_k h_k; 0 if all losses are 0
        w_next = w - Delta / h if h > 0 else w
        return FedAvgState(w_next), Info(D, up.clients, f)


def powers(F: Tensor, q: float) -> tuple[Tensor, Tensor]:
    """Compute F^q and q·F^{q−1}, both divided by (max F)^q so that large q does not overflow.

    Args:
        F: (k,) float64 Losses ≥ 0, k ≥ 1.
        q: Exponent ≥ 0.

    Returns:
        Two vectors (k,). If F = 0 and q < 1, the second would be 0·∞ and is set to 0.
    """
    largest = F.max() if F.max() > 0 else torch.ones_like(F.max())
    relative = F / largest
    slope = q * relative ** (q - 1) / largest
    return relative**q, torch.where((F == 0) & (q < 1), 0.0, slope)
