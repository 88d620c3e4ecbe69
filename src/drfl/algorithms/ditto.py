"""Ditto: a personal model at each client, pulled towards the global model of FedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from drfl.algorithms.client_side import PersonalClientSide
from drfl.core import checks
from drfl.federation.local_method import Batch, StepContext
from drfl.task.client_model import ClientModel


@dataclass(frozen=True)
class Ditto(PersonalClientSide):
    """Ditto (Li, Hu, Beirami and Smith 2021, Algorithm 1).

    The global model is FedAvg's. In addition, each client trains its own model v_k, which is pulled towards the global
    model and never leaves the client: v_k ← v_k − η(∇F_k(v_k) + λ(v_k − w)).

    ========== ======================= =====================================================
    paper      code                    meaning
    ========== ======================= =====================================================
    w^t        ``state.w``             (d,) global model
    v_k        ``state.store``         (d,) client k's own model
    λ          ``lam``                 weight of the pull towards w^t
    S_t        ``D``                   cohort, uniform without replacement
    r, s       ``local``               local steps for w and for v_k
    ========== ======================= =====================================================

    Args:
        m: Cohort size; None = :func:`drfl.federation.sampling.size`.
        local: Local solver, for both models.
        by_samples: Whether to weight clients by their samples (the default) or equally.
        server: Server optimiser, applied to the mean of the local models; None uses the mean as the next model.
        lam: λ ≥ 0. With 0, clients train alone; a large λ pulls them to the global model.

    Deviations: both models take the same number of steps, on the same minibatches. v_k starts from the global model in
    the client's first round.

    Raises:
        InputError: If lam is negative, or if m > N (on first use).
    """

    lam: float = 1.0

    gradients: ClassVar[int] = 2
    trained: ClassVar[tuple[str, ...]] = ("v",)
    separate: ClassVar[bool] = False  # the global model is FedAvg's

    def __post_init__(self) -> None:
        checks.non_negative("lam", self.lam)

    @property
    def proximal_weight(self) -> float:
        """Weight of the proximal term, see :func:`drfl.federation.algorithm.proximal_weight`."""
        return self.lam

    def state(self, model: ClientModel) -> dict[str, Tensor]:
        """Return the start value of the client's own model v_k: the global model."""
        return {"v": model.vector}

    def loss(self, model: ClientModel, batch: Batch, context: StepContext) -> Tensor:
        """Return F_k(w) + F_k(v) + λ/2·‖v − w^t‖², whose gradients do not mix the two models."""
        v = context.state["v"]
        pull = ((v - context.w) ** 2).sum()
        return batch.loss(model) + batch.loss(model.at(v)) + self.lam / 2 * pull

    def own_model(self, model: ClientModel, context: StepContext) -> Tensor:
        """Return v_k."""
        return context.state["v"]
