"""The models that come along, and the losses that torch has not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from drfl.errors import InputError


def linear(shape: Sequence[int], classes: int) -> nn.Module:
    """One linear layer on the flattened input: multinomial logistic regression (000 §IV.A.3, MNIST; 001 §6)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))


def mlp(shape: Sequence[int], classes: int, hidden: Sequence[int] = (128,)) -> nn.Module:
    """Fully connected layers with ReLU between them, of the given hidden widths."""
    widths = [prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def cnn(shape: Sequence[int], classes: int) -> nn.Module:
    """DRDM's network for Kuzushiji-MNIST (000 §IV.A.3).

    3×3 convolution to 16 channels, 2×2 max-pooling, 3×3 convolution to 32 channels, 2×2 max-pooling, 500 units with
    ReLU, output. The convolutions are padded, so that 28×28 images give the paper's 32×7×7 features; as in the paper
    there is no ReLU after them.

    Args:
        shape: (channels, height, width) of an input, height and width at least 4.
        classes: number of outputs.

    Raises:
        InputError: the inputs are not such images.
    """
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise InputError(f"the CNN needs inputs (channels, height ≥ 4, width ≥ 4), not {tuple(shape)}: use 'mlp'")
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 500),
        nn.ReLU(),
        nn.Linear(500, classes),
    )


MODELS: dict[str, Callable[[Sequence[int], int], nn.Module]] = {"linear": linear, "mlp": mlp, "cnn": cnn}
"""Every model by the name that the command knows it by: (shape of an input, classes) → module."""


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
