"""ResNet-18, and pretrained networks (backbones) that compute features of images."""

from __future__ import annotations

import hashlib
import math
import warnings
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
"""Groups of a GroupNorm, as in Wu and He (2018); layers with fewer than 64 channels have one group per two channels."""


NORMS: dict[Norm, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": lambda channels: nn.GroupNorm(min(GROUPS, channels // 2), channels),
}


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with a shortcut; the parameter names are torchvision's."""

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
        """Compute (B, outputs, ⌈h/stride⌉, ⌈w/stride⌉) from images (B, inputs, h, w)."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


def resnet18(classes: int, norm: Norm = "batch", width: int = 64) -> nn.Sequential:
    """Build ResNet-18 for images (B, 3, height, width) of any size, with torchvision's parameter names.

    Its last layer, ``fc``, takes 8·width features. With GroupNorm, a federation can train it. With BatchNorm, it has
    running statistics and is used as a frozen backbone.
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
            # As in torchvision, whose weights these layers take.
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return model


class PixelScale(NamedTuple):
    """Mean to subtract from red, green and blue values in [0, 1], and standard deviation to divide by."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


IMAGENET_SCALE = PixelScale((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of ImageNet, for torchvision's weights."""

LITE_SCALE = PixelScale((127 / 255,) * 3, (128 / 255,) * 3)
"""(byte − 127) / 128, for the weights of EfficientNet-Lite."""

CNN_KEYS = {f"{layer}.{part}" for layer in (0, 2, 5, 7) for part in ("weight", "bias")}
"""Parameter names of `drfl.models.cnn`."""


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen network in eval mode.

    Args:
        name: Name for messages.
        model: The layers; the last is the linear layer with one output per class.
        channels: Number of image channels that it expects.
        quarter: (height // 4) · (width // 4) of the images that it expects, for `drfl.models.cnn`; None means any size.
        scale: Normalisation of the images; None if it does not need one.
    """

    name: str
    model: nn.Sequential
    channels: int
    quarter: int | None = None
    scale: PixelScale | None = None

    @staticmethod
    def of(name: str, state: Mapping[str, Tensor]) -> Backbone:
        """Build the frozen network of these weights, which their parameter names identify."""
        try:
            # Shapes are compared before memory is allocated, because a small file may claim a huge network.
            with torch.device("meta"), warnings.catch_warnings(action="ignore"):  # empty weights are rejected below
                if "fc.weight" in state and "layer1.0.conv1.weight" in state:
                    norm = "batch" if "bn1.running_mean" in state else "group"
                    model = resnet18(len(state["fc.weight"]), norm, len(state["conv1.weight"]))
                    found = Backbone(name, model, 3, scale=IMAGENET_SCALE)
                elif "_fc.weight" in state and "_blocks.0._depthwise_conv.weight" in state:
                    model = efficientnet_lite0(len(state["_fc.weight"]), len(state["_conv_stem.weight"]))
                    found = Backbone(name, model, 3, scale=LITE_SCALE)
                elif set(state) == CNN_KEYS:
                    channels, quarter = state["0.weight"].shape[1], state["5.weight"].shape[1] // 32
                    # Any image whose sides divided by 4 have this product has the same parameters.
                    model = cnn((channels, 4, 4 * quarter), len(state["7.weight"]))
                    found = Backbone(name, cast(nn.Sequential, model), channels, quarter)
                else:
                    raise InputError(
                        f"backbone '{name}' is not supported: its weights are not those of ResNet-18 (with "
                        "torchvision's names), EfficientNet-Lite0 or the model 'cnn'",
                        code="unsupported-file",
                        field="backbone",
                    )
            empty = [key for key, value in state.items() if not value.numel()]
            if empty:
                raise RuntimeError(f"{empty[0]} is empty")
            dtype = torch.get_default_dtype()
            copies = {key: x.to(dtype if x.is_floating_point() else x.dtype, copy=True) for key, x in state.items()}
            found.model.load_state_dict(copies, assign=True)
        except InputError:  # which is a ValueError, too
            raise
        except (RuntimeError, IndexError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"backbone '{name}' has weights that do not match its parameter names: {reason}",
                code="damaged-file",
                field="backbone",
            ) from None
        found.model.eval().requires_grad_(False)
        for parameter in found.model.parameters():
            if parameter.dim() == 4:  # several times faster on CPUs
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        return found

    @property
    def classes(self) -> int:
        """Number of outputs of the last layer."""
        return cast(nn.Linear, self.model[-1]).out_features

    @cached_property
    def digest(self) -> str:
        """Digest of the weights; equal weights have equal digests."""
        found = hashlib.blake2b(digest_size=16)
        for name, value in sorted(self.model.state_dict().items()):
            found.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
            # Digest the bytes, because different weights may print alike.
            found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    def to(self, device: torch.device | str) -> Backbone:
        """Move the network to another device."""
        return replace(self, model=self.model.to(device))

    def prepare(self, images: Tensor, resize: int | None) -> Tensor:
        """Prepare images for the network: resize and normalise them, and give them its number of channels.

        Args:
            images: (B, c, height, width) Floating-point values in [0, 1], or bytes.
            resize: Side of the square to resize to, by bilinear interpolation with antialiasing; None keeps the size.

        Returns:
            (B, channels, h, w) in the type of the weights and the channels-last memory format.
        """
        self.check_images(images.shape)
        x = images.to(next(self.model.parameters()).dtype)
        x = x / 255 if images.dtype == torch.uint8 else x
        if resize is not None and x.shape[2:] != (resize, resize):
            x = F.interpolate(x, (resize, resize), mode="bilinear", antialias=True, align_corners=False)
        self.check(x.shape)
        # A grey image becomes three equal channels; expand does not copy.
        x = x.expand(-1, self.channels, -1, -1)
        if self.scale is not None:
            mean, std = (torch.tensor(values, dtype=x.dtype, device=x.device).view(3, 1, 1) for values in self.scale)
            x = (x - mean) / std
        # Convolutions on CPUs take the channels-last format without reordering.
        return torch.empty_like(x, memory_format=torch.channels_last).copy_(x)

    def check(self, shape: torch.Size) -> None:
        """Raise InputError for inputs whose shape (B, …) the network cannot take."""
        self.check_images(shape)
        if shape[1] not in (1, self.channels):
            expected = f"images with {self.channels} channels, got {shape[1]}. Choose another backbone"
            raise self._expects(expected)
        if self.quarter is not None and (shape[2] // 4) * (shape[3] // 4) != self.quarter:
            side = 4 * math.isqrt(self.quarter)
            size = f"{shape[2]}×{shape[3]}"
            raise self._expects(f"images of {side}×{side} pixels, got {size}. Set `resize = {side}`")

    def check_images(self, shape: torch.Size) -> None:
        """Raise InputError for a shape other than (n, c, height, width)."""
        if len(shape) != 4:
            raise self._expects(f"images, got inputs of shape {tuple(shape[1:])}")

    def _expects(self, what: str) -> InputError:
        return InputError(f"backbone '{self.name}' expects {what}", code="unsupported-data", field="backbone")
