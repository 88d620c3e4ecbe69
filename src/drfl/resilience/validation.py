"""Validation of replies: which ones can be used, and why the others are rejected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Generic, NamedTuple

import torch
from torch import Tensor

from drfl.core.errors import NonFiniteError
from drfl.federation.federation import called
from drfl.federation.requests import LossRequest, R, Request, TrainRequest, select_rows


class Reason(StrEnum):
    """Why a reply is rejected; each text completes "client 3: reply rejected, as"."""

    STRANGER = "the client was not asked"
    DUPLICATE = "the client had already answered"
    SHAPE = "a part of it has the wrong shape"
    DTYPE = "a part of it has the wrong type"
    NOT_FINITE = "a part of it is NaN or infinite"
    FAR = "it is farther from the model sent than the maximum norm"
    OUT_OF_PROPORTION = "it is far larger than the other replies"


REASONS = tuple(Reason)
"""A row's code c > 0 means ``REASONS[c - 1]``; 0 means that the row is valid."""

FAULTS = (Reason.SHAPE, Reason.DTYPE, Reason.NOT_FINITE, Reason.FAR, Reason.OUT_OF_PROPORTION)
"""Reasons that concern the content of a reply; the other two concern when it was sent."""

SENT = {"train": "models sent", "losses": "losses reported", "gradients": "gradients sent"}


class ValidationResult(NamedTuple, Generic[R]):
    """The result of validating a reply.

    Args:
        reply: The valid rows; the same object as the input if all rows are valid.
        clients: (k',) Clients of all rows of the input, int64.
        codes: (k',) int64: 0 for a valid row, else c with the reason ``REASONS[c - 1]``.
    """

    reply: R
    clients: Tensor
    codes: Tensor

    def rows_with(self, *reasons: Reason) -> Tensor:
        """Select the rows rejected for one of these reasons, (k',) bool."""
        return torch.isin(self.codes, torch.tensor([REASONS.index(reason) + 1 for reason in reasons]))

    def without(self, rows: Tensor, reason: Reason) -> ValidationResult[R]:
        """Return a copy that rejects more rows, given as (k'',) bool with one entry per row of ``reply``."""
        codes = self.codes.clone()
        codes[codes == 0] = torch.where(rows, REASONS.index(reason) + 1, 0)
        return self._replace(reply=select_rows(self.reply, ~rows), codes=codes)


class Rejection(NamedTuple):
    """A rejected reply.

    Args:
        round: Round of the run.
        kind: Kind of the request: "train", "losses" or "gradients".
        client: Index of the sender; an index below 0 or of at least N is not a client.
        reason: Reason for the rejection.
    """

    round: int
    kind: str
    client: int
    reason: Reason


class _Part(NamedTuple):
    """Required shape and dtype of a row of a reply's part, and the vector (None = 0) it must be close to if bounded."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    near: Tensor | None = None
    bounded: bool = True


def misfit(request: Request, parts: Sequence[Tensor | None]) -> Reason | None:
    """Return why the form of one client's reply does not fit its request, ignoring its numbers; None if it fits.

    Args:
        request: The request.
        parts: Fields of :class:`Replies`, :class:`Losses` or :class:`Gradients` after ``clients``, without the leading
            k': a model is (d,), a loss (). Parts that were not requested are None, or omitted at the end.
    """
    # A client's own parts lack the dimension k' of stacked replies.
    return _unfit(_expected(request), [None if part is None else part.unsqueeze(0) for part in parts], 1)


def validate_reply(
    request: Request[R], reply: R, norm: float | None = None, names: Sequence[str] = ()
) -> ValidationResult[R]:
    """Select the rows of a reply that can be used.

    A row is rejected if the client was not asked or has already answered (the first answer counts). It is also rejected
    if a part has the wrong shape or dtype (then all rows are rejected), is NaN or infinite, or is too far away. A
    negative loss is valid. Nothing is copied if all rows are valid.

    Args:
        request: The request.
        reply: The reply, with rows stacked.
        norm: Maximum ‖w_i − w‖ of a model and ‖g‖ of a gradient; None = no bound.
        names: (N,) Names of the clients, for messages; empty = none.

    Raises:
        NonFiniteError: If more than half of the clients that answered sent NaN or infinity; the message names them.
        ValueError: If ``reply.clients`` is not an int64 vector, which is a fault of the backend, not of a client.
    """
    clients, k = reply.clients, len(reply.clients)
    if clients.dtype != torch.int64 or clients.ndim != 1:
        raise ValueError(f"clients must be int64 of shape (k',), got {clients.dtype} of shape {tuple(clients.shape)}")
    stranger, duplicate = REASONS.index(Reason.STRANGER) + 1, REASONS.index(Reason.DUPLICATE) + 1
    cohort, seen, first_codes = set(request.cohort.tolist()), set(), []
    for client in clients.tolist():
        first_codes.append(stranger if client not in cohort else duplicate if client in seen else 0)
        seen.add(client)
    codes = torch.tensor(first_codes, dtype=torch.int64)
    if not k:
        return ValidationResult(reply, clients, codes)
    # Rows of unknown senders and second answers keep their code, whatever they contain.
    expected = _expected(request)
    reason = _unfit(expected, reply[1:], k)
    if reason is not None:
        codes = torch.where(codes == 0, REASONS.index(reason) + 1, codes)
    pairs = zip(reply[1:], expected, strict=False) if reason is None else ()
    for part, spec in [(part, spec) for part, spec in pairs if spec is not None and part is not None]:
        # NaN and infinity show up in the sum, which needs no extra memory. A sum may also overflow, so check the rows
        # before rejecting any.
        if not math.isfinite(part.sum()):
            # Go row by row, here and below, to save memory.
            is_bad = torch.tensor([not bool(torch.isfinite(row).all()) for row in part])
            codes[(codes == 0) & is_bad] = REASONS.index(Reason.NOT_FINITE) + 1
        if norm is not None and spec.shape and spec.bounded:
            near = spec.near
            is_far = torch.tensor([bool((row if near is None else row - near).norm() > norm) for row in part])
            codes[(codes == 0) & is_far] = REASONS.index(Reason.FAR) + 1
    checked = ValidationResult(reply, clients, codes)
    if not bool(codes.any()):
        return checked
    # Drop a few bad clients. But if most replies are not finite, the model has diverged, and dropping them would hide
    # that.
    non_finite = clients[checked.rows_with(Reason.NOT_FINITE)]
    if 2 * len(non_finite) > k - int(checked.rows_with(Reason.STRANGER, Reason.DUPLICATE).sum()):
        senders = called(names, *non_finite.tolist())
        raise NonFiniteError(
            f"the {SENT[request.kind]} by {senders}, more than half of those that answered, are NaN or infinite"
        )
    valid = codes == 0
    return checked._replace(reply=select_rows(reply, valid) if bool(valid.any()) else request.empty_reply())


def _expected(request: Request) -> tuple[_Part | None, ...]:
    """Return the requirements on each part of a reply; None for a part that was not requested."""
    w, loss = request.w, _Part((), torch.float64)
    if isinstance(request, TrainRequest):
        model = _Part(tuple(w.shape), w.dtype, w)
        models = (model, None if request.snapshot is None else model, model if request.average else None)
        if request.work is None:
            return *models, None, None
        states, size = request.work.states, request.work.layout.message_size
        # A state stays at its client, and the numbers of a message need not be near any others.
        state = None if states is None else _Part(tuple(states.shape[1:]), states.dtype, None, bounded=False)
        return *models, state, _Part((size,), w.dtype, None, bounded=False) if size else None
    return (loss,) if isinstance(request, LossRequest) else (_Part(tuple(w.shape), w.dtype), loss)


def _unfit(expected: Sequence[_Part | None], parts: Sequence[Tensor | None], k: int) -> Reason | None:
    """Return why the parts do not fit their requirements, before any number is checked; None if they fit."""
    padded = [*parts, *[None] * (len(expected) - len(parts))]
    if len(padded) > len(expected):
        return Reason.SHAPE
    for part, spec in zip(padded, expected, strict=True):
        if part is None or spec is None:
            if part is not spec:
                return Reason.SHAPE
        elif tuple(part.shape) != (k, *spec.shape):
            return Reason.SHAPE
        elif part.dtype != spec.dtype:
            return Reason.DTYPE
    return None
