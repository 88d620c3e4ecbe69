"""A federation that writes down what it was asked and who answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from drfl.federation import Federation, Gradients, Losses, Replies
from drfl.key import Key
from drfl.local import LocalSGD
from drfl.request import R, Request
from drfl.wrapped import WrappedFederation


@dataclass(frozen=True, eq=False)
class Call:
    """One request to a cohort and its answer; what a kind of request does not have is None.

    Args:
        kind: ``"train"``, ``"losses"`` or ``"gradients"``.
        cohort: (k,) who was asked.
        answered: (k',) who answered.
        w: (d,) the model that was sent.
        key: of the request.
        reply: the whole answer.
        batch: samples per loss report or gradient.
        local: the solver.
        prox: weight of the pull towards w.
        shift: (k, d) constants added to the directions.
        snapshot: step of the snapshot that was asked for.
        average: whether the mean over the local steps was asked for.
    """

    kind: str
    cohort: Tensor
    answered: Tensor
    w: Tensor
    key: Key
    reply: Replies | Losses | Gradients
    batch: int | None = None
    local: LocalSGD | None = None
    prox: float = 0.0
    shift: Tensor | None = None
    snapshot: int | None = None
    average: bool = False


def first_asked(calls: Sequence[Call]) -> Tensor:
    """(k,) the cohort of a round: all clients that its first kind of request went to, in one call or in several."""
    alike = takewhile(lambda call: call.kind == calls[0].kind, calls)
    return torch.cat([torch.empty(0, dtype=torch.int64), *(call.cohort for call in alike)])


class Recording(WrappedFederation):
    """Passes every request on and keeps it in ``calls``, oldest first.

    Args:
        fed: the federation inside.
    """

    def __init__(self, fed: Federation) -> None:
        super().__init__(fed)
        self.calls: list[Call] = []

    def of(self, kind: str) -> Sequence[Call]:
        """The calls of one kind."""
        return [call for call in self.calls if call.kind == kind]

    def take(self) -> list[Call]:
        """The calls so far, which are then forgotten."""
        calls, self.calls = self.calls, []
        return calls

    def exchange(self, request: Request[R]) -> R:
        """Put a request, and keep it with its reply."""
        reply = request.put(self.fed)
        self.calls.append(Call(kind=request.kind, answered=reply.clients, reply=reply, **vars(request)))
        return reply
