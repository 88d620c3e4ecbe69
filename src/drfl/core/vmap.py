"""Vectorised functions without torch's request to report missing batching rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# This switch is not public. Without it, the warning appears. A filter of `warnings` for every call would cost more, is
# not safe with threads, and would make Python repeat other warnings that it shows once.
_set_warning: Callable[[bool], None] = getattr(
    getattr(torch._C, "_functorch", None), "_set_vmap_fallback_warning_enabled", lambda enabled: None
)


def vmap(function: Callable[..., Any], in_dims: object = 0) -> Callable[..., Any]:
    """Vectorise a function like :func:`torch.func.vmap`.

    For operations without a batching rule, torch calls them once per entry and asks its users to report this. drfl has
    its own message for slow models, so this warning is suppressed during the call.
    """
    mapped = torch.func.vmap(function, in_dims)  # pyright: ignore[reportArgumentType]

    def call(*arguments: Any) -> Any:  # noqa: ANN401
        _set_warning(False)
        try:
            return mapped(*arguments)
        finally:
            _set_warning(True)

    return call
