"""Who did and sent how much in each round, read off the ledger request by request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.core.key import Key
from drfl.federation.algorithm import Info
from drfl.federation.federation import Federation, WrappedFederation
from drfl.federation.requests import R, Request, TrainRequest
from drfl.resilience.wrappers import S, WrappedAlgorithm


class Usage(NamedTuple):
    """What the clients did in one round; a row for each of the k clients that were asked anything.

    Args:
        clients: (k,) int64, ascending.
        steps: (k,) int64, local steps.
        samples: (k,) float64, samples whose gradient was computed, in local steps or for a gradient report.
        local_samples: (k,) float64, those in local steps only.
        up: (k,) float64, bytes sent.
        down: (k,) float64, bytes received.
    """

    clients: Tensor
    steps: Tensor
    samples: Tensor
    local_samples: Tensor
    up: Tensor
    down: Tensor


class Meter(WrappedFederation):
    """A federation that counts client by client.

    The ledger of the federation inside tells what a request cost; those who were asked share it alike, and those who
    answered share the bytes sent. Where a client has fewer samples than a minibatch, the split is off, the sum is not.

    Args:
        fed: the federation inside.
    """

    def __init__(self, fed: Federation) -> None:
        super().__init__(fed)
        self._asked = torch.zeros(fed.n, dtype=torch.bool)
        self._counts = {name: torch.zeros(fed.n, dtype=torch.float64) for name in Usage._fields[1:]}

    def ask(self, request: Request[R]) -> R:
        """Send a request, and count what it cost."""
        before = self.ledger.totals()
        reply = self.fed.ask(request)
        cost = {name: value - before[name] for name, value in self.ledger.totals().items()}
        asked = request.cohort
        steps = int(request.local.steps_of(self.sizes, asked).sum()) if isinstance(request, TrainRequest) else 0
        self._asked[asked] = True
        self._add("steps", asked, steps)
        self._add("samples", asked, cost["gradient_evaluations"])
        self._add("local_samples", asked, cost["gradient_evaluations"] if steps else 0)
        self._add("down", asked, cost["bytes_down"])
        self._add("up", reply.clients, cost["bytes_up"])
        return reply

    def usage(self) -> Usage:
        """What has been counted so far."""
        clients = self._asked.nonzero().flatten()
        counts = {name: count[clients] for name, count in self._counts.items()}
        return Usage(clients, counts.pop("steps").round().long(), **counts)

    def _add(self, name: str, clients: Tensor, total: int) -> None:
        if len(clients):
            self._counts[name][clients] += total / len(clients)


@dataclass(frozen=True)
class Metered(WrappedAlgorithm[S]):
    """An algorithm of which every round is metered.

    With :class:`drfl_papers.energy.channel.OverChannel` it goes inside, ``OverChannel(Metered(algorithm), fading)``:
    only there it sees who did not answer.

    Args:
        algorithm: the algorithm inside.
        log: gets a :class:`Usage` a round.
    """

    log: list[Usage] = field(default_factory=list)

    def round(self, state: S, fed: Federation, key: Key) -> tuple[S, Info]:
        """One round of the algorithm inside."""
        meter = Meter(fed)
        done = self.algorithm.round(state, meter, key)
        self.log.append(meter.usage())
        return done
