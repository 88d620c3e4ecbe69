"""Vectorised functions and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from drfl.core.errors import first_line

P = ParamSpec("P")
R = TypeVar("R")

# This switch is not public. Without it, the warning appears. A filter of `warnings` for every call would cost more, is
# not safe with threads, and would make Python repeat other warnings that it shows once.
_set_warning: Callable[[bool], None] = getattr(
    getattr(torch._C, "_functorch", None), "_set_vmap_fallback_warning_enabled", lambda enabled: None
)


def is_transformed() -> bool:
    """Return whether torch.func or torch.compile is active, which must see torch's own functions."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def vmap(function: Callable[P, R], in_dims: int | tuple[int | None, ...] = 0) -> Callable[P, R]:
    """Vectorise a function like :func:`torch.func.vmap`.

    For operations without a batching rule, torch calls them once per entry and asks its users to report this. drfl has
    its own message for slow models, so this warning is suppressed during the call.
    """
    mapped = torch.func.vmap(function, in_dims)

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        _set_warning(False)
        try:
            return mapped(*args, **kwargs)
        finally:
            _set_warning(True)

    return call


def values_and_gradients(
    function: Callable[..., tuple[Tensor, R]], tensors: Sequence[Tensor], weights: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...], R]:
    """Return a function's values and the gradients of their weighted sum, inside :func:`vmap`.

    This replaces :func:`torch.func.grad`, which loads torch's compiler and so takes over a second in each process. It
    also computes no graph of the gradients.

    Args:
        function: Returns the values of tensors, and further tensors that need no gradient.
        tensors: The tensors. If the values do not depend on one of them, its gradient is 0.
        weights: Weights of the values; None = there is one value.

    Returns:
        The values, the gradients, and the further tensors.
    """

    def differentiated(*tensors: Tensor) -> tuple[Tensor, Any]:
        values, more = function(*tensors)
        if not tensors:
            return values, ((), more)
        # Given weights, autograd would load SymPy to compare shapes.
        total = values if weights is None else (values * weights).sum()
        return values, (torch.autograd.grad(total, tensors, allow_unused=True, materialize_grads=True), more)

    # vjp lets autograd differentiate inside vmap. The function that it returns is not needed.
    values, _, results = cast("tuple[Tensor, object, Any]", torch.func.vjp(differentiated, *tensors, has_aux=True))
    return values, *results


def fault_of(error: Exception) -> str:
    """Explain in one clause why a function cannot be vectorised."""
    reason = first_line(error)
    if "data-dependent control flow" in reason or ".item()" in reason:
        return "its forward pass branches on values, by if or .item()"
    # Further sentences are advice on torch's options, which drfl's users cannot set.
    return reason.partition(". ")[0]
