"""Replies as tuples of tensors."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


def parts(reply: Iterable[Tensor | None]) -> tuple[Tensor, ...]:
    """Return the requested parts of a reply, clients first."""
    return tuple(part for part in reply if part is not None)
