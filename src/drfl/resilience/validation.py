"""Which replies to a request can be used, and what is wrong with the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Generic, NamedTuple

import torch
from torch import Tensor

from drfl.core.errors import NonFiniteError
from drfl.federation.requests import LossRequest, R, Request, TrainRequest, answers


class Reason(StrEnum):
    """Why a reply is not used; the texts follow "client 3: reply rejected, as"."""

    STRANGER = "it was not asked"
    DUPLICATE = "it had answered already"
    SHAPE = "a part of it has the wrong shape"
    DTYPE = "a part of it has the wrong type"
    NOT_FINITE = "a part of it is NaN or infinite"
    FAR = "it is farther from the model sent than the norm allows"
    OUT_OF_PROPORTION = "it is out of all proportion to the others'"


REASONS = tuple(Reason)
"""A row's code c > 0 stands for ``REASONS[c - 1]``; 0 means that it is valid."""

FAULTS = (Reason.SHAPE, Reason.DTYPE, Reason.NOT_FINITE, Reason.FAR, Reason.OUT_OF_PROPORTION)
"""Reasons that lie in what a client sent; the other two lie in when it sent it."""

SENT = {"train": "models sent", "losses": "losses reported", "gradients": "gradients sent"}


class Checked(NamedTuple, Generic[R]):
    """What is left of a reply.

    Args:
        reply: its valid rows; the very reply that came where all are.
        clients: (k',) whose the rows were that came, int64.
        codes: (k',) int64: 0 for a valid row, else c with the reason ``REASONS[c - 1]``.
    """

    reply: R
    clients: Tensor
    codes: Tensor

    def rows_with(self, *reasons: Reason) -> Tensor:
        """(k',) bool, the rows rejected for one of these reasons."""
        return torch.isin(self.codes, torch.tensor([REASONS.index(reason) + 1 for reason in reasons]))

    def without(self, rows: Tensor, reason: Reason) -> Checked[R]:
        """The same, with some of the valid rows rejected: (k'',) bool, one for each row of ``reply``."""
        codes = self.codes.clone()
        codes[codes == 0] = torch.where(rows, REASONS.index(reason) + 1, 0)
        return self._replace(reply=answers(self.reply, ~rows), codes=codes)


class Rejection(NamedTuple):
    """A reply that was not used.

    Args:
        round: of the run.
        kind: of the request: "train", "losses" or "gradients".
        client: whose it was; N or more, or below 0, is no client.
        reason: why.
    """

    round: int
    kind: str
    client: int
    reason: Reason


class _Part(NamedTuple):
    """What a part of a reply must be: a row's shape and type, and the vector that it must lie near to (0 for None)."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    near: Tensor | None = None


def misfit(request: Request, parts: Sequence[Tensor | None]) -> Reason | None:
    """Why one client's reply is of another form than its request needs, whatever its numbers are; None if it is not.

    Args:
        request: what was asked.
        parts: the fields of :class:`Replies`, :class:`Losses` or :class:`Gradients` after ``clients``, without the
            leading k': a model is (d,), a loss (). What nobody asked for is None, or left out at the end.
    """
    return _unfit(_expected(request), [None if part is None else part.unsqueeze(0) for part in parts], 1)


def validated(request: Request[R], reply: R, norm: float | None = None) -> Checked[R]:
    """The rows of a reply that can be used.

    A row is rejected where the client was not asked or has answered already (the first answer counts), where a part has
    the wrong shape or type (it then has in all rows), is NaN or infinite, or is too far away. A negative loss is valid.
    Nothing is copied where all rows are valid.

    Args:
        request: what was asked.
        reply: the answer, rows stacked.
        norm: the greatest ‖w_i − w‖ of a model, ‖g‖ of a gradient; None = no bound.

    Raises:
        NonFiniteError: more than half of those that answered sent NaN or infinity; names them.
        ValueError: ``reply.clients`` is no int64 vector, which is the backend's fault and no client's.
    """
    clients, k = reply.clients, len(reply.clients)
    if clients.dtype != torch.int64 or clients.ndim != 1:
        raise ValueError(f"clients must be int64 of shape (k',), not {clients.dtype} of shape {tuple(clients.shape)}")
    stranger, duplicate = REASONS.index(Reason.STRANGER) + 1, REASONS.index(Reason.DUPLICATE) + 1
    asked, seen, first_codes = set(request.cohort.tolist()), set(), []
    for client in clients.tolist():
        first_codes.append(stranger if client not in asked else duplicate if client in seen else 0)
        seen.add(client)
    codes = torch.tensor(first_codes, dtype=torch.int64)
    if not k:
        return Checked(reply, clients, codes)
    codes = _codes(request, reply[1:], codes, norm)
    checked = Checked(reply, clients, codes)
    if not bool(codes.any()):
        return checked
    # A few bad clients are dropped; if most replies are not finite it is the model that has diverged, and dropping them
    # would hide it.
    broken = clients[checked.rows_with(Reason.NOT_FINITE)]
    if 2 * len(broken) > k - int(checked.rows_with(Reason.STRANGER, Reason.DUPLICATE).sum()):
        raise NonFiniteError(
            f"the {SENT[request.kind]} by clients {broken.tolist()}, more than half of those that answered, are NaN or "
            "infinite"
        )
    valid = codes == 0
    return checked._replace(reply=answers(reply, valid) if bool(valid.any()) else request.nobody())


def _codes(request: Request[R], parts: Sequence[Tensor | None], codes: Tensor, norm: float | None) -> Tensor:
    """(k,) codes of what k clients sent; a stranger or a second answer keeps its code, whatever is in it."""
    expected = _expected(request)
    reason = _unfit(expected, parts, len(codes))
    if reason is not None:
        return torch.where(codes == 0, REASONS.index(reason) + 1, codes)
    for part, wanted in zip(parts, expected, strict=False):
        if wanted is not None and part is not None:
            # NaN and infinity show in the sum, which takes no memory. A sum may also overflow, so it alone rejects
            # nothing.
            if not math.isfinite(part.sum()):
                # Row by row, here and below, to save memory.
                broken = torch.tensor([not bool(torch.isfinite(row).all()) for row in part])
                codes[(codes == 0) & broken] = REASONS.index(Reason.NOT_FINITE) + 1
            if norm is not None and wanted.shape:
                near = wanted.near
                far = torch.tensor([bool((row if near is None else row - near).norm() > norm) for row in part])
                codes[(codes == 0) & far] = REASONS.index(Reason.FAR) + 1
    return codes


def _expected(request: Request) -> tuple[_Part | None, ...]:
    """What the parts of a reply must be; None for one that nobody asked for."""
    w, loss = request.w, _Part((), torch.float64)
    if isinstance(request, TrainRequest):
        model = _Part(tuple(w.shape), w.dtype, w)
        return model, None if request.snapshot is None else model, model if request.average else None
    return (loss,) if isinstance(request, LossRequest) else (_Part(tuple(w.shape), w.dtype), loss)


def _unfit(expected: Sequence[_Part | None], parts: Sequence[Tensor | None], k: int) -> Reason | None:
    """What is wrong with the parts as such, before any number is looked at."""
    given = [*parts, *[None] * (len(expected) - len(parts))]
    if len(given) > len(expected):
        return Reason.SHAPE
    for part, wanted in zip(given, expected, strict=True):
        if part is None or wanted is None:
            if part is not wanted:
                return Reason.SHAPE
        elif tuple(part.shape) != (k, *wanted.shape):
            return Reason.SHAPE
        elif part.dtype != wanted.dtype:
            return Reason.DTYPE
    return None
