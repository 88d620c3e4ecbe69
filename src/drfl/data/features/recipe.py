"""The features to compute, and the names of backbones in a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from drfl.core import checks
from drfl.core.errors import InputError, unknown
from drfl.data import DATASETS

Kind = Literal["penultimate", "entk"]
Architecture = Literal["resnet18", "cnn"]

KINDS: tuple[Kind, ...] = ("penultimate", "entk")
ARCHITECTURES: tuple[Architecture, ...] = ("resnet18", "cnn")

IMAGENET = "resnet18-imagenet"
"""ResNet-18 with torchvision's ImageNet weights."""

LITE_IMAGENET = "efficientnet-lite0-imagenet"
"""EfficientNet-Lite0 with Google's ImageNet weights."""

PUBLISHED = (IMAGENET, LITE_IMAGENET)
"""Backbones with published weights."""

ENDINGS = (".pth", ".pt", ".safetensors")
"""File name endings of weights."""

COUNT = 50_000
"""Default number of eNTK features: SCAFF-PD, §F.1."""


class StandInBackbone(NamedTuple):
    """A backbone that drfl trains itself on a data set."""

    architecture: Architecture
    dataset: str


@dataclass(frozen=True)
class Recipe:
    """The features to compute.

    Args:
        kind: "penultimate" is the input of the backbone's last layer, so that a linear model on it is a fine-tuned last
            layer (DRDM, §IV.A.3; SCAFF-PD, §C.2). "entk" is the gradient of a scalar output with respect to the
            backbone's parameters, so that a linear model on it is the network linearised at these parameters (SCAFF-PD,
            §F.1).
        backbone: A name (see :func:`backbone_names`) or a file of weights.
        count: Number of coordinates of the gradient; not used for "penultimate".
        resize: Side in pixels to which images are resized first; None keeps their size.
        standardise: Whether to centre and scale the features to a standard deviation of 1 over the training part; None
            does so only for "entk".
        seed: Root of the draws for "entk". It does not depend on a run's seed, so all runs share the features.

    Raises:
        InputError: If a value is out of range or the backbone is unknown.
    """

    kind: Kind
    backbone: str
    count: int = COUNT
    resize: int | None = None
    standardise: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown("kind of features", str(self.kind), KINDS, field="features")
        checks.integer("feature_count", self.count)
        if self.resize is not None:
            checks.integer("resize", self.resize)
        parse_backbone(self.backbone)

    @property
    def is_standardised(self) -> bool:
        """Whether the features are standardised."""
        return self.kind == "entk" if self.standardise is None else self.standardise


def backbone_names() -> list[str]:
    """List all named backbones: the published ones, and the stand-ins for each image data set."""
    images = [name for name, spec in DATASETS.items() if len(spec.info.shape) == 3]
    return [*PUBLISHED, *(f"{architecture}-{name}" for architecture in ARCHITECTURES for name in images)]


def parse_backbone(text: str) -> str | StandInBackbone | Path:
    """Return what a backbone's name refers to: one of `PUBLISHED`, a stand-in, or a file of weights."""
    if text.lower().endswith(ENDINGS):
        return Path(text)
    name = text.strip().lower().replace("_", "-")
    if name in PUBLISHED:
        return name
    for architecture in ARCHITECTURES:
        # Tables have no images to train a backbone on.
        if name.startswith(f"{architecture}-") and name in backbone_names():
            return StandInBackbone(architecture, name.removeprefix(f"{architecture}-"))
    # This is a path with another ending, not a misspelt name.
    if any(mark in text for mark in "/\\"):
        raise InputError(
            f"backbone '{text}' is a path, but its name does not end in {' or '.join(ENDINGS)}",
            code="unsupported-file",
            field="backbone",
        )
    raise unknown("backbone", text, [*backbone_names(), "a file of weights"])
