"""Normalised averaging of clients that take different numbers of local steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from drfl.algorithms.drift import sum_updates
from drfl.algorithms.fedavg import Averaging, FedAvgState
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Info
from drfl.federation.federation import Federation
from drfl.federation.sampling import Cohort
from drfl.optim.local import refuse_optimizer


@dataclass(frozen=True)
class FedNova(Averaging):
    """FedNova (Wang et al. 2020, §4): FedAvg with local updates normalised by their numbers of steps.

    Minimises Σ_i p_i f_i(x) with exactly these p_i. FedAvg gives more weight to clients that take more steps.

    ============ ================= =====================================================
    paper        code              meaning
    ============ ================= =====================================================
    x^(t,0)      ``state.w``       (d,) global model
    x_i^(t,τ_i)  ``up.w``          (d,) local model after the last of τ_i steps
    a_i          in ``norms``      (τ_i,) weights of client i's gradients in its update; all 1 without momentum
    ‖a_i‖₁       ``norms``         τ_i, or (τ_i − β(1 − β^τ_i)/(1 − β))/(1 − β) with momentum β
    d_i          in ``merge``      (d,) normalised gradient (x − x_i)/(η‖a_i‖₁)
    p_i          ``p``             the clients' shares of the samples, or equal weights, among those that answered
    τ_eff        ``tau``           Σ_i p_i ‖a_i‖₁
    ============ ================= =====================================================

    Args:
        m: Cohort size.
        local: Local solver, usually with ``epochs``. With ``steps`` all τ_i are equal, and this is FedAvg.
        by_samples: Whether to weight clients by their samples (the default) or equally.
        server: Server optimiser, applied to the mean update; None adds the mean update to the model.

    Deviations: clients are drawn uniformly without replacement; τ_eff is computed over the clients that answered.
    Weight decay is part of f_i.

    Raises:
        InputError: If the local solver projects or is not SGD, because x − x_i is then not a sum of gradients; or (on
            first use) if m > N or the federation does not know τ_i.
    """

    def __post_init__(self) -> None:
        refuse_optimizer("FedNova", self.local, "it needs x − x_i to be a sum of gradients")
        if self.local.radius is not None:
            raise InputError(
                "FedNova cannot use a local solver with radius, because it needs x − x_i to be a sum of gradients",
                code="unsupported-combination",
                field="radius",
            )

    def round(self, state: FedAvgState, fed: Federation, key: Key) -> tuple[FedAvgState, Info]:
        """Train a uniform cohort and add the mean of the normalised updates, times τ_eff·η."""
        x = state.w

        D = sampling.uniform(fed.n, sampling.size(self.m, fed.n), key.fold("D"))
        up = fed.train(D.clients, x, self.local, key.fold("sgd"))
        if not up.clients.numel():
            return state, Info.without_replies(D)

        steps = self.local.steps_of(fed.sizes, up.clients)
        # With momentum a gradient acts in all later steps, so the effective number of steps exceeds τ_i.
        norms = torch.tensor([self.local.effective(tau_i) for tau_i in steps.tolist()], dtype=torch.float64)
        # Weights of the clients that answered; they sum to 1.
        p = Cohort(D.clients, self.weights(fed)[D.clients]).weights_of(up.clients)
        tau = p @ norms

        model = up.merged(lambda x_i: x + sum_updates(x_i, x, (tau * p / norms).to(x)))  # x − τ_eff·η Σ_i p_i d_i
        return self.apply_server(state, model), Info(D, up.clients, average=model.average)
