"""Check whether a task is known to be convex in the model's parameters."""

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
"""Layers that only reshape their input, and are therefore linear in it."""


def convexity(task: Task) -> str | None:
    """Explain why the per-sample loss is not known to be convex in the parameters; return None if it is.

    The loss is known to be convex if it is a convex function of outputs that are affine in the parameters. This holds
    for a single trainable ``nn.Linear``, alone or in an ``nn.Sequential`` with only frozen layers before it and only
    reshaping layers after it. Other tasks may be convex, too.
    """
    if any(layer._forward_hooks or layer._forward_pre_hooks for layer in task.model.modules()):
        return "the model has hooks, which can change its outputs in any way"
    layers = list(_layers(task.model))
    trained = [j for j, layer in enumerate(layers) if any(p.requires_grad for p in layer.parameters())]
    # Compare types instead of using isinstance, because a subclass may compute anything in its forward.
    unsupported = [layers[j] for j in trained if type(layers[j]) is not nn.Linear]
    if unsupported:
        return f"the model trains {type(unsupported[0]).__name__}, but only nn.Linear is known to be convex"
    if len(trained) > 1:
        return f"the model trains {len(trained)} layers in sequence, which is not convex"
    # At least one layer is trained, because Task rejects other models. The layers before it are frozen and therefore a
    # fixed map.
    after = [layer for layer in layers[trained[0] + 1 :] if type(layer) not in RESHAPING]
    if after:
        return f"the model has {type(after[0]).__name__} after its linear layer"
    loss = task.criterion.given
    weights: list[object] = []
    if isinstance(loss, nn.Module):
        # As above, a subclass may compute anything.
        is_convex = type(loss) in CONVEX_MODULES
        weights = [getattr(loss, name, None) for name in ("weight", "pos_weight")]
    else:
        while isinstance(loss, functools.partial):
            weights += [*loss.args, *(loss.keywords.get(name) for name in ("weight", "pos_weight"))]
            loss = loss.func
        is_convex = loss in CONVEX_FUNCTIONS
    if not is_convex:
        return f"the loss {getattr(loss, '__name__', type(loss).__name__)} is not known to be convex"
    # A negative weight makes a convex loss concave.
    if any(isinstance(weight, Tensor) and bool((weight < 0).any()) for weight in weights):
        return "the loss has negative weights"
    return None


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers in the order in which they are applied; a layer that is applied twice is yielded twice."""
    if type(module) is not nn.Sequential:
        yield module
        return
    for part in module:
        yield from _layers(part)
