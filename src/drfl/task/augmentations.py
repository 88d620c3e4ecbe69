"""Image augmentations in local steps, for the ``augment`` argument of :class:`drfl.task.task.Task`.

Each is a function of the inputs (B, C, H, W) and of random numbers per sample (see
:class:`drfl.task.training_noise.Uniform`) and uses only torch functions. Therefore, all engines give the same results,
and a resumed run repeats them.

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
    """Flip an image left to right with probability p.

    Raises:
        InputError: If p is not in [0, 1].
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise InputError(f"Flip: p must be in [0, 1], got {self.p!r}", code="out-of-range", field="p")

    def __call__(self, x: Tensor, uniform: Uniform) -> Tensor:
        """Augment a minibatch; see :data:`drfl.task.training_noise.Augmentation`."""
        # Each sample has one draw, which is broadcast over its pixels.
        flipped = (uniform() < self.p).reshape(-1, *[1] * (x.dim() - 1))
        return torch.where(flipped, x.flip(-1), x)


@dataclass(frozen=True)
class Crop:
    """Pad an image with zeros and crop it to its original size at a random position (He et al. 2016).

    Args:
        border: Width of the padding in pixels.

    Raises:
        InputError: If the border is not a positive integer, or (when first used) the inputs are not images.
    """

    border: int = 4

    def __post_init__(self) -> None:
        checks.integer("Crop: border", self.border)

    def __call__(self, x: Tensor, uniform: Uniform) -> Tensor:
        """Augment a minibatch; see :data:`drfl.task.training_noise.Augmentation`."""
        if x.dim() != 4:
            raise InputError(
                f"Crop needs images of shape (B, C, H, W), got {tuple(x.shape)}", code="wrong-shape", field="inputs"
            )
        # Positions are uniform on 0…2·border, because the random numbers are below 1 and long() rounds down.
        positions = (2 * self.border + 1) * uniform(2)
        top, left = positions.long().unbind(1)
        rows = top[:, None] + torch.arange(x.shape[2], device=x.device)
        columns = left[:, None] + torch.arange(x.shape[3], device=x.device)
        padded = pad(x, [self.border] * 4)
        # Slicing would need the positions on the CPU; two gathers leave them on the GPU.
        down = rows[:, None, :, None].expand(-1, x.shape[1], -1, padded.shape[3])
        across = columns[:, None, None, :].expand(-1, x.shape[1], x.shape[2], -1)
        return padded.gather(2, down).gather(3, across)


@dataclass(frozen=True)
class GaussianNoise:
    """Add independent normal noise to the inputs.

    Args:
        std: Standard deviation of the noise.

    Raises:
        InputError: If std is not positive.
    """

    std: float

    def __post_init__(self) -> None:
        checks.positive("GaussianNoise: std", self.std)

    def __call__(self, x: Tensor, uniform: Uniform) -> Tensor:
        """Augment a minibatch; see :data:`drfl.task.training_noise.Augmentation`."""
        # The transform of Box and Muller (1958). The logarithm is finite, because 1 − u is never 0.
        radius = (1 - uniform(*x.shape[1:])).log().mul(-2).sqrt()
        return x + (self.std * radius * torch.cos(2 * math.pi * uniform(*x.shape[1:]))).to(x)


@dataclass(frozen=True, init=False)
class Chain:
    """Apply several augmentations one after the other."""

    parts: tuple[Augmentation, ...]

    def __init__(self, *parts: Augmentation) -> None:
        object.__setattr__(self, "parts", parts)

    def __call__(self, x: Tensor, uniform: Uniform) -> Tensor:
        """Augment a minibatch; see :data:`drfl.task.training_noise.Augmentation`."""
        for part in self.parts:
            x = part(x, uniform)
        return x
