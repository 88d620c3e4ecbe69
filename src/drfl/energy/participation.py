"""Clients that do not answer in a round because their channel is in outage."""

from __future__ import annotations

from dataclasses import dataclass

from drfl.algorithm import Info
from drfl.energy.channel import Rayleigh
from drfl.faults.absent import Absent
from drfl.federation import Federation
from drfl.key import Key
from drfl.wrapped import S, WrappedAlgorithm


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
