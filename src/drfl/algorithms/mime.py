"""MIME: clients mimic momentum SGD on all data, with a fixed momentum and a control variate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from drfl.algorithms.client_side import ClientSide, ClientSideState
from drfl.core import checks
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Info
from drfl.federation.federation import Federation
from drfl.federation.local_method import Batch, StepContext
from drfl.federation.sampling import Cohort
from drfl.task.client_model import ClientModel


@dataclass(frozen=True)
class MIME(ClientSide):
    """MIME with momentum SGD as its base optimiser (Karimireddy et al. 2020, "Mime").

    The server sends its momentum m and the mean c of the cohort's full-batch gradients at x. A local step is
    y ← y − η((1 − β)(∇f_i(y; ζ) − ∇f_i(x; ζ) + c) + βm), with m fixed for the whole round.

    ========== ======================= =====================================================
    paper      code                    meaning
    ========== ======================= =====================================================
    x          ``state.w``             (d,) global model
    s          ``state.shared``        (d,) momentum m of the server
    c          ``c``                   mean of ∇f_i(x) over the cohort
    y_i        ``up.w``                (d,) local model
    β          ``beta``                decay of the momentum
    ========== ======================= =====================================================

    Args:
        m: Cohort size, for the gradients and for training; None = :func:`drfl.federation.sampling.size`.
        local: Local solver; its own momentum is best 0.
        by_samples: Whether to weight clients by their samples (the default) or equally.
        server: Server optimiser, applied to the mean of the local models; None uses the mean as the next model.
        beta: β in [0, 1). With 0, clients only correct their drift by c.

    Deviations: see ``docs/algorithms/client-side/mime.md``.

    Raises:
        InputError: If beta is out of range, or if m > N (on first use).
    """

    beta: float = 0.9

    gradients: ClassVar[int] = 2

    def __post_init__(self) -> None:
        checks.decay("beta", self.beta)

    def shared(self, model: ClientModel) -> dict[str, Tensor]:
        """Return the initial momentum, 0."""
        return {"momentum": model.vector.new_zeros(len(model.vector))}

    def round(self, state: ClientSideState, fed: Federation, key: Key) -> tuple[ClientSideState, Info]:
        """Ask a cohort for its gradients, train it with their mean as control variate, and update the momentum."""
        D = sampling.uniform(fed.n, sampling.size(self.m, fed.n), key.fold("D"))
        g = fed.gradients(D.clients, state.w, key.fold("gradients"))
        if not g.clients.numel():
            return state, Info.without_replies(D)
        order = g.clients.argsort()  # replies come in any order; a cohort is ascending
        clients, p = g.clients[order], self.weights(fed)
        c = (p[clients] / p[clients].sum()).to(state.w) @ g.values[order]
        after, info = self.play(state, fed, Cohort(clients, p[clients]), key.fold("sgd"), {"c": c})
        if not info.is_empty and after.shared is not None:
            after = after._replace(shared=self.beta * after.shared + (1 - self.beta) * c)
        return after, info._replace(cohort=D)

    def loss(self, model: ClientModel, batch: Batch, context: StepContext) -> Tensor:
        """Return a loss whose gradient is (1 − β)(∇f_i(y; ζ) − ∇f_i(x; ζ) + c) + βm."""
        y = model.vector
        correction = (context["c"] - context.received.gradient(batch.loss)) @ y
        return (1 - self.beta) * (batch.loss(model) + correction) + self.beta * (context["momentum"] @ y)
