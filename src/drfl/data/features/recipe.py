"""Which features are wanted, and the names that a configuration may give."""

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
"""Backbones whose weights are published."""

ENDINGS = (".pth", ".pt", ".safetensors")
"""How the name of a file of weights ends."""

COUNT = 50_000
"""eNTK features that are kept: SCAFF-PD, §F.1."""


class StandInBackbone(NamedTuple):
    """A backbone that drfl trains itself.

    Args:
        architecture: the network.
        dataset: what it is trained on.
    """

    architecture: Architecture
    dataset: str


@dataclass(frozen=True)
class Recipe:
    """Which features.

    Args:
        kind: "penultimate": the input of the backbone's last layer, so that a linear model on it is that layer
            fine-tuned (DRDM, §IV.A.3; SCAFF-PD, §C.2); "entk": the gradient of a scalar output with respect to the
            backbone's parameters, so that a linear model on it is the network linearised at them (SCAFF-PD, §F.1).
        backbone: a name (see :func:`names`) or a file of weights.
        count: coordinates of the gradient that are kept; means nothing to "penultimate".
        resize: side in pixels to which images are brought first; None = as they are.
        standardise: whether features are centred and scaled to a standard deviation of 1 over the training part; None =
            for "entk" alone.
        seed: root of the draws of "entk". It is no run's seed: all runs share the features.

    Raises:
        InputError: a value is impossible or the backbone unknown.
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
        parse(self.backbone)

    @property
    def scaled(self) -> bool:
        """Whether the features are standardised."""
        return self.kind == "entk" if self.standardise is None else self.standardise


def names() -> list[str]:
    """Every backbone that has a name: those published, and the stand-ins for each data set of images."""
    images = [name for name, spec in DATASETS.items() if len(spec.info.shape) == 3]
    return [*PUBLISHED, *(f"{architecture}-{name}" for architecture in ARCHITECTURES for name in images)]


def parse(text: str) -> str | StandInBackbone | Path:
    """What a backbone's name stands for: one of `PUBLISHED`, a stand-in, or a file of weights.

    Raises:
        InputError: none of these.
    """
    if text.lower().endswith(ENDINGS):
        return Path(text)
    name = text.strip().lower().replace("_", "-")
    if name in PUBLISHED:
        return name
    for architecture in ARCHITECTURES:
        # Tables have no images to train a backbone on.
        if name.startswith(f"{architecture}-") and name in names():
            return StandInBackbone(architecture, name.removeprefix(f"{architecture}-"))
    if any(mark in text for mark in "/\\"):
        raise InputError(
            f"backbone '{text}' looks like a file, but its name does not end in {' or '.join(ENDINGS)}",
            code="unsupported-file",
            field="backbone",
        )
    raise unknown("backbone", text, [*names(), "a file of weights"])
