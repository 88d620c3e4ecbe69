"""Federated averaging of updates that are longer for clients with larger losses, for proportional fairness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from drfl.algorithms import dual
from drfl.algorithms.fedavg import FedAvgState, FixedWeights
from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Info
from drfl.federation.federation import Federation
from drfl.federation.sampling import Cohort


@dataclass(frozen=True)
class PropFair(FixedWeights):
    """PropFair (Zhang et al. 2022), with the factor of each client's gradient applied by the server.

    Maximises Σ_i p_i log(M − f_i(w)), the Nash product of the clients' utilities M − f_i. The logarithm continues
    linearly below ε.

    ============== =============== =====================================================
    paper          code            meaning
    ============== =============== =====================================================
    θ_t            ``state.w``     (d,) global model
    S_t            ``D``           cohort, uniform without replacement
    M              ``baseline``    loss at which a client's utility is 0
    ε              ``epsilon``     utility below which the logarithm is linear
    f_i(θ_t)       ``f``           loss before training
    1/(M − f_i)    ``slope``       factor of the client's update
    ============== =============== =====================================================

    Args:
        m: Cohort size, for the losses and for training.
        local: Local solver.
        by_samples: Whether p_i are the clients' shares of the samples (the default) or equal.
        baseline: M > 0; the authors' code uses 2 to 5 with cross-entropy.
        epsilon: ε > 0, as in the authors' code 0.2.
        loss_batch: Samples per reported loss; None uses all local training data.

    Deviations: in the authors' code a client takes its steps on −log(1 − ℓ/M), with the loss ℓ of each minibatch. Here
    it takes them on ℓ, and the server multiplies its update by 1/(M − f_i), with the loss f_i of the global model. For
    one step on all local data both are the same. Above M − ε the factor is 1/ε, as with ``huber=True`` in that code.

    Raises:
        InputError: If baseline or epsilon is not positive, or if m > N (on first use).
    """

    baseline: float = 5.0
    epsilon: float = 0.2
    loss_batch: int | None = None

    no_average: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.positive("baseline", self.baseline)
        checks.positive("epsilon", self.epsilon)
        if self.epsilon > self.baseline:
            raise InputError(
                f"epsilon must be at most the baseline, {self.baseline}, got {self.epsilon}",
                code="out-of-range",
                field="epsilon",
            )
        if self.loss_batch is not None:
            checks.integer("loss_batch", self.loss_batch)

    def round(self, state: FedAvgState, fed: Federation, key: Key) -> tuple[FedAvgState, Info]:
        """Collect losses from a uniform cohort, train the clients that reported, and add their scaled updates."""
        w, p = state.w, self.weights(fed)

        D = sampling.uniform(fed.n, sampling.size(self.m, fed.n), key.fold("D"))
        f = dual.check_finite(fed.losses(D.clients, w, key.fold("xi"), batch=self.loss_batch), fed)
        if not f.clients.numel():
            return state, Info.without_replies(D)
        slope = torch.zeros_like(p).index_copy(0, f.clients, 1 / (self.baseline - f.values).clamp(min=self.epsilon))
        clients = f.clients.sort().values  # replies come in any order, and a cohort is ascending
        answered, model = fed.mean(Cohort(clients, (p * slope)[clients]), w, self.local, key.fold("sgd"))
        if model is None:
            return state, Info.without_replies(D)._replace(losses=f)
        # The merged model is a mean with weights p_i/(M − f_i) that sum to 1, so their sum is multiplied back.
        total = float((p * slope)[answered].sum() / p[answered].sum())
        w_next = w + total * (model.w - w)
        return FedAvgState(w_next), Info(D, answered, f)
