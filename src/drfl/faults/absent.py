"""Clients that hear a request, work, and do not get their answer through."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from drfl.federation import Federation
from drfl.request import GradientRequest, LossRequest, R, Request, TrainRequest, answers
from drfl.wrapped import WrappedFederation

KINDS = (TrainRequest.kind, LossRequest.kind, GradientRequest.kind)
"""What a client can be asked for."""


class Absent(WrappedFederation):
    """A federation of which some clients hear every request, work, and do not get their answer through.

    The ledger counts what was sent to them and what they computed, and nothing that they would have sent.

    Args:
        fed: the federation inside.
        absent: (N,) bool, who they are.
        kinds: the requests to which their answers are lost; the other answers arrive.
    """

    def __init__(self, fed: Federation, absent: Tensor, kinds: Collection[str] = KINDS) -> None:
        super().__init__(fed)
        self.absent, self.kinds = absent, kinds

    def exchange(self, request: Request[R]) -> R:
        """Put a request; the replies that do not arrive are taken off the ledger."""
        if request.kind not in self.kinds:
            return request.put(self.fed)
        before = self.ledger.bytes_up
        reply = request.put(self.fed)
        kept = ~self.absent[reply.clients]
        lost = len(kept) - int(kept.sum())
        if lost:
            self.ledger.up(-lost, (self.ledger.bytes_up - before) // len(kept))
        return answers(reply, kept)
