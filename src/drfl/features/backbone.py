"""ResNet-18 with published weights, and its features of images."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from safetensors.torch import load
from torch import Tensor, nn

from drfl.data.fetch import download_file
from drfl.data.sources import RemoteFile, cache_folder
from drfl.errors import InputError
from drfl.models import cnn

RESNET18 = RemoteFile(
    "resnet18-f37072fd", "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec", ending=".pth"
)
"""ResNet-18 on ImageNet-1k, torchvision's ``IMAGENET1K_V1``."""

PUBLISHER = "https://download.pytorch.org/models/"


def folder() -> Path:
    """Where backbones are kept."""
    return cache_folder() / "backbones"


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name; nothing in it is executed.

    Args:
        path: a ``.safetensors`` file, or a ``.pth``/``.pt`` file with a dictionary of tensors.

    Raises:
        InputError: there is no such file, or it is no such file.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"there is no file of weights '{path}'") from None
    except (OSError, ValueError) as error:  # the latter for a name with a zero in it
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot read the weights '{path}': {reason}") from None
    try:
        if path.suffix.lower() == ".safetensors":
            return load(content)
        with warnings.catch_warnings(action="ignore"):  # on other versions of pickle, before it fails on them
            found = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # for crafted bytes the readers of zip and pickle files raise a dozen kinds
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise InputError(f"'{path}' is no file of weights that drfl reads: {reason}") from None
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise InputError(f"'{path}' is no dictionary of tensors: save model.state_dict()")
    return {str(name): value for name, value in found.items()}


def published(what: RemoteFile) -> Path:
    """A published file on this machine: from torch's hub cache or drfl's own, else downloaded into the latter.

    Its checksum is looked at every time; a file in the caches that is damaged counts as missing.

    Raises:
        InputError: it could not be had.
    """
    for path in (Path(torch.hub.get_dir()) / "checkpoints" / what.name, folder() / what.name):
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == what.sha256:
            return path
    mirror = os.environ.get("DRFL_MIRROR")
    try:
        return download_file(what, folder(), [f"{mirror.rstrip('/')}/backbones/" if mirror else PUBLISHER])
    except (InputError, OSError) as error:
        raise InputError(f"{error}: put the file there yourself, or give its path as backbone") from None


Norm = Literal["batch", "group"]

GROUPS = 32
"""Groups of a GroupNorm, as in Wu and He (2018); a layer of fewer than 64 channels has a group for every two."""


def _group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(min(GROUPS, channels // 2), channels)


NORMS: dict[Norm, Callable[[int], nn.Module]] = {"batch": nn.BatchNorm2d, "group": _group_norm}


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
