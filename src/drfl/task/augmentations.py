"""Augmentations of pictures in local steps, for :class:`drfl.task.task.Task`'s ``augment``.

Each is a function of the inputs (B, C, H, W) and of the samples' random numbers, see
:class:`drfl.task.training_noise.Uniform`, by torch functions alone: so engines agree, and a resumed run repeats them.

Example:
    >>> task = drfl.Task(model, augment=drfl.augmentations.Chain(Flip(), Crop(4)))  # doctest: +SKIP
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.task.training_noise import Augmentation, Uniform


@dataclass(frozen=True)
class Flip:
    """Mirrors a picture left to right with probability p.

    Raises:
        InputError: If p is not in [0, 1].
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise InputError(f"Flip: p = {self.p} must be in [0, 1]", code="out-of-range", field="p")

    def __call__(self, x: Tensor, uniform: Uniform) -> Tensor:
        """See :data:`drfl.task.training_noise.Augmentation`."""
        # Each sample has one draw, broadcast over its pixels.
        chosen = (uniform() < self.p).reshape(-1, *[1] * (x.dim() - 1))
        return torch.where(chosen, x.flip(-1), x)


@dataclass(frozen=True)
class Crop:
    """Cuts a picture of the same size at random out of one with a border of zeros around it (He et al. 2016).

    Args:
        border: Its width in pixels.

    Raises:
        InputError: If it is not a whole number from 1 on; inputs are no pictures (when first used).
    """

    border: int = 4

    def __post_init__(self) -> None:
        checks.whole("Crop: border", self.border)

    def __call__(self, x: Tensor, uniform: Uniform) -> Tensor:
        """See :data:`drfl.task.training_noise.Augmentation`."""
        if x.dim() != 4:
            raise InputError(
                f"Crop needs pictures (B, C, H, W), not {tuple(x.shape)}", code="wrong-shape", field="inputs"
            )
        # Places are uniform on 0…2·border: the uniforms are below 1, and long() rounds down.
        places = (2 * self.border + 1) * uniform(2)
        top, left = places.long().unbind(1)
        rows = top[:, None] + torch.arange(x.shape[2], device=x.device)
        columns = left[:, None] + torch.arange(x.shape[3], device=x.device)
        wide = pad(x, [self.border] * 4)
        # Slices would need every sample's place on the CPU; two gathers leave them on the GPU.
        down = rows[:, None, :, None].expand(-1, x.shape[1], -1, wide.shape[3])
        across = columns[:, None, None, :].expand(-1, x.shape[1], x.shape[2], -1)
        return wide.gather(2, down).gather(3, across)


@dataclass(frozen=True)
class GaussianNoise:
    """Adds independent normal numbers.

    Args:
        std: Their standard deviation.

    Raises:
        InputError: If it is not positive.
    """

    std: float

    def __post_init__(self) -> None:
        checks.positive("GaussianNoise: std", self.std)

    def __call__(self, x: Tensor, uniform: Uniform) -> Tensor:
        """See :data:`drfl.task.training_noise.Augmentation`."""
        # Box and Muller 1958; 1 − u is never 0.
        size = (1 - uniform(*x.shape[1:])).log().mul(-2).sqrt()
        return x + (self.std * size * torch.cos(2 * math.pi * uniform(*x.shape[1:]))).to(x)


@dataclass(frozen=True, init=False)
class Chain:
    """Augmentations one after the other."""

    parts: tuple[Augmentation, ...]

    def __init__(self, *parts: Augmentation) -> None:
        object.__setattr__(self, "parts", parts)

    def __call__(self, x: Tensor, uniform: Uniform) -> Tensor:
        """See :data:`drfl.task.training_noise.Augmentation`."""
        for part in self.parts:
            x = part(x, uniform)
        return x
