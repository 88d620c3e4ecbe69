"""MOON: local features stay close to those of the global model and move away from those of the previous local model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from drfl.algorithms.client_side import ClientSide
from drfl.core import checks
from drfl.federation.local_method import Batch, ClientRowsView, StepContext
from drfl.task.client_model import ClientModel


@dataclass(frozen=True)
class MOON(ClientSide):
    """MOON, model-contrastive federated learning (Li, He and Song 2021).

    With z, z_glob and z_prev the features of a sample under the local model, the global model and the client's local
    model of its previous round, the loss is ℓ_sup + μ·ℓ_con with
    ℓ_con = −log(e^{sim(z, z_glob)/τ} / (e^{sim(z, z_glob)/τ} + e^{sim(z, z_prev)/τ})) and sim the cosine.

    ========== ======================= =====================================================
    paper      code                    meaning
    ========== ======================= =====================================================
    w^t        ``state.w``             (d,) global model
    w_i^{t−1}  ``state.store``         (d,) client i's model after its previous round
    μ          ``mu``                  weight of the contrastive loss
    τ          ``temperature``         temperature
    ========== ======================= =====================================================

    Args:
        m: Cohort size; None = :func:`drfl.federation.sampling.size`.
        local: Local solver.
        by_samples: Whether to weight clients by their samples (the default) or equally.
        server: Server optimiser, applied to the mean of the local models; None uses the mean as the next model.
        mu: μ ≥ 0; with 0, this is FedAvg.
        temperature: τ > 0.

    Deviations: features are the inputs of the last layer, without a separate projection head; add one to the model. In
    a client's first round its previous model is the global model, so that the contrastive loss has no gradient.

    Raises:
        InputError: If mu or temperature is out of range, or if m > N (on first use).
    """

    mu: float = 1.0
    temperature: float = 0.5

    def __post_init__(self) -> None:
        checks.non_negative("mu", self.mu)
        checks.positive("temperature", self.temperature)

    def state(self, model: ClientModel) -> dict[str, Tensor]:
        """Return the start value of the previous model: the global model."""
        return {"previous": model.vector}

    def loss(self, model: ClientModel, batch: Batch, context: StepContext) -> Tensor:
        """Return ℓ_sup + μ·ℓ_con."""
        z, outputs = model.features(batch.inputs)
        with torch.no_grad():
            z_glob, _ = context.received.features(batch.inputs)
            z_prev, _ = model.at(context.state["previous"]).features(batch.inputs)
        near, far = (functional.cosine_similarity(z.flatten(1), other.flatten(1)) for other in (z_glob, z_prev))
        contrast = functional.softplus((far - near) / self.temperature)
        return batch.mean(model.losses(outputs, batch.targets) + self.mu * contrast)

    def remember(self, model: ClientModel, data: ClientRowsView, context: StepContext) -> dict[str, Tensor]:
        """Return the local model, which is the previous one of the next round."""
        return {"previous": model.vector}
