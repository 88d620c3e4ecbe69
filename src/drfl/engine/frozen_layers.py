"""Frozen layers in front of trainable ones: their outputs, the features, are computed once and stored."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from drfl.task.task import Task

IMAGES = 256
"""Number of samples per pass."""


class Split(NamedTuple):
    """A task split into backbone and rest.

    Args:
        backbone: The first layers, all frozen.
        task: The remaining layers, whose parameters keep their names.
    """

    backbone: nn.Module
    task: Task


def split(task: Task) -> Split | None:
    """Split a task at its frozen backbone; None if it has none.

    The backbone consists of the first layers of an ``nn.Sequential`` up to the first with a parameter that has
    ``requires_grad``. It must hold at least one parameter. A subclass with its own ``forward``, or a model with
    hooks, may do more than call its layers in turn, so it has no backbone.
    """
    model = task.model
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward:
        return None
    # The parts would not have the hooks of the whole, which also unpack the fields of rows.
    hooks = (model._forward_pre_hooks, model._forward_hooks, model._backward_pre_hooks, model._backward_hooks)
    if any(hooks) or "forward" in vars(model):
        return None
    # named_children() omits the second place of a layer that is used twice, such as an activation.
    layers = list(zip(model._modules, model, strict=True))
    trained = [any(p.requires_grad for p in layer.parameters()) for _, layer in layers]
    # There is one, because Task rejects a model without a trainable parameter.
    first = trained.index(True)
    # Layers keep their names, so that the remaining parameters keep theirs in the layout.
    front, rest = nn.Sequential(OrderedDict(layers[:first])), nn.Sequential(OrderedDict(layers[first:]))
    # A backbone that only reshapes is not worth a second copy of the pool.
    if not list(front.parameters()):
        return None
    # Set directly, because train() would change the layers: a frozen batch normalisation in .eval() would use the
    # statistics of its batch again, and change its running ones.
    front.training = rest.training = model.training
    return Split(front, replace(task, model=rest))


def features(backbone: nn.Module, x: Tensor) -> Tensor:
    """Compute the backbone's outputs for inputs (n, …)."""
    with torch.no_grad():
        # Use several passes, because the activations of the whole pool may not fit into memory.
        return torch.cat([backbone(part) for part in x.split(IMAGES)])


def is_narrower(backbone: nn.Module, x: Tensor) -> bool:
    """Return whether the features of inputs (n, …) need no more memory than the inputs."""
    # One sample is enough, because all rows of a pool have the same shape.
    row = features(backbone, x[:1])
    return row.numel() * row.element_size() <= x[0].numel() * x.element_size()
