"""Adaptive aggregation for fair federated learning: the server chooses mixing coefficients by online Newton steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from drfl.algorithms import dual
from drfl.algorithms.quadratic import best_weights
from drfl.ambiguity import AmbiguitySet, Simplex
from drfl.core import checks
from drfl.core.errors import unknown
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Info
from drfl.federation.federation import Federation
from drfl.federation.sampling import Cohort
from drfl.optim.local import LocalSGD

RESPONSES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "weibull": lambda x: 1 - (-(x**2)).exp(),
    "exponential": lambda x: 1 - (-x).exp(),
    "frechet": lambda x: (-1 / x).exp(),
    "normal": lambda x: torch.special.ndtr(x - 1),
    "gumbel": lambda x: (-(1 - x).exp()).exp(),
    "logistic": lambda x: torch.sigmoid(x - 1),
}
"""Distribution functions that map a loss, divided by the mean of the losses, to a response in [0, 1]."""


class AAggFFSState(NamedTuple):
    """State of AAggFF-S.

    Args:
        w: (d,) Global model.
        lam: (N,) float64, mixing coefficients p.
        gradients: (N,) float64, sum of the gradients of the decision loss so far.
        curvature: (N, N) float64, α·I plus the sum of their outer products.
    """

    w: Tensor
    lam: Tensor
    gradients: Tensor
    curvature: Tensor


@dataclass(frozen=True)
class AAggFFS:
    """AAggFF-S (Hahn et al. 2024), the variant for few clients that all take part.

    The server treats the choice of mixing coefficients p as online convex optimisation with the decision loss
    −log(1 + ⟨p, r⟩), in which r are the clients' responses, bounded functions of their losses.

    ============ ==================== =====================================================
    paper        code                 meaning
    ============ ==================== =====================================================
    θ^(t)        ``state.w``          (d,) global model
    K            ``N``                number of clients
    p^(t)        ``state.lam``        (N,) mixing coefficients, uniform at first
    F_i          ``f``                loss before training
    r^(t)        ``r``                (N,) responses ρ(F_i/mean F)/K
    g^(t)        ``g``                −r/(1 + ⟨p, r⟩)
    α, β         ``alpha``, ``beta``  4 and K/4, from the Lipschitz constant 1/K
    ============ ==================== =====================================================

    Args:
        m: Cohort size; None selects all clients, as published.
        local: Local solver.
        response: ρ, one of "weibull", "exponential", "frechet", "normal", "gumbel" and "logistic".
        loss_batch: Samples per reported loss; None uses all local training data.

    Deviations: none from the authors' code if all clients are selected and answer. Its quadratic term
    α/2·‖p‖² + β/2·pᵀHp also has α·I within H, and no linear term in past decisions. A client without a reported loss
    gets the mean response, which moves its coefficient least. If all losses are 0, so that there is no mean to divide
    by, all responses are equal.

    Raises:
        InputError: If the response is unknown, or if m > N (on first use).
    """

    m: int | None = None
    local: LocalSGD = field(default_factory=LocalSGD)
    response: str = "normal"
    loss_batch: int | None = None

    ambiguity: ClassVar[AmbiguitySet] = Simplex()
    full_participation: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.response not in RESPONSES:
            raise unknown("response", self.response, RESPONSES)
        if self.loss_batch is not None:
            checks.integer("loss_batch", self.loss_batch)

    def init(self, fed: Federation) -> AAggFFSState:
        """Return the state with the initial model and uniform coefficients."""
        N = fed.n
        sampling.size(N if self.m is None else self.m, N)
        self.local.steps_of(fed.sizes, torch.arange(N))  # raises if local epochs are set but n_i is unknown
        uniform, alpha = torch.full((N,), 1 / N, dtype=torch.float64), 4.0
        return AAggFFSState(fed.w0, uniform, torch.zeros_like(uniform), alpha * torch.eye(N, dtype=torch.float64))

    def round(self, state: AAggFFSState, fed: Federation, key: Key) -> tuple[AAggFFSState, Info]:
        """Collect the losses, choose the next coefficients, and average the local models with them."""
        (w, p, gradients, curvature), N = state, fed.n
        alpha, beta = 4.0, N / 4  # 4·K·L and 1/(4·L) with L = 1/K

        D = sampling.uniform(N, N if self.m is None else self.m, key.fold("D"))
        f = dual.check_finite(fed.losses(D.clients, w, key.fold("xi"), batch=self.loss_batch), fed)
        if not f.clients.numel():
            return state, Info.without_replies(D)
        mean = f.values.mean()
        relative = f.values / mean if mean != 0 else torch.ones_like(f.values)
        response = RESPONSES[self.response](relative) / N
        r = response.mean().repeat(N).index_copy(0, f.clients, response)

        g = -r / (1 + p @ r)
        gradients, curvature = gradients + g, curvature + torch.outer(g, g)
        lam = best_weights(alpha * torch.eye(N, dtype=torch.float64) + beta * curvature, gradients)

        clients = f.clients.sort().values
        answered, model = fed.mean(Cohort(clients, lam[clients]), w, self.local, key.fold("sgd"))
        if model is None:
            return state, Info.without_replies(D)._replace(losses=f)
        return AAggFFSState(model.w, lam, gradients, curvature), Info(D, answered, f, model.average, lam)
