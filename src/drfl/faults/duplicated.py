"""Replies that arrive twice."""

from __future__ import annotations

import torch

from drfl.federation import Federation
from drfl.key import Key
from drfl.request import R, Request, answers
from drfl.wrapped import WrappedFederation


class Duplicated(WrappedFederation):
    """A federation some of whose replies arrive twice: a second row of the client, right after the first.

    The ledger counts the second message too. The draw is by client and kind of request.

    Args:
        fed: the federation inside.
        probability: of a second reply.
        key: of this round's draws.
    """

    def __init__(self, fed: Federation, probability: float, key: Key) -> None:
        super().__init__(fed)
        self.probability, self.key = probability, key

    def exchange(self, request: Request[R]) -> R:
        """Put a request, and repeat some of its replies."""
        before = self.ledger.bytes_up
        reply = request.put(self.fed)
        chance = torch.from_numpy(self.key.fold(request.kind).generator().random(self.n))
        again = (chance < self.probability)[reply.clients]
        more = int(again.sum())
        if not more:
            return reply
        self.ledger.up(more, (self.ledger.bytes_up - before) // len(again))
        return answers(reply, torch.arange(len(again)).repeat_interleave(1 + again.long()))
