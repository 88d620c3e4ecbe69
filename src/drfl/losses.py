"""Losses by name, each one value a sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


def half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """½‖o − e_y‖² per sample: squared error against the one-hot label, summed over the classes.

    The half makes the gradient in the outputs o − e_y. torch's ``MSELoss`` on one-hot labels is this times 2/C, as it
    takes the mean over the C classes; the step size makes up for that. Its use for classification follows 003 §F.1.

    Args:
        outputs: (B, C) floating.
        targets: (B,) int64 labels in 0..C-1.

    Returns:
        (B,) losses, of the outputs' type.
    """
    # torch's one_hot looks at the labels' values, which vmap cannot do
    classes = torch.arange(outputs.shape[-1], device=outputs.device)
    labels = (targets.unsqueeze(-1) == classes).to(outputs.dtype)
    return (outputs - labels).square().sum(-1) / 2


LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": nn.CrossEntropyLoss(),
    "squared": half_squared_error,
}
"""Every loss by the name that configurations know it by."""
