"""Replies as tuples of tensors."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


def parts(reply: Iterable[Tensor | None]) -> tuple[Tensor, ...]:
    """The parts of a reply that the request asked for, the clients first."""
    return tuple(part for part in reply if part is not None)
