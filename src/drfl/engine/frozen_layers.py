"""Frozen layers in front of trainable ones: their outputs, the features, are computed once and kept."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from drfl.task.task import Task

IMAGES = 256
"""Samples of a pass."""


class Split(NamedTuple):
    """A task in two.

    Args:
        backbone: the layers in front, all frozen.
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
    # There is one: Task refuses a model without a trainable parameter.
    at = trained.index(True)
    # Under their own names, so that the parameters behind them keep their names in the layout.
    front, rest = nn.Sequential(OrderedDict(layers[:at])), nn.Sequential(OrderedDict(layers[at:]))
    # Reshaping alone is not worth a second copy of the pool.
    if not list(front.parameters()):
        return None
    # Not by train(), which would reach into the layers: a frozen batch normalisation that the user put into .eval()
    # would compute with its batch's statistics again, and change its running ones.
    front.training = rest.training = task.model.training
    return Split(front, replace(task, model=rest))


def features(backbone: nn.Module, x: Tensor) -> Tensor:
    """The backbone's outputs for inputs (n, …)."""
    with torch.no_grad():
        # In passes, as the activations of the whole pool need not fit in memory.
        return torch.cat([backbone(part) for part in x.split(IMAGES)])


def narrows(backbone: nn.Module, x: Tensor) -> bool:
    """Whether the features of inputs (n, …) take no more memory than the inputs."""
    one = features(backbone, x[:1])
    return one.numel() * one.element_size() <= x[0].numel() * x.element_size()
