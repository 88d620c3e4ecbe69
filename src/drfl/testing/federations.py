"""Federations for tests: with client dropout, recorded, with permuted clients, and with constant replies."""

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
from drfl.federation.requests import Gradients, Losses, LossRequest, R, Replies, Request, TrainRequest, answers
from drfl.optim.local import LocalSGD


class DropoutFederation(WrappedFederation):
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

    def ask(self, request: Request[R]) -> R:
        """Send a request, and lose the replies of the silent."""
        reply = self.fed.ask(request)
        kept = [j for j, i in enumerate(reply.clients.tolist()) if i not in self.silent[request.kind]]
        # Shuffled: an algorithm must match answers by client, not by position.
        order = kept if self._rng is None else self._rng.permutation(kept)
        return answers(reply, torch.tensor(order, dtype=torch.int64))


@dataclass(frozen=True, eq=False)
class Call:
    """One request to a cohort and its answer; what a kind of request does not have is None.

    Args:
        kind: ``"train"``, ``"losses"`` or ``"gradients"``.
        cohort: (k,) who was asked.
        answered: (k',) who answered.
        w: (d,) the model that was sent.
        key: of the request.
        reply: the whole answer.
        batch: samples per loss report or gradient.
        local: the solver.
        prox: weight of the pull towards w.
        shift: (k, d) constants added to the directions.
        snapshot: step of the snapshot that was asked for.
        average: whether the mean over the local steps was asked for.
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


def first_asked(calls: Sequence[Call]) -> Tensor:
    """(k,) the cohort of a round: all clients that its first kind of request went to, in one call or in several."""
    alike = takewhile(lambda call: call.kind == calls[0].kind, calls)
    return torch.cat([torch.empty(0, dtype=torch.int64), *(call.cohort for call in alike)])


class Recording(WrappedFederation):
    """Passes every request on and keeps it in ``calls``, oldest first.

    Args:
        fed: the federation inside.
    """

    def __init__(self, fed: Federation) -> None:
        super().__init__(fed)
        self.calls: list[Call] = []

    def of(self, kind: str) -> Sequence[Call]:
        """The calls of one kind."""
        return [call for call in self.calls if call.kind == kind]

    def take(self) -> list[Call]:
        """The calls so far, which are then forgotten."""
        calls, self.calls = self.calls, []
        return calls

    def ask(self, request: Request[R]) -> R:
        """Send a request, and keep it with its reply."""
        reply = self.fed.ask(request)
        self.calls.append(Call(kind=request.kind, answered=reply.clients, reply=reply, **vars(request)))
        return reply


class PermutedClients(WrappedFederation):
    """Client i here is client ``order[i]`` of the federation inside.

    Minibatches belong to names: ask for full batches where the two are to be compared.

    Args:
        fed: the federation inside.
        order: a permutation of 0…N−1.
    """

    def __init__(self, fed: Federation, order: Sequence[int]) -> None:
        super().__init__(fed)
        self.order = torch.tensor(order, dtype=torch.int64)
        # argsort inverts a permutation.
        self._back = self.order.argsort()
        self.shares = fed.shares[self.order]
        self.majority = None if fed.majority is None else fed.majority[self.order]

    def ask(self, request: Request[R]) -> R:
        """Send a request to those who are meant."""
        reply = self.fed.ask(replace(request, cohort=self.order[request.cohort]))
        return reply._replace(clients=self._back[reply.clients])

    def evaluate(self, w: Tensor) -> Evaluation:
        """See :class:`drfl.federation.federation.Federation`."""
        score, loss, samples, others, sums, threshold = self.fed.evaluate(w)
        mixed = tuple(values[self.order] for values in others)
        counts = None if sums is None else sums[self.order]
        return Evaluation(score[self.order], loss[self.order], samples[self.order], mixed, counts, threshold)


class ConstantFederation(Federation):
    """N clients whose losses never change and whose local models are w + i: a round costs next to nothing.

    Args:
        values: (N,) the losses, whatever the model.
        d: number of parameters.
        start: every entry of the initial model.
    """

    def __init__(self, values: Sequence[float] | Tensor, *, d: int = 2, start: float = 0.0) -> None:
        self.values = torch.as_tensor(values, dtype=torch.float64)
        self.n = len(self.values)
        self.shares = torch.full((self.n,), 1 / self.n, dtype=torch.float64)
        self.w0, self.ledger = torch.full((d,), start, dtype=torch.float64), Ledger()

    def ask(self, request: Request[R]) -> R:
        """Client i's model is w + i at every step; the given losses; gradients of 0."""
        cohort, w = request.cohort, request.w
        match request:
            case TrainRequest(snapshot=snapshot, average=average):
                models = w + cohort[:, None].to(w.dtype)
                reply = Replies(cohort, models, None if snapshot is None else models, models if average else None)
            case LossRequest():
                reply = Losses(cohort, self.values[cohort])
            case _:
                reply = Gradients(cohort, torch.zeros(len(cohort), w.numel(), dtype=w.dtype), self.values[cohort])
        return cast("R", reply)

    def evaluate(self, w: Tensor) -> Evaluation:
        """Accuracies from 0 to 1 in equal steps, and the given losses."""
        accuracy = torch.linspace(0, 1, self.n, dtype=torch.float64)
        return Evaluation(accuracy, self.values, torch.ones(self.n, dtype=torch.int64))
