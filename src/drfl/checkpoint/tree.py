"""An algorithm's state as named tensors, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, cast

import torch
from torch import Tensor

from drfl.checkpoint.damage import DamagedError
from drfl.table import Table

T = TypeVar("T")


def tensors_of(state: object, name: str = "state") -> dict[str, Tensor]:
    """The tensors of a state: a tensor, a :class:`drfl.table.Table`, None, or a NamedTuple of these.

    A part is named by its path, such as "state.average.w"; of a table only the rows that were written are there.

    Raises:
        TypeError: a part is something else, which could not be saved.
    """
    if state is None:
        return {}
    if isinstance(state, Tensor):
        return {name: state.detach().cpu().contiguous()}
    if isinstance(state, Table):
        clients = state.clients
        return {f"{name}.clients": clients, f"{name}.rows": state[clients].cpu()}
    if isinstance(state, tuple):
        found: dict[str, Tensor] = {}
        for field, part in zip(_fields(state, name), state, strict=True):
            found.update(tensors_of(part, f"{name}.{field}"))
        return found
    raise _unknown(state, name)


def restored(like: T, tensors: Mapping[str, Tensor], name: str = "state") -> T:
    """The state that was saved.

    Args:
        like: a fresh state of the same algorithm on the same federation: it says what is where, and on what device.
        tensors: from :func:`tensors_of`.
        name: its path.

    Raises:
        DamagedError: a part is missing, or its type or number of dimensions is not that of the algorithm's.
    """
    if like is None:
        return like
    if isinstance(like, Tensor):
        return cast("T", _part(tensors, name, like.dtype, like.ndim).to(like.device))
    if isinstance(like, Table):
        clients, rows = _part(tensors, f"{name}.clients", torch.int64, 1), _part(tensors, f"{name}.rows", like.dtype, 2)
        if rows.shape[1] != like.shape[1]:
            raise DamagedError(f"{name} has rows of {rows.shape[1]} numbers, not {like.shape[1]}")
        try:
            return cast("T", Table.of(like.n, clients, rows.to(like.device), like.folder))
        except ValueError as error:
            raise DamagedError(f"{name} does not fit: {error}") from None
    if isinstance(like, tuple):
        parts = zip(_fields(like, name), like, strict=True)
        return type(like)(*(restored(part, tensors, f"{name}.{field}") for field, part in parts))
    raise _unknown(like, name)


def _fields(state: tuple[object, ...], name: str) -> tuple[str, ...]:
    fields: tuple[str, ...] | None = getattr(state, "_fields", None)
    if fields is None:
        raise _unknown(state, name)
    return fields


def _unknown(part: object, name: str) -> TypeError:
    return TypeError(f"{name} is a {type(part).__name__}: only tensors, tables and NamedTuples of them can be saved")


def _part(tensors: Mapping[str, Tensor], name: str, dtype: torch.dtype, ndim: int) -> Tensor:
    part = tensors.get(name)
    if part is None:
        raise DamagedError(f"{name} is missing")
    if part.dtype != dtype or part.ndim != ndim:
        raise DamagedError(f"{name} is {part.dtype} with {part.ndim} dimensions, not {dtype} with {ndim}")
    return part
