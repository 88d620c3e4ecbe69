"""Vectorised functions without torch's request to report missing batching rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from drfl.core.errors import first_line

P = ParamSpec("P")
R = TypeVar("R")

# This switch is not public. Without it, the warning appears. A filter of `warnings` for every call would cost more, is
# not safe with threads, and would make Python repeat other warnings that it shows once.
_set_warning: Callable[[bool], None] = getattr(
    getattr(torch._C, "_functorch", None), "_set_vmap_fallback_warning_enabled", lambda enabled: None
)


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


def fault_of(error: Exception) -> str:
    """Explain in one clause why a function cannot be vectorised."""
    reason = first_line(error)
    if "data-dependent control flow" in reason or ".item()" in reason:
        return "its forward pass branches on values, by if or .item()"
    # Further sentences are advice on torch's options, which drfl's users cannot set.
    return reason.partition(". ")[0]
