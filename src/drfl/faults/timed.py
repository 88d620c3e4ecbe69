"""Clients that take their time."""

from __future__ import annotations

import torch
from torch import Tensor

from drfl.federation import Federation
from drfl.key import Key
from drfl.request import R, Request, TrainRequest, answers
from drfl.wrapped import WrappedFederation


class Timed(WrappedFederation):
    """A federation whose replies are delivered in the order of their arrival, and not after a deadline.

    The unit of time is one local step of an ordinary client. A request takes a client as many steps as it trains (1 for
    losses and gradients), times its pace, times a jitter: lognormal with mean 1, drawn by client and kind of request.
    A reply belongs to its request: one that comes late is not delivered, though its bytes count.

    Args:
        fed: the federation inside.
        pace: (N,) how many times as long as an ordinary client each takes.
        jitter: standard deviation σ ≥ 0 of the jitter's logarithm, exp(σz − σ²/2) with z standard normal.
        deadline: after which nothing is delivered; None = the server waits for everybody.
        key: of this round's draws.
    """

    def __init__(self, fed: Federation, pace: Tensor, jitter: float, deadline: float | None, key: Key) -> None:
        super().__init__(fed)
        self.pace, self.jitter, self.deadline, self.key = pace, jitter, deadline, key

    def exchange(self, request: Request[R]) -> R:
        """Put a request; the replies by their times of arrival, those at the same time as they came."""
        reply = request.put(self.fed)
        at = self.times(request)[reply.clients]
        order = at.argsort(stable=True)
        if self.deadline is not None:
            order = order[at[order] <= self.deadline]
        return answers(reply, order)

    def times(self, request: Request[R]) -> Tensor:
        """(N,) float64, how long this request takes each client."""
        steps = request.local.steps if isinstance(request, TrainRequest) else 1
        z = torch.from_numpy(self.key.fold(request.kind).generator().standard_normal(self.n))
        return steps * self.pace * torch.exp(self.jitter * z - self.jitter**2 / 2)
