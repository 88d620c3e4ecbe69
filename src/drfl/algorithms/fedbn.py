"""FedBN: batch normalisation stays at the clients."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from drfl.algorithms.client_side import PersonalClientSide
from drfl.core.errors import InputError
from drfl.task.client_model import ClientModel


@dataclass(frozen=True)
class FedBN(PersonalClientSide):
    """FedBN (Li, Jiang, Zhang, Kamp and Dou 2021): FedAvg in which the BatchNorm layers are not averaged.

    Each client keeps the weights, biases, running means and running variances of its BatchNorm layers, and is tested
    with them. All other parameters are averaged. The model needs layers from
    :func:`drfl.models.with_federated_batch_norm`.

    ========== ======================= =====================================================
    paper      code                    meaning
    ========== ======================= =====================================================
    w^t        ``state.w``             global model; its BatchNorm layers stay the initial ones
    BN of k    ``state.store``         client k's BatchNorm layers
    ========== ======================= =====================================================

    Args:
        m: Cohort size; None = :func:`drfl.federation.sampling.size`.
        local: Local solver.
        by_samples: Whether to weight clients by their samples (the default) or equally.
        server: Server optimiser, applied to the mean of the local models; None uses the mean as the next model.

    Deviations: the authors' program lets all clients take part in every round, and weights them equally.

    Raises:
        InputError: If the model has no such layers, or if m > N (on first use).
    """

    def private(self, model: ClientModel) -> Collection[str]:
        """Return the parameters and statistics of the BatchNorm layers."""
        if not model.norms:
            raise InputError(
                "FedBN needs a model with batch normalisation in training mode. Build it with nn.BatchNorm and convert "
                "it with drfl.models.with_federated_batch_norm(model), or use FedAvg.",
                code="unsupported-model",
                field="model",
            )
        return model.norms
