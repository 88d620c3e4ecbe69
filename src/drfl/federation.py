"""The contract between an algorithm at the server and the clients, wherever these run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from drfl.key import Key
from drfl.local import LocalSGD

SCALAR_BYTES = 8
"""What a loss report counts in the ledger: one float64."""


NOT_ASKED = torch.empty(0)
"""Stands for a part of a reply that nobody asked for."""


class Replies(NamedTuple):
    """Local models of the k' ≤ k clients that answered, row j belonging to ``clients[j]``, in any order.

    Args:
        clients: (k',) int64, distinct.
        w: (k', d) models after the last local step.
        snapshot: (k', d) models after the asked-for step; empty where none was asked for.
        average: (k', d) means of the models after steps 1…τ; empty where not asked for.
    """

    clients: Tensor
    w: Tensor
    snapshot: Tensor = NOT_ASKED
    average: Tensor = NOT_ASKED


class Losses(NamedTuple):
    """Losses reported by the k' clients that answered.

    Args:
        clients: (k',) int64, distinct.
        values: (k',) float64.
    """

    clients: Tensor
    values: Tensor

    def unbiased(self, n: int) -> Tensor:
        """v (N,) with v_i = (N/k')·ℓ_i for those who answered, else 0 (DRFA, Algorithm 1, line 16).

        E[v] is the vector of all clients' losses when those who answer are a uniform sample. Nobody: zeros.
        """
        v = torch.zeros(n, dtype=torch.float64)
        if self.clients.numel():
            v[self.clients] = n / self.clients.numel() * self.values
        return v


class Gradients(NamedTuple):
    """Gradients at one common model, of the k' clients that answered.

    Args:
        clients: (k',) int64, distinct.
        values: (k', d).
        losses: (k',) float64, at the same model on the same samples.
    """

    clients: Tensor
    values: Tensor
    losses: Tensor


class Evaluation(NamedTuple):
    """How one model does on every client's test data; all (N,).

    Args:
        accuracy: mean score in [0, 1], float64.
        loss: mean loss, float64.
        samples: number of test samples, int64.
    """

    accuracy: Tensor
    loss: Tensor
    samples: Tensor


@dataclass
class Ledger:
    """What a run has cost so far.

    Args:
        bytes_down: payload from the server to clients: models and shifts in their own type.
        bytes_up: payload from clients to the server: models, snapshots, gradients, and 8 bytes a loss.
        messages: requests sent to clients plus replies received.
        gradient_evaluations: samples whose gradient was computed.
        loss_evaluations: samples whose loss was computed without a gradient (evaluation on test data not counted).
    """

    bytes_down: int = 0
    bytes_up: int = 0
    messages: int = 0
    gradient_evaluations: int = 0
    loss_evaluations: int = 0

    def down(self, clients: int, nbytes: int) -> None:
        """Count one request with this payload to each of so many clients."""
        self.bytes_down += clients * nbytes
        self.messages += clients

    def up(self, clients: int, nbytes: int) -> None:
        """Count one reply with this payload from each of so many clients."""
        self.bytes_up += clients * nbytes
        self.messages += clients

    def add(self, other: Ledger) -> None:
        """Count what another one has counted."""
        for name, value in other.totals().items():
            setattr(self, name, getattr(self, name) + value)

    def totals(self) -> dict[str, int]:
        """All counters by name."""
        return asdict(self)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within it nothing counts: for evaluations, which are no part of the algorithm."""
        before = self.totals()
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)


class Federation(Protocol):
    """N clients as the server sees them. Clients keep no algorithm state; any of them may fail to answer.

    A cohort is a vector (k,) of distinct client indices. ``key`` names the round's randomness: client i draws its
    samples from ``key.fold("client", i)``, whatever the backend.
    """

    @property
    def n(self) -> int:
        """Number of clients N."""
        ...

    @property
    def shares(self) -> Tensor:
        """(N,) float64: each client's share of the training samples, summing to 1."""
        ...

    @property
    def w0(self) -> Tensor:
        """(d,) the initial model."""
        ...

    @property
    def ledger(self) -> Ledger:
        """What has been sent and computed so far."""
        ...

    def train(
        self,
        cohort: Tensor,
        w: Tensor,
        local: LocalSGD,
        key: Key,
        *,
        prox: float = 0.0,
        shift: Tensor | None = None,
        snapshot: int | None = None,
        average: bool = False,
    ) -> Replies:
        """Local steps u ← Π_W(u − η(∇ℓ(u) + shift_i + prox·(u − w))) from u = w at each client of the cohort.

        Args:
            cohort: (k,) clients to ask.
            w: (d,) where they start.
            local: the solver.
            key: the round's key for minibatches.
            prox: weight of the pull towards w.
            shift: (k, d) constant added to each direction, row j for ``cohort[j]``.
            snapshot: step in 1…τ after which the local model is also wanted.
            average: whether the mean of the local models after steps 1…τ is also wanted.
        """
        ...

    def losses(self, cohort: Tensor, w: Tensor, key: Key, *, batch: int | None = None) -> Losses:
        """Mean loss at w (d,) on a fresh minibatch of each client of the cohort; None = all its training data."""
        ...

    def gradients(self, cohort: Tensor, w: Tensor, key: Key, *, batch: int | None = None) -> Gradients:
        """Mean gradient at w (d,) on a fresh minibatch of each client of the cohort; None = all its training data."""
        ...

    def evaluate(self, w: Tensor) -> Evaluation:
        """Score and loss of w (d,) on every client's test data."""
        ...
