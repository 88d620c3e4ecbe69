"""Multiple-gradient descent: a step that raises no loss in the cohort, to first order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from drfl.algorithms.fedavg import EqualWeights, FedAvgState
from drfl.algorithms.quadratic import best_weights
from drfl.core import checks
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Info
from drfl.federation.federation import Federation
from drfl.federation.requests import select_rows
from drfl.optim.local import LocalSGD
from drfl.optim.schedules import Constant, Schedule, check_schedule


@dataclass(frozen=True)
class FedMGDAPlus(EqualWeights):
    """FedMGDA+ (Hu et al. 2022): the shortest convex combination of the clients' normalised updates.

    Finds Pareto-stationary models, at which no direction lowers all clients' losses.

    ============ ==================== =====================================================
    paper        code                 meaning
    ============ ==================== =====================================================
    w^t          ``state.w``          (d,) global model
    I_t          ``D``                cohort, uniform without replacement
    g_i          ``g``                (k, d) updates w^t − w_i, each divided by its norm
    λ*           ``lam``              argmin ‖Σ λ_i g_i‖² near the uniform weights
    ε            ``epsilon``          largest |λ_i − 1/k|
    d_t          ``d``                Σ λ*_i g_i
    η            ``server_lr``        global step size
    ============ ==================== =====================================================

    Args:
        m: Cohort size.
        local: Local solver.
        epsilon: ε in [0, 1]. 1 is multiple-gradient descent; 0 gives the mean of the normalised updates.
        server_lr: η > 0, in units of the normalised updates; None is the mean length of the cohort's updates.
        server_lr_schedule: Multiplies η in each round, see :mod:`drfl.optim.schedules`.

    Deviations: by default η is the mean length of the updates and not a constant, which would need its own decay. A
    client whose update is 0 has g_i = 0, and if ε = 1 the model does not change, because it is Pareto-stationary. The
    authors' code divides by 0 there.

    Raises:
        InputError: If a value is out of range, or if m > N (on first use).
    """

    m: int | None = None
    local: LocalSGD = field(default_factory=LocalSGD)
    epsilon: float = 1.0
    server_lr: float | None = None
    server_lr_schedule: Schedule = field(default_factory=Constant)

    no_average: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.fraction("epsilon", self.epsilon)
        if self.server_lr is not None:
            checks.positive("server_lr", self.server_lr)
        check_schedule("server_lr_schedule", self.server_lr_schedule)

    def init(self, fed: Federation) -> FedAvgState:
        """Return the state with the initial model."""
        sampling.size(self.m, fed.n)
        self.local.steps_of(fed.sizes, torch.arange(fed.n))  # raises if local epochs are set but n_i is unknown
        return FedAvgState(fed.w0)

    def round(self, state: FedAvgState, fed: Federation, key: Key) -> tuple[FedAvgState, Info]:
        """Train a uniform cohort, and step along the shortest combination of its normalised updates."""
        w = state.w

        D = sampling.uniform(fed.n, sampling.size(self.m, fed.n), key.fold("D"))
        up = fed.train(D.clients, w, self.local, key.fold("sgd"))
        if not up.clients.numel():
            return state, Info.without_replies(D)
        up = select_rows(up, up.clients.argsort())  # replies come in any order, and sums must not depend on it
        updates = w - up.w
        norms = updates.norm(dim=1)
        g = updates / torch.where(norms > 0, norms, 1.0)[:, None]
        k = len(norms)
        low, high = max(0.0, 1 / k - self.epsilon), min(1.0, 1 / k + self.epsilon)
        lam = best_weights(g.double() @ g.double().T, torch.zeros(k, dtype=torch.float64), low, high)
        d = lam.to(g) @ g
        eta = float(norms.double().mean()) if self.server_lr is None else self.server_lr
        return FedAvgState(w - eta * d), Info(D, up.clients)
