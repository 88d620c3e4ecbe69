"""Which tasks are known to be convex in the model's parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor, nn

from drfl.task.models import half_squared_error
from drfl.task.task import Task

CONVEX_MODULES = (nn.CrossEntropyLoss, nn.BCEWithLogitsLoss, nn.MSELoss, nn.L1Loss, nn.HuberLoss, nn.SmoothL1Loss)
CONVEX_FUNCTIONS: tuple[Callable[..., Tensor], ...] = (
    F.cross_entropy,
    F.binary_cross_entropy_with_logits,
    F.mse_loss,
    F.l1_loss,
    F.huber_loss,
    F.smooth_l1_loss,
    half_squared_error,
)
"""Losses that are convex in the model's outputs."""

RESHAPING = (nn.Identity, nn.Flatten, nn.Unflatten)
"""Layers that are linear in their input whatever it is."""


def convexity(task: Task) -> str | None:
    """Why the per-sample loss is not known to be convex in the parameters; None where it is.

    Known to be convex is a convex loss of outputs that are affine in the parameters: one trainable ``nn.Linear``, alone
    or in an ``nn.Sequential`` in which only frozen layers come before it and only reshaping after it. A task that is
    refused may still be convex.
    """
    if any(layer._forward_hooks or layer._forward_pre_hooks for layer in task.model.modules()):
        return "the model has hooks, which may do anything"
    layers = list(_layers(task.model))
    trained = [j for j, layer in enumerate(layers) if any(p.requires_grad for p in layer.parameters())]
    # Not isinstance: a subclass may compute anything in its forward.
    strange = [layers[j] for j in trained if type(layers[j]) is not nn.Linear]
    if strange:
        return f"the model trains {type(strange[0]).__name__}, where only nn.Linear is known to be convex"
    if len(trained) > 1:
        return f"the model trains {len(trained)} layers on top of each other, which is not convex"
    # There is a trained layer: Task refuses a model without. What comes before it is frozen, hence a fixed map.
    after = [layer for layer in layers[trained[0] + 1 :] if type(layer) not in RESHAPING]
    if after:
        return f"the model has {type(after[0]).__name__} after its linear layer"
    loss = task.criterion.given
    weights: list[object] = []
    if isinstance(loss, nn.Module):
        # Not isinstance: a subclass may compute anything.
        known = type(loss) in CONVEX_MODULES
        weights = [getattr(loss, name, None) for name in ("weight", "pos_weight")]
    else:
        while isinstance(loss, functools.partial):
            weights += [*loss.args, *(loss.keywords.get(name) for name in ("weight", "pos_weight"))]
            loss = loss.func
        known = loss in CONVEX_FUNCTIONS
    if not known:
        return f"the loss {getattr(loss, '__name__', type(loss).__name__)} is not known to be convex"
    # A negative weight makes a convex loss concave.
    if any(isinstance(weight, Tensor) and bool((weight < 0).any()) for weight in weights):
        return "the loss has negative weights"
    return None


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """The layers in the order in which they are applied; a layer applied twice comes twice."""
    if type(module) is not nn.Sequential:
        yield module
        return
    for part in module:
        yield from _layers(part)
