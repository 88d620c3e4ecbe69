"""ResNet-18, and the networks that images pass through before they are learnt from."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor, nn

from drfl.core.errors import InputError
from drfl.data.features.efficientnet import efficientnet_lite0
from drfl.task.models import cnn

Norm = Literal["batch", "group"]

GROUPS = 32
"""Groups of a GroupNorm, as in Wu and He (2018); a layer of fewer than 64 channels has a group for every two."""


NORMS: dict[Norm, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": lambda channels: nn.GroupNorm(min(GROUPS, channels // 2), channels),
}


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut; the parameters' names are torchvision's.

    Args:
        inputs: channels that come in.
        outputs: channels that go out.
        stride: of the first convolution and of the shortcut.
        norm: makes the normalisation for so many channels.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = norm(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, inputs, h, w) → (B, outputs, ⌈h/stride⌉, ⌈w/stride⌉)."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


def resnet18(classes: int, norm: Norm = "batch", width: int = 64) -> nn.Sequential:
    """ResNet-18 for images (B, 3, height, width) of any size, with torchvision's names of parameters.

    Its last layer, ``fc``, takes 8·width features. A federation can train it with GroupNorm; with BatchNorm it keeps
    running statistics and serves as a frozen backbone.

    Args:
        classes: number of outputs.
        norm: "batch" as in the paper, or "group".
        width: channels of the first layer; the paper's network has 64.
    """
    make = NORMS[norm]
    layers = OrderedDict[str, nn.Module](
        conv1=nn.Conv2d(3, width, 7, 2, padding=3, bias=False),
        bn1=make(width),
        relu=nn.ReLU(),
        maxpool=nn.MaxPool2d(3, 2, padding=1),
    )
    for k in range(4):
        outputs = width * 2**k
        first = BasicBlock(max(width, outputs // 2), outputs, 1 if k == 0 else 2, make)
        layers[f"layer{k + 1}"] = nn.Sequential(first, BasicBlock(outputs, outputs, 1, make))
    layers |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": nn.Linear(8 * width, classes)}
    model = nn.Sequential(layers)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return model


class PixelScale(NamedTuple):
    """What a network takes for zero and one of red, green and blue in [0, 1].

    Args:
        mean: subtracted.
        std: divided by.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


IMAGENET_SCALE = PixelScale((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""ImageNet's mean and deviation: of torchvision's weights."""

LITE_SCALE = PixelScale((127 / 255,) * 3, (128 / 255,) * 3)
"""(byte − 127) / 128, for which EfficientNet-Lite was trained."""

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
        scale: by which its images are normalised; None = they are not.
    """

    name: str
    model: nn.Sequential
    channels: int
    quarter: int | None = None
    scale: PixelScale | None = None

    @staticmethod
    def of(name: str, state: Mapping[str, Tensor]) -> Backbone:
        """The network whose weights these are: which one it is, is told by their names.

        Args:
            name: for messages.
            state: parameters and buffers, named as by torchvision's ResNet-18, by EfficientNet-Lite0's PyTorch port or
                by `drfl.models.cnn`.

        Raises:
            InputError: they are of none of these.
        """
        try:
            with torch.random.fork_rng(devices=[]):  # the initial weights, which are overwritten, are drawn
                found = _network(name, state)
            found.model.load_state_dict(state, strict=True)
        except (RuntimeError, IndexError, KeyError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"backbone '{name}' has weights that do not match its parameter names: {reason}",
                code="damaged-file",
                field="backbone",
            ) from None
        found.model.eval().requires_grad_(False)
        for parameter in found.model.parameters():
            if parameter.dim() == 4:  # on CPUs several times as fast
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        return found

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
            # The digest is of the bytes, as different weights may print alike.
            found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    def to(self, device: torch.device | str) -> Backbone:
        """The same network on another device."""
        return replace(self, model=self.model.to(device))

    def prepared(self, images: Tensor, resize: int | None) -> Tensor:
        """Images as the network wants them: resized, with its channels, and normalised.

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
        # A grey image becomes three equal channels; expand copies nothing.
        x = x.expand(-1, self.channels, -1, -1)
        if self.scale is not None:
            mean, std = (torch.tensor(values, dtype=x.dtype, device=x.device).view(3, 1, 1) for values in self.scale)
            x = (x - mean) / std
        # Convolutions on CPUs take the channels-last format without reordering.
        return torch.empty_like(x, memory_format=torch.channels_last).copy_(x)

    def check(self, shape: torch.Size) -> None:
        """Refuse inputs of a shape (B, …) that the network cannot take.

        Raises:
            InputError: they are no images, or have other channels or another size.
        """
        self.check_images(shape)
        if shape[1] not in (1, self.channels):
            raise InputError(
                f"backbone '{self.name}' expects images with {self.channels} channels, got {shape[1]}. "
                "Choose another backbone",
                code="unsupported-data",
                field="backbone",
            )
        if self.quarter is not None and (shape[2] // 4) * (shape[3] // 4) != self.quarter:
            side = 4 * math.isqrt(self.quarter)
            raise InputError(
                f"backbone '{self.name}' expects images of {side}×{side} pixels, got "
                f"{shape[2]}×{shape[3]}. Set resize = {side}",
                code="unsupported-data",
                field="backbone",
            )

    def check_images(self, shape: torch.Size) -> None:
        """Refuse inputs of a shape that no image has.

        Raises:
            InputError: it is not (n, c, height, width).
        """
        if len(shape) != 4:
            raise InputError(
                f"backbone '{self.name}' expects images, got inputs of shape {tuple(shape[1:])}",
                code="unsupported-data",
                field="backbone",
            )


def _check_large(state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse weights whose large parts are not there, before room is made for them: a small file may claim much.

    Raises:
        KeyError: one is missing.
        RuntimeError: one is of another shape, or empty.
    """
    for name, shape in shapes.items():
        if state[name].shape != shape or not state[name].numel():
            raise RuntimeError(f"{name} has shape {tuple(state[name].shape)}, expected {shape}")


def _network(name: str, state: Mapping[str, Tensor]) -> Backbone:
    if "fc.weight" in state and "layer1.0.conv1.weight" in state:
        norm = "batch" if "bn1.running_mean" in state else "group"
        classes, width = len(state["fc.weight"]), len(state["conv1.weight"])
        large = {"layer4.1.conv2.weight": (8 * width, 8 * width, 3, 3), "fc.weight": (classes, 8 * width)}
        _check_large(state, large)
        return Backbone(name, resnet18(classes, norm, width), 3, scale=IMAGENET_SCALE)
    if "_fc.weight" in state and "_blocks.0._depthwise_conv.weight" in state:
        classes, width = len(state["_fc.weight"]), len(state["_conv_stem.weight"])
        large = {"_conv_head.weight": (40 * width, 10 * width, 1, 1), "_fc.weight": (classes, 40 * width)}
        _check_large(state, large)
        return Backbone(name, efficientnet_lite0(classes, width), 3, scale=LITE_SCALE)
    if set(state) == CNN_KEYS:
        channels, quarter = state["0.weight"].shape[1], state["5.weight"].shape[1] // 32
        classes = len(state["7.weight"])
        large = {"0.weight": (16, channels, 3, 3), "5.weight": (500, 32 * quarter), "7.weight": (classes, 500)}
        _check_large(state, large)
        model = cnn((channels, 4, 4 * quarter), classes)
        return Backbone(name, cast(nn.Sequential, model), channels, quarter)
    raise InputError(
        f"backbone '{name}' is not supported: its weights are not those of ResNet-18 (with torchvision's "
        "names), EfficientNet-Lite0 or the model 'cnn'",
        code="unsupported-file",
        field="backbone",
    )
