"""Requests to clients as data, for whatever stands between an algorithm and its clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor

from drfl.federation import NOT_ASKED, Evaluation, Federation, Gradients, Losses, Replies
from drfl.key import Key
from drfl.local import LocalSGD

R = TypeVar("R", Replies, Losses, Gradients)


@dataclass(frozen=True, eq=False)
class Request(ABC, Generic[R]):
    """What :class:`drfl.federation.Federation` can ask a cohort, as one object.

    Args:
        cohort: (k,) clients to ask.
        w: (d,) the model that is sent.
        key: of the request.
    """

    kind: ClassVar[str]
    cohort: Tensor
    w: Tensor
    key: Key

    @abstractmethod
    def put(self, fed: Federation) -> R:
        """Ask a federation."""

    @abstractmethod
    def nobody(self) -> R:
        """The reply that nobody sent: its parts are empty, of the shapes and types of a full one."""

    @property
    def vectors(self) -> int:
        """How many vectors (d,) it sends to each client."""
        return 1

    def only(self, rows: Tensor) -> Self:
        """The same to some of the cohort: rows (k',) of positions in it, or (k,) bool."""
        return replace(self, cohort=self.cohort[rows])


@dataclass(frozen=True, eq=False)
class TrainRequest(Request[Replies]):
    """See :meth:`drfl.federation.Federation.train`."""

    kind: ClassVar[str] = "train"
    local: LocalSGD
    prox: float
    shift: Tensor | None
    snapshot: int | None
    average: bool

    def put(self, fed: Federation) -> Replies:
        """Ask a federation."""
        options = {"prox": self.prox, "shift": self.shift, "snapshot": self.snapshot, "average": self.average}
        return fed.train(self.cohort, self.w, self.local, self.key, **options)

    def nobody(self) -> Replies:
        """Models (0, d), and what else was asked for."""
        w = self.w.new_empty(0, self.w.numel())
        return Replies(_nobody(), w, NOT_ASKED if self.snapshot is None else w, w if self.average else NOT_ASKED)

    @property
    def vectors(self) -> int:
        """The model, and the shift where there is one."""
        return 1 if self.shift is None else 2

    def only(self, rows: Tensor) -> Self:
        """The same to some of the cohort, with their shifts."""
        return replace(super().only(rows), shift=None if self.shift is None else self.shift[rows])


@dataclass(frozen=True, eq=False)
class LossRequest(Request[Losses]):
    """See :meth:`drfl.federation.Federation.losses`."""

    kind: ClassVar[str] = "losses"
    batch: int | None

    def put(self, fed: Federation) -> Losses:
        """Ask a federation."""
        return fed.losses(self.cohort, self.w, self.key, batch=self.batch)

    def nobody(self) -> Losses:
        """Values (0,)."""
        return Losses(_nobody(), torch.empty(0, dtype=torch.float64))


@dataclass(frozen=True, eq=False)
class GradientRequest(Request[Gradients]):
    """See :meth:`drfl.federation.Federation.gradients`."""

    kind: ClassVar[str] = "gradients"
    batch: int | None

    def put(self, fed: Federation) -> Gradients:
        """Ask a federation."""
        return fed.gradients(self.cohort, self.w, self.key, batch=self.batch)

    def nobody(self) -> Gradients:
        """Values (0, d) and losses (0,)."""
        return Gradients(_nobody(), self.w.new_empty(0, self.w.numel()), torch.empty(0, dtype=torch.float64))


class Exchanges(ABC):
    """The part of a federation whose verbs all come down to :meth:`exchange`."""

    @abstractmethod
    def exchange(self, request: Request[R]) -> R:
        """Every request passes here on its way to the clients, and its reply on the way back."""

    def train(
        self,
        cohort: Tensor,
        w: Tensor,
        local: LocalSGD,
        key: Key,
        *,
        prox: float = 0.0,
        shift: Tensor | None = None,
        snapshot: int | None = None,
        average: bool = False,
    ) -> Replies:
        """See :class:`drfl.federation.Federation`."""
        return self.exchange(TrainRequest(cohort, w, key, local, prox, shift, snapshot, average))

    def losses(self, cohort: Tensor, w: Tensor, key: Key, *, batch: int | None = None) -> Losses:
        """See :class:`drfl.federation.Federation`."""
        return self.exchange(LossRequest(cohort, w, key, batch))

    def gradients(self, cohort: Tensor, w: Tensor, key: Key, *, batch: int | None = None) -> Gradients:
        """See :class:`drfl.federation.Federation`."""
        return self.exchange(GradientRequest(cohort, w, key, batch))


class Foreseen(Exception):  # noqa: N818 - it is no error
    """Ends a round at its first request."""

    def __init__(self, request: Request) -> None:
        self.request = request


class Foresight(Exchanges):
    """Stands for a federation during a round that is only to show what it will ask first.

    Args:
        fed: the federation that the round will be run on.

    Raises:
        Foreseen: at the first request.
    """

    def __init__(self, fed: Federation) -> None:
        self.n, self.shares, self.w0, self.ledger = fed.n, fed.shares, fed.w0, fed.ledger

    def exchange(self, request: Request[R]) -> R:
        """Ends the round."""
        raise Foreseen(request)

    def evaluate(self, w: Tensor) -> Evaluation:
        """No round does this."""
        raise RuntimeError("a round tests nothing")


def answers(reply: R, rows: Tensor) -> R:
    """Some rows of a reply: (k'',) positions in any order, or (k',) bool. A part that nobody asked for stays empty."""
    return reply._make(part[rows] if len(part) else part for part in reply)


def reports_of(reply: R) -> Losses | None:
    """The clients and losses (k',) that a reply reports; None for models."""
    if isinstance(reply, Replies):
        return None
    return reply if isinstance(reply, Losses) else Losses(reply.clients, reply.losses)


def with_reports(reply: R, values: Tensor) -> R:
    """The reply with other losses (k',); models stay as they are."""
    if isinstance(reply, Losses):
        return reply._replace(values=values)
    return reply._replace(losses=values) if isinstance(reply, Gradients) else reply


def _nobody() -> Tensor:
    return torch.empty(0, dtype=torch.int64)
