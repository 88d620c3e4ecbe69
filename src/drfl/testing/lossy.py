"""Federations of which some clients are silent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import numpy as np
import torch

from drfl.federation import Federation
from drfl.request import R, Request, answers
from drfl.wrapped import WrappedFederation


class Lossy(WrappedFederation):
    """Some clients never answer; the others answer in a shuffled order.

    The clients compute all the same, so the ledger counts what was asked.

    Args:
        fed: the federation inside.
        train: clients that never send a local model.
        losses: clients that never report a loss.
        gradients: clients that never send a gradient.
        seed: of the order of the replies; None keeps the order.
    """

    def __init__(
        self,
        fed: Federation,
        *,
        train: Iterable[int] = (),
        losses: Iterable[int] = (),
        gradients: Iterable[int] = (),
        seed: int | None = 0,
    ) -> None:
        super().__init__(fed)
        self.silent = {"train": frozenset(train), "losses": frozenset(losses), "gradients": frozenset(gradients)}
        self._rng = None if seed is None else np.random.default_rng(seed)

    @classmethod
    def without(cls, fed: Federation, clients: Iterable[int]) -> Self:
        """A federation in which these clients never answer anything."""
        clients = frozenset(clients)
        return cls(fed, train=clients, losses=clients, gradients=clients)

    def exchange(self, request: Request[R]) -> R:
        """Put a request, and lose the replies of the silent."""
        reply = request.put(self.fed)
        kept = [j for j, i in enumerate(reply.clients.tolist()) if i not in self.silent[request.kind]]
        order = kept if self._rng is None else self._rng.permutation(kept)
        return answers(reply, torch.tensor(order, dtype=torch.int64))
