"""A trained network that is not trained any further, and what its images must be like."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor, nn

from drfl.errors import InputError
from drfl.features.resnet import resnet18
from drfl.models import cnn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's red, green and blue in [0, 1]: what its published weights take for zero and one."""

CNN_KEYS = {f"{layer}.{part}" for layer in (0, 2, 5, 7) for part in ("weight", "bias")}
"""Parameters of `drfl.models.cnn`."""


@dataclass(frozen=True, eq=False)
class Backbone:
    """A network in eval mode, none of its parameters to be trained.

    Args:
        name: for messages.
        model: its layers; the last is the linear one that gives the classes.
        channels: of an image that it takes.
        quarter: (height // 4) · (width // 4) of an image that it takes, for `drfl.models.cnn`; None = any size.
    """

    name: str
    model: nn.Sequential
    channels: int
    quarter: int | None = None

    @classmethod
    def of(cls, name: str, state: Mapping[str, Tensor]) -> Backbone:
        """The network whose weights these are: which one it is, is told by their names.

        Args:
            name: for messages.
            state: parameters and buffers, named as by torchvision's ResNet-18 or by `drfl.models.cnn`.

        Raises:
            InputError: they are of neither.
        """
        try:
            with torch.random.fork_rng(devices=[]):  # the initial weights, which are overwritten, are drawn
                model, channels, quarter = _network(name, state)
            model.load_state_dict(state, strict=True)
        except (RuntimeError, IndexError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"backbone '{name}' does not have the weights that its names promise: {reason}") from None
        for parameter in model.parameters():
            if parameter.dim() == 4:  # on CPUs several times as fast
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        return cls(name, model.eval().requires_grad_(False), channels, quarter)

    @property
    def trunk(self) -> nn.Sequential:
        """All but the last layer."""
        return cast(nn.Sequential, self.model[:-1])

    @property
    def classes(self) -> int:
        """Outputs of the last layer."""
        return cast(nn.Linear, self.model[-1]).out_features

    @cached_property
    def digest(self) -> str:
        """Names the weights: equal ones have equal digests."""
        found = hashlib.blake2b(digest_size=16)
        for name, value in sorted(self.model.state_dict().items()):
            found.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
            found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    def to(self, device: torch.device | str) -> Backbone:
        """The same network on another device."""
        return Backbone(self.name, self.model.to(device), self.channels, self.quarter)

    def prepared(self, images: Tensor, resize: int | None) -> Tensor:
        """Images as the network wants them: resized, with its channels; for ResNet-18 normalised as ImageNet was.

        Args:
            images: (B, c, height, width), floating in [0, 1] or bytes.
            resize: side of the square that they are brought to, by bilinear interpolation with antialiasing; None = as
                they are.

        Returns:
            (B, channels, h, w) of the weights' type, channels next to each other in memory.

        Raises:
            InputError: see :meth:`check`.
        """
        self.check_images(images.shape)
        x = images.to(next(self.model.parameters()).dtype)
        x = x / 255 if images.dtype == torch.uint8 else x
        if resize is not None and x.shape[2:] != (resize, resize):
            x = F.interpolate(x, (resize, resize), mode="bilinear", antialias=True, align_corners=False)
        self.check(x.shape)
        x = x.expand(-1, self.channels, -1, -1)
        if self.quarter is None:
            mean, std = (torch.tensor(values, dtype=x.dtype, device=x.device).view(3, 1, 1) for values in (MEAN, STD))
            x = (x - mean) / std
        return torch.empty_like(x, memory_format=torch.channels_last).copy_(x)

    def check(self, shape: torch.Size) -> None:
        """Refuse inputs of a shape (B, …) that the network cannot take.

        Raises:
            InputError: they are no images, or have other channels or another size.
        """
        self.check_images(shape)
        if shape[1] not in (1, self.channels):
            raise InputError(
                f"backbone '{self.name}' takes images of {self.channels} channels, not {shape[1]}: take another one"
            )
        if self.quarter is not None and (shape[2] // 4) * (shape[3] // 4) != self.quarter:
            side = 4 * math.isqrt(self.quarter)
            raise InputError(
                f"backbone '{self.name}' takes images of {side}×{side} pixels, not {shape[2]}×{shape[3]}: give "
                f"resize = {side}"
            )

    def check_images(self, shape: torch.Size) -> None:
        """Refuse inputs of a shape that no image has.

        Raises:
            InputError: it is not (n, c, height, width).
        """
        if len(shape) != 4:
            raise InputError(f"backbone '{self.name}' takes images, not inputs of shape {tuple(shape[1:])}")


def _check_large(state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse weights whose large parts are not there, before room is made for them: a small file may claim much.

    Raises:
        KeyError: one is missing.
        RuntimeError: one is of another shape, or empty.
    """
    for name, shape in shapes.items():
        if state[name].shape != shape or not state[name].numel():
            raise RuntimeError(f"{name} is of shape {tuple(state[name].shape)}, where {shape} belongs")


def _network(name: str, state: Mapping[str, Tensor]) -> tuple[nn.Sequential, int, int | None]:
    """The network that has such weights, the channels that it takes, and `Backbone.quarter`."""
    if "fc.weight" in state and "layer1.0.conv1.weight" in state:
        norm = "batch" if "bn1.running_mean" in state else "group"
        classes, width = len(state["fc.weight"]), len(state["conv1.weight"])
        large = {"layer4.1.conv2.weight": (8 * width, 8 * width, 3, 3), "fc.weight": (classes, 8 * width)}
        _check_large(state, large)
        return resnet18(classes, norm, width), 3, None
    if set(state) == CNN_KEYS:
        channels, quarter = state["0.weight"].shape[1], state["5.weight"].shape[1] // 32
        classes = len(state["7.weight"])
        large = {"0.weight": (16, channels, 3, 3), "5.weight": (500, 32 * quarter), "7.weight": (classes, 500)}
        _check_large(state, large)
        model = cnn((channels, 4, 4 * quarter), classes)
        return cast(nn.Sequential, model), channels, quarter
    raise InputError(
        f"backbone '{name}' holds the weights of neither ResNet-18, as torchvision names them, nor the model 'cnn'"
    )
