"""Backbones by name."""

from __future__ import annotations

from pathlib import Path

from drfl.features.backbone import Backbone
from drfl.features.recipe import IMAGENET, StandIn, parse
from drfl.features.standin import Log, stand_in
from drfl.features.weights import RESNET18, published, read_weights


def silent(line: str) -> None:
    """Says nothing."""


def load_backbone(name: str, log: Log | None = None) -> Backbone:
    """A trained network by name.

    Args:
        name: ``resnet18-imagenet`` (torchvision's weights, from torch's cache, drfl's, or downloaded);
            ``resnet18-DATASET`` or ``cnn-DATASET`` for a stand-in that is trained here, once, on a data set of
            `drfl.data.DATASETS`; or a file: ``.safetensors`` such as a run of the model "cnn" leaves, or ``.pth``.
        log: gets a line an epoch where a stand-in is trained.

    Raises:
        InputError: there is no such backbone, or it cannot be had.
    """
    what = parse(name)
    if isinstance(what, StandIn):
        return stand_in(what, log or silent)
    if isinstance(what, Path):
        return Backbone.of(name, read_weights(what.expanduser()))
    return Backbone.of(IMAGENET, read_weights(published(RESNET18)))
