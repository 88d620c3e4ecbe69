"""Federated averaging with weights that grow exponentially with the clients' losses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from drfl.algorithms import dual
from drfl.algorithms.fedavg import Averaging, FedAvgState
from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Info
from drfl.federation.federation import Federation
from drfl.federation.sampling import Cohort


@dataclass(frozen=True)
class TERM(Averaging):
    """Tilted empirical risk minimisation (Li et al. 2021, the batch method), with clients instead of samples.

    Minimises (1/t)·log Σ_i p_i e^{t·f_i(w)}. With t = 0 this is FedAvg; with t → ∞ it is the largest loss.

    ============ =============== =====================================================
    paper        code            meaning
    ============ =============== =====================================================
    θ            ``state.w``     (d,) global model
    t            ``tilt``        strength of the weights of large losses
    f(x_i; θ)    ``f``           loss before training
    w_i          ``a``           weights p_i e^{t·f_i}, up to a factor
    ============ =============== =====================================================

    Args:
        m: Cohort size, for the losses and for training.
        local: Local solver.
        by_samples: Whether p_i are the clients' shares of the samples (the default) or equal.
        server: Server optimiser, applied to the mean; None uses the mean as the next model.
        tilt: t ≥ 0.
        loss_batch: Samples per reported loss; None uses all local training data.

    Deviations: clients take local steps instead of one gradient step. The weights are normalised over the clients of
    the cohort that train, not over all N. The authors' federated code divides the updates by a running estimate of the
    normaliser instead, which changes their length.

    Raises:
        InputError: If tilt is negative or infinite, or if m > N (on first use).
    """

    tilt: float = 1.0
    loss_batch: int | None = None

    def __post_init__(self) -> None:
        checks.non_negative("tilt", self.tilt)
        if not math.isfinite(self.tilt):
            raise InputError(
                "tilt must be a finite number; use DRFA to minimise the largest loss", code="out-of-range", field="tilt"
            )
        if self.loss_batch is not None:
            checks.integer("loss_batch", self.loss_batch)

    def round(self, state: FedAvgState, fed: Federation, key: Key) -> tuple[FedAvgState, Info]:
        """Collect losses from a uniform cohort, train the clients that reported, and take the tilted mean."""
        w, p = state.w, self.weights(fed)

        D = sampling.uniform(fed.n, sampling.size(self.m, fed.n), key.fold("D"))
        f = dual.check_finite(fed.losses(D.clients, w, key.fold("xi"), batch=self.loss_batch), fed)
        if not f.clients.numel():
            return state, Info.without_replies(D)
        order = f.clients.argsort()  # replies come in any order, and a cohort is ascending
        clients, losses = f.clients[order], f.values[order]
        # Relative to the largest loss, whose weight is p_i·1, so that no weight overflows.
        a = p[clients] * (self.tilt * (losses - losses.max())).exp()
        answered, model = fed.mean(Cohort(clients, a), w, self.local, key.fold("sgd"))
        if model is None:
            return state, Info.without_replies(D)._replace(losses=f)
        return self.apply_server(state, model), Info(D, answered, f, average=model.average)
