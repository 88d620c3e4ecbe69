"""What convolutions on a CPU need to be fast."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from drfl.engine.base import Problem


def convolutional(model: nn.Module) -> bool:
    """Whether the model has a convolution in it."""
    return any(isinstance(layer, nn.modules.conv._ConvNd) for layer in model.modules())


def images(problem: Problem) -> bool:
    """Whether the model works by convolutions on images, on a CPU."""
    return problem.x.dim() == 4 and not problem.x.is_cuda and convolutional(problem.task.model)


def channels_last(images: Tensor) -> Tensor:
    """A copy (B, C, H, W) with the channels next to each other in memory, on which pooling is several times faster.

    ``Tensor.contiguous`` leaves images of one channel as they are, and pooling then takes the slow way.
    """
    return torch.empty_like(images, memory_format=torch.channels_last).copy_(images)
