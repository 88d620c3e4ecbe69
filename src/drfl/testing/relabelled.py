"""A federation whose clients have changed places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from drfl.federation import Evaluation, Federation
from drfl.request import R, Request
from drfl.wrapped import WrappedFederation


class Relabelled(WrappedFederation):
    """Client i here is client ``order[i]`` of the federation inside.

    Minibatches belong to names: ask for full batches where the two are to be compared.

    Args:
        fed: the federation inside.
        order: a permutation of 0…N−1.
    """

    def __init__(self, fed: Federation, order: Sequence[int]) -> None:
        super().__init__(fed)
        self.order = torch.tensor(order, dtype=torch.int64)
        self._back = self.order.argsort()

    @property
    def shares(self) -> Tensor:
        """(N,) each client's share of the samples."""
        return self.fed.shares[self.order]

    def exchange(self, request: Request[R]) -> R:
        """Put a request to those who are meant."""
        reply = replace(request, cohort=self.order[request.cohort]).put(self.fed)
        return reply._replace(clients=self._back[reply.clients])

    def evaluate(self, w: Tensor) -> Evaluation:
        """See :class:`drfl.federation.Federation`."""
        return Evaluation(*(part[self.order] for part in self.fed.evaluate(w)))
