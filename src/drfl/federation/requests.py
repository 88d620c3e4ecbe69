"""Requests to clients and their replies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from drfl.core.key import Key
from drfl.federation.local_method import LocalMethod, MethodLayout
from drfl.optim.local import LocalSGD


class Replies(NamedTuple):
    """Local models of the k' ≤ k clients that answered. Row j belongs to ``clients[j]``, in any order.

    Args:
        clients: Distinct clients, int64 (k',).
        w: Models (k', d) after the last local step.
        snapshot: Models (k', d) after the requested step; None if none was requested.
        average: Means (k', d) of the models after steps 1…τ; None if not requested.
        states: New rows (k', s) of the client store; None if the request had none.
        messages: What a method sends besides models, flat (k', e); None if it sends nothing.
    """

    clients: Tensor
    w: Tensor
    snapshot: Tensor | None = None
    average: Tensor | None = None
    states: Tensor | None = None
    messages: Tensor | None = None

    @property
    def models(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Last models, snapshots and averages."""
        return self.w, self.snapshot, self.average

    def merged(self, merge: Callable[[Tensor], Tensor]) -> Merged:
        """Merge the last local models, the snapshots and the averages with the same function.

        The mean of the global models over the steps equals the merge of the local means if ``merge`` is affine. This
        holds for every weighted sum of models.

        Args:
            merge: Function of local models (k', d) that returns the global model (d,).
        """
        snapshot, average = (None if part is None else merge(part) for part in (self.snapshot, self.average))
        return Merged(merge(self.w), snapshot, average)


class Merged(NamedTuple):
    """Global models (d,) merged from local models.

    Args:
        w: Model after the last local step.
        snapshot: Model after the requested step; None if none was requested.
        average: Mean over the steps 1…τ; None if not requested.
    """

    w: Tensor
    snapshot: Tensor | None = None
    average: Tensor | None = None


class Losses(NamedTuple):
    """Losses reported by the k' clients that answered.

    Args:
        clients: Distinct clients, int64 (k',).
        values: Reported losses, float64 (k',).
    """

    clients: Tensor
    values: Tensor

    def unbiased(self, n: int, *, centred: bool = False) -> Tensor:
        """Return v (N,) with v_i = (N/k')·ℓ_i for clients that answered and 0 for others (DRFA, Algorithm 1, line 16).

        If the clients that answered are a uniform sample, E[v] is the vector of all clients' losses. If no client
        answered, v is 0.

        Args:
            n: Number of clients N.
            centred: If at least two clients answered, first subtract the mean of the reported losses and multiply by
                k'/(k'−1)·(N−1)/N. Then E[v] is the vector of losses minus their mean.
        """
        v = torch.zeros(n, dtype=torch.float64)
        v[self.clients] = self.scaled(n, centred=centred)
        return v

    def scaled(self, n: int, *, centred: bool = False) -> Tensor:
        """Return the entries (k',) of :meth:`unbiased` for the clients that answered, with the same arguments."""
        k = self.clients.numel()
        if centred and k > 1:
            # The dual update does not depend on a constant added to all losses, so centring only lowers the variance.
            # A single reply is not centred, because it would become 0.
            return (n - 1) / (k - 1) * (self.values - self.values.mean())
        # Divide by the number of clients that answered, not by the size of the cohort. Then E[v] stays correct if
        # dropout is independent of the data.
        return n / max(k, 1) * self.values


class Gradients(NamedTuple):
    """Gradients of the k' clients that answered, all at the same model.

    Args:
        clients: Distinct clients, int64 (k',).
        values: Gradients (k', d).
        losses: Losses at the same model on the same samples, float64 (k',).
    """

    clients: Tensor
    values: Tensor
    losses: Tensor


R = TypeVar("R", Replies, Losses, Gradients)


# Requests have eq=False, because tensors compare elementwise and a dataclass's == would raise an error.
@dataclass(frozen=True, eq=False)
class Request(ABC, Generic[R]):
    """A request of a :class:`drfl.federation.federation.Federation` to a cohort.

    Args:
        cohort: Clients to ask, (k,).
        w: Model (d,) to send.
        key: Key of the request.
    """

    kind: ClassVar[str]
    cohort: Tensor
    w: Tensor
    key: Key

    @abstractmethod
    def empty_reply(self) -> R:
        """Create a reply without clients, whose parts have the shapes and types of a full reply but no rows."""

    @property
    def vectors(self) -> int:
        """Number of vectors (d,) sent to each client."""
        return 1

    @property
    def sent_numbers(self) -> int:
        """Numbers that each client needs and does not have, for the ledger."""
        return self.vectors * self.w.numel()

    def only(self, rows: Tensor) -> Self:
        """Return the request for a part of the cohort, selected by positions (k',) or a mask (k,)."""
        return replace(self, cohort=self.cohort[rows])


@dataclass(frozen=True, eq=False)
class MethodWork:
    """The work of a client-side method in a request to train, see :class:`drfl.federation.local_method.LocalMethod`.

    Args:
        method: The method.
        layout: Its tensors.
        states: (k, s) rows of the client store, row j for ``cohort[j]``; None if the clients store nothing.
        context: Tensors for all clients, by name.
        per_client: Tensors (k, …) by name, row j for ``cohort[j]``.
    """

    method: LocalMethod
    layout: MethodLayout
    states: Tensor | None = None
    context: Mapping[str, Tensor] = field(default_factory=dict)
    per_client: Mapping[str, Tensor] = field(default_factory=dict)

    def only(self, rows: Tensor) -> MethodWork:
        """Return the work of a part of the cohort."""
        states = None if self.states is None else self.states[rows]
        return replace(self, states=states, per_client={name: each[rows] for name, each in self.per_client.items()})

    @property
    def sent_numbers(self) -> int:
        """Numbers sent to each client besides the model. The state is not sent, because the client has it."""
        shared = sum(value.numel() for value in self.context.values())
        return shared + sum(value[:1].numel() for value in self.per_client.values())


@dataclass(frozen=True, eq=False)
class TrainRequest(Request[Replies]):
    """Request for local steps u ← Π_W(u − η(∇ℓ(u) + shift_i + prox·(u − w))) from u = w at each client of the cohort.

    Args:
        cohort: Clients to ask, (k,).
        w: Initial model (d,) of the local steps.
        key: Key of the round for minibatches.
        local: Local solver.
        prox: Weight of the proximal term, which pulls u towards w.
        shift: Constant vectors (k, d) added to the directions, row j for ``cohort[j]``; None = 0.
        snapshot: Step in 1…τ after which the local model is also returned; None = no snapshot.
        average: Whether the mean of the local models after steps 1…τ is also returned.
        start: Models (k, d) from which the clients start instead of w, row j for ``cohort[j]``; None = w.
        work: Work of a client-side method, whose loss replaces ℓ; None = the task's loss.
    """

    kind: ClassVar[str] = "train"
    local: LocalSGD
    prox: float = 0.0
    shift: Tensor | None = None
    snapshot: int | None = None
    average: bool = False
    start: Tensor | None = None
    work: MethodWork | None = None

    def empty_reply(self) -> Replies:
        """Create a reply without clients: models (0, d), and the requested snapshot and average."""
        w, work = self.w.new_empty(0, self.w.numel()), self.work
        states = None if work is None or work.states is None else work.states[:0]
        size = 0 if work is None else work.layout.message_size
        messages = self.w.new_empty(0, size) if size else None
        return Replies(
            _no_clients(), w, None if self.snapshot is None else w, w if self.average else None, states, messages
        )

    @property
    def vectors(self) -> int:
        """Number of vectors sent: the model, and the shift and the start model if there are any."""
        return 1 + (self.shift is not None) + (self.start is not None)

    @property
    def sent_numbers(self) -> int:
        """See :class:`Request`. Clients have their private parameters, whose start values belong to the set-up."""
        if self.work is None:
            return super().sent_numbers
        private = int(self.work.layout.private.sum())
        return super().sent_numbers - self.vectors * private + self.work.sent_numbers

    def only(self, rows: Tensor) -> Self:
        """Return the request for a part of the cohort, with its rows of all tables."""
        # Row j of a table belongs to cohort[j], so all are selected together.
        shift, start = (None if table is None else table[rows] for table in (self.shift, self.start))
        work = None if self.work is None else self.work.only(rows)
        return replace(super().only(rows), shift=shift, start=start, work=work)


@dataclass(frozen=True, eq=False)
class LossRequest(Request[Losses]):
    """Request for the loss at w (d,) on a new minibatch of each client; ``batch`` None = all its training data."""

    kind: ClassVar[str] = "losses"
    batch: int | None = None

    def empty_reply(self) -> Losses:
        """Create a reply without clients: values (0,)."""
        return Losses(_no_clients(), torch.empty(0, dtype=torch.float64))


@dataclass(frozen=True, eq=False)
class GradientRequest(Request[Gradients]):
    """Request for the gradient at w (d,) on a new minibatch of each client; ``batch`` None = all its training data."""

    kind: ClassVar[str] = "gradients"
    batch: int | None = None

    def empty_reply(self) -> Gradients:
        """Create a reply without clients: values (0, d) and losses (0,)."""
        return Gradients(_no_clients(), self.w.new_empty(0, self.w.numel()), torch.empty(0, dtype=torch.float64))


def select_rows(reply: R, rows: Tensor) -> R:
    """Select rows of a reply by positions (k'',) in any order, or by a mask (k',)."""
    # Clients and their vectors belong together, so all parts have the same rows.
    return reply._make(None if part is None else part[rows] for part in reply)


def reports_of(reply: R) -> Losses | None:
    """Return the reported losses of a reply; None for a reply with models."""
    if isinstance(reply, Replies):
        return None
    return reply if isinstance(reply, Losses) else Losses(reply.clients, reply.losses)


def with_reports(reply: R, values: Tensor) -> R:
    """Replace the losses (k',) of a reply. A reply with models has none and is returned unchanged."""
    if isinstance(reply, Losses):
        return reply._replace(values=values)
    return reply._replace(losses=values) if isinstance(reply, Gradients) else reply


def _no_clients() -> Tensor:
    return torch.empty(0, dtype=torch.int64)
