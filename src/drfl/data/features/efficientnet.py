"""EfficientNet-Lite0, a small convolutional network whose ImageNet weights are published as a Python package."""

from __future__ import annotations

from collections import OrderedDict

import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor, nn

BLOCKS = (
    (1, 3, 1, 1, 16),
    (6, 3, 2, 2, 24),
    (6, 5, 2, 2, 40),
    (6, 3, 2, 3, 80),
    (6, 5, 1, 3, 112),
    (6, 5, 2, 4, 192),
    (6, 3, 1, 1, 320),
)
"""Expansion, kernel size, first stride, number and output channels of the blocks: Tan and Le (2019), table 1."""

STEM, HEAD = 32, 1280
"""Channels of the first and of the last convolution, which the Lite networks do not scale."""

EPS = 1e-3
"""Added to variances, as in the TensorFlow code that the weights come from."""


class SamePad(nn.Module):
    """Pads images for a convolution of stride 2 like TensorFlow's "SAME", with an odd zero at the end.

    The output of the convolution is half as large as the image, rounded up.
    """

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        """Pad images (B, c, h, w) → (B, c, h', w')."""
        # For stride 2, TensorFlow's padding depends on the size of the image, and an odd zero goes to the end.
        zeros = [max(self.kernel - 2 + side % 2, 0) for side in (x.shape[3], x.shape[2])]  # last dimension first
        return F.pad(x, [part for total in zeros for part in (total // 2, total - total // 2)])


class MBConv(nn.Module):
    """Mobile inverted bottleneck without squeeze-and-excitation: expansion, depthwise convolution, projection."""

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        between = inputs * expansion
        self._expand_conv = nn.Conv2d(inputs, between, 1, bias=False) if expansion > 1 else None
        self._bn0 = nn.BatchNorm2d(between, EPS) if expansion > 1 else None
        self._pad = SamePad(kernel) if stride == 2 else nn.Identity()
        # For stride 1, both frameworks pad in the same way.
        padding = kernel // 2 if stride == 1 else 0
        self._depthwise_conv = nn.Conv2d(between, between, kernel, stride, padding, groups=between, bias=False)
        self._bn1 = nn.BatchNorm2d(between, EPS)
        self._project_conv = nn.Conv2d(between, outputs, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(outputs, EPS)
        self._shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Compute (B, outputs, ⌈h/stride⌉, ⌈w/stride⌉) from images (B, inputs, h, w)."""
        y = x
        if self._expand_conv is not None and self._bn0 is not None:
            y = F.relu6(self._bn0(self._expand_conv(y)))
        y = F.relu6(self._bn1(self._depthwise_conv(self._pad(y))))
        y = self._bn2(self._project_conv(y))
        return x + y if self._shortcut else y


def efficientnet_lite0(classes: int, width: int = STEM) -> nn.Sequential:
    """Build EfficientNet-Lite0 for images (B, 3, height, width), with the parameter names of its PyTorch port.

    This is EfficientNet-B0 (Tan and Le 2019) without squeeze-and-excitation and with ReLU6 instead of SiLU (Google's
    EfficientNet-Lite, 2020). Its last layer, ``_fc``, takes 40·width features. It has running statistics and is used as
    a frozen backbone.

    Raises:
        ValueError: If the width is not a positive multiple of 4.
    """
    if width < 4 or width % 4:
        raise ValueError(f"width must be a positive multiple of 4, got {width}")
    layers = OrderedDict[str, nn.Module](
        _pad=SamePad(3),
        _conv_stem=nn.Conv2d(3, width, 3, 2, bias=False),
        _bn0=nn.BatchNorm2d(width, EPS),
        _relu0=nn.ReLU6(),
    )
    blocks, inputs = [], width
    for expansion, kernel, stride, repeats, channels in BLOCKS:
        outputs = channels * width // STEM
        for k in range(repeats):
            blocks.append(MBConv(inputs, outputs, expansion, kernel, stride if k == 0 else 1))
            inputs = outputs
    features = HEAD * width // STEM
    layers |= {
        "_blocks": nn.Sequential(*blocks),
        "_conv_head": nn.Conv2d(inputs, features, 1, bias=False),
        "_bn1": nn.BatchNorm2d(features, EPS),
        "_relu1": nn.ReLU6(),
        "_avg_pooling": nn.AdaptiveAvgPool2d(1),
        "_flatten": nn.Flatten(),
        "_fc": nn.Linear(features, classes),
    }
    return nn.Sequential(layers)
