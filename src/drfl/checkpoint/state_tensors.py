"""The tensors of a checkpoint, in the order of the state's fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, cast

import torch
from torch import Tensor

from drfl.algorithm import Consistent
from drfl.client_table import ClientTable
from drfl.errors import DrflError, InputError
from drfl.federation import Ledger

FORMAT = 5
"""Goes up when a checkpoint is written that older versions would misread."""

PARTS = ("state", "average", "decaying", "step_size", "selected")
"""The fields of a :class:`drfl.loop.RunState` that are NamedTuples of tensors, or None."""

COUNTERS = tuple(Ledger().totals())
"""Of a ledger, in the order of the history's columns."""

LONGEST = 1e10
"""Seconds: three hundred years."""


class DamagedError(DrflError):
    """A checkpoint is incomplete, was altered, or is none of this algorithm's."""

    code = "damaged-checkpoint"


T = TypeVar("T")

PIECE = 2**22
"""Numbers that are looked at at a time: a table may fill most of the memory."""


def tensors_of(state: object, name: str = "state") -> dict[str, Tensor]:
    """The tensors of a state: a tensor, a :class:`drfl.client_table.ClientTable`, None, or a NamedTuple of these.

    A part is named by its path, such as "state.average.w"; of a table only the rows that were written are there.

    Raises:
        TypeError: a part is something else, which could not be saved.
    """
    if state is None:
        return {}
    if isinstance(state, Tensor):
        return {name: state.detach().cpu().contiguous()}
    if isinstance(state, ClientTable):
        clients = state.clients
        # A copy: two tables may give the same tensor, and a file of safetensors holds none twice.
        return {f"{name}.clients": clients.clone(), f"{name}.rows": state[clients].cpu()}
    if isinstance(state, tuple):
        found: dict[str, Tensor] = {}
        for field, part in zip(_fields(state, name), state, strict=True):
            found.update(tensors_of(part, f"{name}.{field}"))
        return found
    raise _unknown(state, name)


def restored(like: T, tensors: Mapping[str, Tensor], name: str = "state") -> T:
    """The state that was saved.

    Args:
        like: a fresh state of the same algorithm on the same federation: it says what is where, of what type and
            shape, and on what device. A number that is finite there is finite ever after.
        tensors: from :func:`tensors_of`.
        name: its path.

    Raises:
        DamagedError: a part is missing, is not of the algorithm's type and shape, holds what it cannot hold, or does
            not go with the others (see :class:`drfl.algorithm.Consistent`).
        InputError: the file of a table's rows cannot grow.
    """
    if like is None:
        return like
    if isinstance(like, Tensor):
        return cast("T", part_of(tensors, name, like).to(like.device))
    if isinstance(like, ClientTable):
        return cast("T", _table(like, tensors, name))
    if isinstance(like, tuple):
        parts = zip(_fields(like, name), like, strict=True)
        made = type(like)(*(restored(part, tensors, f"{name}.{field}") for field, part in parts))
        wrong = made.wrong() if isinstance(made, Consistent) else None
        if wrong is not None:
            raise DamagedError(f"{name}: {wrong}", field=name)
        return made
    raise _unknown(like, name)


def part_of(tensors: Mapping[str, Tensor], name: str, like: Tensor, finite: bool = True) -> Tensor:
    """A tensor that is as it should be, on the CPU.

    Args:
        tensors: by name.
        name: which.
        like: of its type and shape; where it is finite, so must the tensor be.
        finite: whether that matters.

    Raises:
        DamagedError: it is not so.
    """
    part = tensors.get(name)
    if part is None:
        raise DamagedError(f"{name} is missing", field=name)
    if part.dtype != like.dtype or part.shape != like.shape:
        raise DamagedError(f"{name} is {_kind(part)}, not {_kind(like)}", field=name)
    if part.dtype == torch.bool and bool((part.view(torch.uint8) > 1).any()):
        raise DamagedError(f"{name} holds what is neither true nor false", field=name)
    if finite and not all(bool(piece.isfinite().all()) for piece in part.reshape(-1).split(PIECE)):
        odd = ~part.isfinite()
        start = like.detach().cpu()[odd]
        same = (part[odd] == start) | (part[odd].isnan() & start.isnan())  # a guard has NaN where nobody reported yet
        if not bool(same.all()):
            raise DamagedError(f"{name} holds NaN or infinity", field=name)
    return part


def _table(like: ClientTable, tensors: Mapping[str, Tensor], name: str) -> ClientTable:
    clients = tensors.get(f"{name}.clients")
    k = 0 if clients is None or clients.ndim != 1 else len(clients)
    clients = part_of(tensors, f"{name}.clients", torch.empty(k, dtype=torch.int64))
    rows = part_of(tensors, f"{name}.rows", torch.zeros(1, 1, dtype=like.dtype).expand(k, like.shape[1]))
    try:
        return ClientTable.of(like.n, clients, rows.to(like.device), like.folder)
    except InputError:  # a full disk is no damage; InputError is a ValueError too
        raise
    except ValueError as error:
        raise DamagedError(f"{name} does not fit: {error}", field=name) from None


def _kind(part: Tensor) -> str:
    return f"{part.dtype} of shape {tuple(part.shape)}"


def _fields(state: tuple[object, ...], name: str) -> tuple[str, ...]:
    fields: tuple[str, ...] | None = getattr(state, "_fields", None)
    if fields is None:
        raise _unknown(state, name)
    return fields


def _unknown(part: object, name: str) -> TypeError:
    return TypeError(f"{name} is a {type(part).__name__}: only tensors, tables and NamedTuples of them can be saved")
