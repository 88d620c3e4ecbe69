"""ResNet-18 (He et al. 2016, "Deep residual learning for image recognition", table 1)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor, nn

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
