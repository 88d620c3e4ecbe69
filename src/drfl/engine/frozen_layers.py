"""Layers that are not trained, in front of those that are: what they give is computed once and kept."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import torch
from torch import Tensor, nn

from drfl.task import Task

IMAGES = 256
"""Samples of a pass."""


class Split(NamedTuple):
    """A task in two.

    Args:
        backbone: the layers in front, none of them trained.
        task: the rest, with the same parameters under the same names.
    """

    backbone: nn.Module
    task: Task


def split(task: Task) -> Split | None:
    """The task behind its frozen backbone; None where there is none.

    A backbone is what comes first in an ``nn.Sequential``, as long as nothing in it has ``requires_grad``, and holds at
    least one parameter.
    """
    if not isinstance(task.model, nn.Sequential):
        return None
    layers = list(task.model.named_children())
    trained = [any(p.requires_grad for p in layer.parameters()) for _, layer in layers]
    at = trained.index(True)
    front = nn.Sequential(OrderedDict(layers[:at]))
    if not list(front.parameters()):
        return None
    rest = nn.Sequential(OrderedDict(layers[at:])).train(task.model.training)
    return Split(front.train(task.model.training), Task(rest, task.loss, task.score))


def features(backbone: nn.Module, x: Tensor) -> Tensor:
    """What the backbone gives for inputs (n, …)."""
    with torch.no_grad():
        return torch.cat([backbone(part) for part in x.split(IMAGES)])


def narrows(backbone: nn.Module, x: Tensor) -> bool:
    """Whether the features of inputs (n, …) take no more memory than the inputs."""
    one = features(backbone, x[:1])
    return one.numel() * one.element_size() <= x[0].numel() * x.element_size()
