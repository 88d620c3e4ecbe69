"""Clients that do not answer in a round because their channel is in outage."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from drfl.algorithm import Info
from drfl.energy.channel import Rayleigh
from drfl.federation import Federation
from drfl.key import Key
from drfl.request import R, Request, answers
from drfl.wrapped import S, WrappedAlgorithm, WrappedFederation


class Absent(WrappedFederation):
    """A federation of which some clients hear every request, work, and do not get their answer through.

    The ledger counts what was sent to them and what they computed, and nothing that they would have sent.

    Args:
        fed: the federation inside.
        absent: (N,) bool, who they are.
    """

    def __init__(self, fed: Federation, absent: Tensor) -> None:
        super().__init__(fed)
        self.absent = absent

    def exchange(self, request: Request[R]) -> R:
        """Put a request; the replies that do not arrive are taken off the ledger."""
        before = self.ledger.bytes_up
        reply = request.put(self.fed)
        kept = ~self.absent[reply.clients]
        lost = len(kept) - int(kept.sum())
        if lost:
            self.ledger.up(-lost, (self.ledger.bytes_up - before) // len(kept))
        return answers(reply, kept)


@dataclass(frozen=True)
class OverChannel(WrappedAlgorithm[S]):
    """An algorithm whose clients drop out with their fading channels: one draw per client and round.

    The draw belongs to the round, not to a request: a client in outage in round r answers nothing in round r. Only the
    algorithm sees the key of the round, a federation sees what was folded from it, so the draw is made here and each
    round gets a federation of its own. Nothing is remembered from one round to the next.

    Args:
        algorithm: the algorithm inside.
        fading: the channels of all N clients.

    The draws depend on the seed, the round and the client, not on the algorithm: two of them lose the same clients.
    """

    fading: Rayleigh

    def round(self, state: S, fed: Federation, key: Key) -> tuple[S, Info]:
        """One round of the algorithm inside, without the answers of those in outage."""
        return self.algorithm.round(state, Absent(fed, self.fading.absent(key)), key)
