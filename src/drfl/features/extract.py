"""Penultimate features: the input of a backbone's last layer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from drfl.features.backbone import Backbone

PIXELS = 2**22
"""Numbers of the prepared images of a pass: 28 images of 224 × 224 × 3."""

IMAGES = 256
"""Images of a pass at most."""


def penultimate(backbone: Backbone, images: Tensor, resize: int | None = None) -> Tensor:
    """What comes out of the backbone's last layer but one; for ResNet-18 512 numbers, for the model "cnn" 500.

    Args:
        backbone: the network; it works on the device that it is on.
        images: (n, c, height, width), floating in [0, 1] or bytes.
        resize: see :meth:`drfl.features.Backbone.prepared`.

    Returns:
        (n, p) float32, on the CPU.

    Raises:
        InputError: the images do not fit the backbone.
    """
    trunk = backbone.trunk
    with torch.no_grad():
        return torch.cat([trunk(x).float().cpu() for x in batches(backbone, images, resize)])


def batches(backbone: Backbone, images: Tensor, resize: int | None, most: int = IMAGES) -> Iterator[Tensor]:
    """Prepared images (B, channels, h, w), on the backbone's device.

    Args:
        backbone: whose.
        images: (n, c, height, width).
        resize: see :meth:`drfl.features.Backbone.prepared`.
        most: images of a batch at most.
    """
    backbone.check_images(images.shape)
    device = next(backbone.model.parameters()).device
    area = images.shape[2] * images.shape[3] if resize is None else resize * resize
    size = max(1, min(most, PIXELS // (backbone.channels * area)))
    for x in images.split(size):
        yield backbone.prepared(x.to(device), resize)
