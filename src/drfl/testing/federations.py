"""Federations for tests: with client dropout, recording, permuted clients, or constant replies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Self, cast

import numpy as np
import torch
from torch import Tensor

from drfl.core.key import Key
from drfl.federation.federation import Evaluation, Federation, Ledger, WrappedFederation
from drfl.federation.requests import (
    Gradients,
    Losses,
    LossRequest,
    MethodWork,
    R,
    Replies,
    Request,
    TrainRequest,
    select_rows,
)
from drfl.optim.local import LocalSGD
from drfl.task.client_model import ClientModel


class DropoutFederation(WrappedFederation):
    """Some clients never answer; the others answer in a shuffled order.

    All clients still compute, so the ledger counts everything that was requested.

    Args:
        fed: The wrapped federation.
        train: Clients that never send a local model.
        losses: Clients that never report a loss.
        gradients: Clients that never send a gradient.
        seed: Seed of the order of replies; None keeps the order.
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
        """Make a federation in which these clients never answer."""
        clients = frozenset(clients)
        return cls(fed, train=clients, losses=clients, gradients=clients)

    def ask(self, request: Request[R]) -> R:
        """Send a request, and drop the replies of the silent clients."""
        reply = self.fed.ask(request)
        answering = [j for j, i in enumerate(reply.clients.tolist()) if i not in self.silent[request.kind]]
        # Shuffled: an algorithm must match answers by client, not by position.
        order = answering if self._rng is None else self._rng.permutation(answering)
        return select_rows(reply, torch.tensor(order, dtype=torch.int64))


@dataclass(frozen=True, eq=False)
class Call:
    """One request to a cohort and its reply; fields that a kind of request does not have are None.

    Args:
        kind: ``"train"``, ``"losses"`` or ``"gradients"``.
        cohort: (k,) clients that received the request.
        answered: (k',) clients that answered.
        w: (d,) model that was sent.
        key: Key of the request.
        reply: The whole reply.
        batch: Samples per reported loss or gradient.
        local: The local solver.
        prox: Weight of the proximal term.
        shift: (k, d) constants added to the directions.
        snapshot: Step of the requested snapshot.
        average: Whether the mean over the local steps was requested.
        start: (k, d) models from which the clients started.
        work: The work of a client-side method.
    """

    kind: str
    cohort: Tensor
    answered: Tensor
    w: Tensor
    key: Key
    reply: Replies | Losses | Gradients
    batch: int | None = None
    local: LocalSGD | None = None
    prox: float = 0.0
    shift: Tensor | None = None
    snapshot: int | None = None
    average: bool = False
    start: Tensor | None = None
    work: MethodWork | None = None


def first_asked(calls: Sequence[Call]) -> Tensor:
    """Return the (k,) cohort of a round: the clients of its first kind of request, in one call or several."""
    first_kind = takewhile(lambda call: call.kind == calls[0].kind, calls)
    return torch.cat([torch.empty(0, dtype=torch.int64), *(call.cohort for call in first_kind)])


class Recording(WrappedFederation):
    """Passes every request on and stores it in ``calls``, oldest first.

    Args:
        fed: The wrapped federation.
    """

    def __init__(self, fed: Federation) -> None:
        super().__init__(fed)
        self.calls: list[Call] = []

    def of(self, kind: str) -> Sequence[Call]:
        """Return the calls of one kind."""
        return [call for call in self.calls if call.kind == kind]

    def take(self) -> list[Call]:
        """Return the calls so far and clear the record."""
        calls, self.calls = self.calls, []
        return calls

    def ask(self, request: Request[R]) -> R:
        """Send a request, and store it with its reply."""
        reply = self.fed.ask(request)
        # A request has the names of the fields of Call, so that new options are recorded too.
        self.calls.append(Call(kind=request.kind, answered=reply.clients, reply=reply, **vars(request)))
        return reply


class PermutedClients(WrappedFederation):
    """Client i here is client ``order[i]`` of the wrapped federation.

    Minibatches depend on a client's index: request full batches to compare the two federations.

    Args:
        fed: The wrapped federation.
        order: A permutation of 0…N−1.
    """

    def __init__(self, fed: Federation, order: Sequence[int]) -> None:
        super().__init__(fed)
        self.order = torch.tensor(order, dtype=torch.int64)
        # argsort inverts a permutation.
        self._back = self.order.argsort()
        self.shares = fed.shares[self.order]
        self.majority = None if fed.majority is None else fed.majority[self.order]
        self.names = tuple(fed.names[client] for client in order) if fed.names else ()

    def ask(self, request: Request[R]) -> R:
        """Send a request to the corresponding clients of the wrapped federation."""
        reply = self.fed.ask(replace(request, cohort=self.order[request.cohort]))
        return reply._replace(clients=self._back[reply.clients])

    def evaluate(self, w: Tensor) -> Evaluation:
        """Evaluate the clients, see :class:`drfl.federation.federation.Federation`."""
        score, loss, samples, others, sums, threshold = self.fed.evaluate(w)
        mixed = tuple(values[self.order] for values in others)
        counts = None if sums is None else sums[self.order]
        return Evaluation(score[self.order], loss[self.order], samples[self.order], mixed, counts, threshold)


class ConstantFederation(Federation):
    """N clients whose losses never change and whose local models are w + i, so that a round is almost free.

    Args:
        values: (N,) the losses, for any model.
        d: Number of parameters.
        start: Value of every entry of the initial model.
        model: The initial model, for client-side methods, instead of ``d`` and ``start``. Nothing is computed with it.
    """

    def __init__(
        self, values: Sequence[float] | Tensor, *, d: int = 2, start: float = 0.0, model: ClientModel | None = None
    ) -> None:
        self.values = torch.as_tensor(values, dtype=torch.float64)
        self.n = len(self.values)
        self.shares = torch.full((self.n,), 1 / self.n, dtype=torch.float64)
        w0 = torch.full((d,), start, dtype=torch.float64) if model is None else model.vector.double()
        self.w0, self.ledger = w0, Ledger()
        self.model = model

    def ask(self, request: Request[R]) -> R:
        """Return w + i as client i's model at every step, the constant losses, and gradients of 0."""
        cohort, w = request.cohort, request.w
        match request:
            case TrainRequest(snapshot=snapshot, average=average, work=work):
                models = w + cohort[:, None].to(w.dtype)
                reply = Replies(cohort, models, None if snapshot is None else models, models if average else None)
                if work is not None:
                    size = work.layout.message_size
                    messages = w.new_zeros(len(cohort), size) if size else None
                    reply = reply._replace(states=work.states, messages=messages)
            case LossRequest():
                reply = Losses(cohort, self.values[cohort])
            case _:
                reply = Gradients(cohort, torch.zeros(len(cohort), w.numel(), dtype=w.dtype), self.values[cohort])
        return cast("R", reply)

    def evaluate(self, w: Tensor) -> Evaluation:
        """Return accuracies from 0 to 1 in equal steps, and the constant losses."""
        accuracy = torch.linspace(0, 1, self.n, dtype=torch.float64)
        return Evaluation(accuracy, self.values, torch.ones(self.n, dtype=torch.int64))
