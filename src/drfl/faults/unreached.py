"""Clients that no request reaches."""

from __future__ import annotations

from torch import Tensor

from drfl.federation import Federation
from drfl.request import R, Request
from drfl.wrapped import WrappedFederation


class Nobody(WrappedFederation):
    """A federation that reaches none of its clients: every reply is empty, of the shapes and types of a full one.

    Its ledger counts a message with the model, and the shift where there is one, for each client of the cohort; an
    empty cohort costs nothing.

    Args:
        fed: the federation that is out of reach.
    """

    def exchange(self, request: Request[R]) -> R:
        """Count what is sent in vain."""
        w = request.w
        self.ledger.down(len(request.cohort), request.vectors * w.numel() * w.element_size())
        return request.nobody()


class Unreached(WrappedFederation):
    """A federation of which some clients hear no request: they are silent, and do no work.

    The ledger counts what was sent to them in vain: what a request to one of the others cost.

    Args:
        fed: the federation inside; it never sees an empty cohort.
        silent: (N,) bool, who they are.
    """

    def __init__(self, fed: Federation, silent: Tensor) -> None:
        super().__init__(fed)
        self.silent = silent

    def exchange(self, request: Request[R]) -> R:
        """Put a request to those who hear it."""
        heard = ~self.silent[request.cohort]
        reached = int(heard.sum())
        if not reached:
            return request.put(Nobody(self.fed))
        if reached == len(heard):
            return request.put(self.fed)
        before = self.ledger.bytes_down
        reply = request.only(heard).put(self.fed)
        self.ledger.down(len(heard) - reached, (self.ledger.bytes_down - before) // reached)
        return reply
