"""FedLC: logits calibrated by how often each class occurs at the client."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drfl.algorithms.client_side import ClientSide
from drfl.core import checks
from drfl.core.errors import InputError
from drfl.federation.local_method import Batch, ClientRowsView, StepContext
from drfl.task.client_model import ClientModel


@dataclass(frozen=True)
class FedLC(ClientSide):
    """FedLC, federated learning with logits calibration (Zhang et al. 2022).

    A client subtracts τ·n_c^(−1/4) from the logit of each class c, with n_c its number of training samples of that
    class, before it computes the loss. Rare classes then need larger margins. Classes that the client does not have are
    excluded from its loss. Tests use the logits themselves.

    ========== ======================= =====================================================
    paper      code                    meaning
    ========== ======================= =====================================================
    w          ``state.w``             (d,) global model
    n_c        ``counts``              training samples of class c at the client
    τ          ``tau``                 strength of the calibration
    ========== ======================= =====================================================

    Args:
        m: Cohort size; None = :func:`drfl.federation.sampling.size`.
        local: Local solver.
        by_samples: Whether to weight clients by their samples (the default) or equally.
        server: Server optimiser, applied to the mean of the local models; None uses the mean as the next model.
        tau: τ ≥ 0. With 0, the only difference from FedAvg is that missing classes are excluded.

    Deviations: see ``docs/algorithms/client-side/fedlc.md``.

    Raises:
        InputError: If tau is negative, if the targets are not class labels, or if m > N (the last two on first use).
    """

    tau: float = 1.0

    def __post_init__(self) -> None:
        checks.non_negative("tau", self.tau)

    def prepare(self, model: ClientModel, data: ClientRowsView, context: StepContext) -> dict[str, Tensor]:
        """Return the margins τ·n_c^(−1/4), infinite for classes that the client does not have."""
        with torch.no_grad():
            outputs = model(data.inputs[:1])
        if data.targets.is_floating_point() or data.targets.dim() != 1 or outputs.dim() != 2:
            raise InputError(
                "FedLC needs one class label per sample and one output per class. Use FedAvg for other targets.",
                code="wrong-task",
                field="algorithm",
            )
        labels = data.targets[data.targets >= 0]  # a loss may ignore negative labels
        counts = torch.bincount(labels, minlength=outputs.shape[1]).to(outputs)
        return {"margins": torch.where(counts > 0, self.tau * counts.clamp(min=1) ** -0.25, torch.inf)}

    def loss(self, model: ClientModel, batch: Batch, context: StepContext) -> Tensor:
        """Return the task's loss of the calibrated logits."""
        return batch.mean(model.losses(model(batch.inputs) - context["margins"], batch.targets))
