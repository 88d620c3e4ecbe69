"""Computation and traffic of each client per round, read from the ledger request by request."""

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
    """The work of the clients in one round; one row for each of the k clients that received any request.

    Args:
        clients: (k,) int64, ascending.
        steps: (k,) int64, local steps.
        samples: (k,) float64, samples whose gradient was computed, in local steps or for a gradient report.
        local_samples: (k,) float64, the samples of local steps only.
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
    """A federation that counts computation and traffic per client.

    The ledger of the wrapped federation has the cost of a request. The clients of the cohort share it equally, and the
    clients that answered share the bytes sent equally. If a client has fewer samples than a minibatch, its share is
    wrong, but the sum is right.

    Args:
        fed: The wrapped federation.
    """

    def __init__(self, fed: Federation) -> None:
        super().__init__(fed)
        self._contacted = torch.zeros(fed.n, dtype=torch.bool)
        self._counts = {name: torch.zeros(fed.n, dtype=torch.float64) for name in Usage._fields[1:]}

    def ask(self, request: Request[R]) -> R:
        """Send a request and count its cost."""
        before = self.ledger.totals()
        reply = self.fed.ask(request)
        cost = {name: value - before[name] for name, value in self.ledger.totals().items()}
        cohort = request.cohort
        steps = int(request.local.steps_of(self.sizes, cohort).sum()) if isinstance(request, TrainRequest) else 0
        self._contacted[cohort] = True
        self._add("steps", cohort, steps)
        self._add("samples", cohort, cost["gradient_evaluations"])
        self._add("local_samples", cohort, cost["gradient_evaluations"] if steps else 0)
        self._add("down", cohort, cost["bytes_down"])
        self._add("up", reply.clients, cost["bytes_up"])
        return reply

    def usage(self) -> Usage:
        """Return the counts so far."""
        clients = self._contacted.nonzero().flatten()
        counts = {name: count[clients] for name, count in self._counts.items()}
        return Usage(clients, counts.pop("steps").round().long(), **counts)

    def _add(self, name: str, clients: Tensor, total: int) -> None:
        if len(clients):
            self._counts[name][clients] += total / len(clients)


@dataclass(frozen=True)
class Metered(WrappedAlgorithm[S]):
    """An algorithm whose rounds are metered.

    Put it inside :class:`drfl_papers.energy.channel.OverChannel`, as ``OverChannel(Metered(algorithm), fading)``: only
    there it sees which clients did not answer.

    Args:
        algorithm: The wrapped algorithm.
        log: Receives one :class:`Usage` per round.
    """

    log: list[Usage] = field(default_factory=list)

    def round(self, state: S, fed: Federation, key: Key) -> tuple[S, Info]:
        """Run one round of the wrapped algorithm."""
        meter = Meter(fed)
        done = self.algorithm.round(state, meter, key)
        self.log.append(meter.usage())
        return done
