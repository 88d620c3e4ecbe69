"""What clients are asked, and what they answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from drfl.core.key import Key
from drfl.optim.local import LocalSGD


class Replies(NamedTuple):
    """Local models of the k' ≤ k clients that answered, row j belonging to ``clients[j]``, in any order.

    Args:
        clients: (k',) int64, distinct.
        w: (k', d) models after the last local step.
        snapshot: (k', d) models after the asked-for step; None where none was asked for.
        average: (k', d) means of the models after steps 1…τ; None where not asked for.
    """

    clients: Tensor
    w: Tensor
    snapshot: Tensor | None = None
    average: Tensor | None = None

    def merged(self, merge: Callable[[Tensor], Tensor]) -> Merged:
        """Apply an algorithm's merge of local models to the last ones, the snapshots and the averages alike.

        The mean of the global models over the steps is the merge of the means of the local ones as long as ``merge``
        is affine, which all merges are that sum models with weights.

        Args:
            merge: (k', d) local models → (d,) the merged global model.
        """
        snapshot, average = (None if part is None else merge(part) for part in (self.snapshot, self.average))
        return Merged(merge(self.w), snapshot, average)


class Merged(NamedTuple):
    """Global models merged from local models; all (d,).

    Args:
        w: After the last local step.
        snapshot: After the asked-for step; None where none was asked for.
        average: Mean over the steps 1…τ; None where not asked for.
    """

    w: Tensor
    snapshot: Tensor | None = None
    average: Tensor | None = None


class Losses(NamedTuple):
    """Losses reported by the k' clients that answered.

    Args:
        clients: (k',) int64, distinct.
        values: (k',) float64.
    """

    clients: Tensor
    values: Tensor

    def unbiased(self, n: int, *, centred: bool = False) -> Tensor:
        """v (N,) with v_i = (N/k')·ℓ_i for those who answered, else 0 (DRFA, Algorithm 1, line 16).

        E[v] is the vector of all clients' losses when those who answer are a uniform sample. Nobody: zeros.

        Args:
            n: N.
            centred: Subtract the mean of the reports first, where there are two or more, and multiply by
                k'/(k'−1)·(N−1)/N: then E[v] is the vector of losses less their mean.
        """
        v = torch.zeros(n, dtype=torch.float64)
        v[self.clients] = self.scaled(n, centred=centred)
        return v

    def scaled(self, n: int, *, centred: bool = False) -> Tensor:
        """The entries (k',) of :meth:`unbiased` for those who answered; arguments as there."""
        k = self.clients.numel()
        if centred and k > 1:
            # The dual update ignores a constant added to all losses, so centring lowers the variance. A single reply
            # would become 0.
            return (n - 1) / (k - 1) * (self.values - self.values.mean())
        # Over those who answered, not those who were asked: E[v] stays right where dropout is independent of the data.
        return n / max(k, 1) * self.values


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


R = TypeVar("R", Replies, Losses, Gradients)


# eq=False, here and below: tensors compare entry by entry, so that a dataclass's == would raise.
@dataclass(frozen=True, eq=False)
class Request(ABC, Generic[R]):
    """What :class:`drfl.federation.federation.Federation` can ask a cohort, as one object.

    Args:
        cohort: (k,) clients to ask.
        w: (d,) the model that is sent.
        key: Of the request.
    """

    kind: ClassVar[str]
    cohort: Tensor
    w: Tensor
    key: Key

    @abstractmethod
    def nobody(self) -> R:
        """An empty reply: its parts have no rows, and the shapes and types of a full one."""

    @property
    def vectors(self) -> int:
        """How many vectors (d,) it sends to each client."""
        return 1

    def only(self, rows: Tensor) -> Self:
        """The same to some of the cohort: rows (k',) of positions in it, or (k,) bool."""
        return replace(self, cohort=self.cohort[rows])


@dataclass(frozen=True, eq=False)
class TrainRequest(Request[Replies]):
    """Local steps u ← Π_W(u − η(∇ℓ(u) + shift_i + prox·(u − w))) from u = w at each client of the cohort.

    Args:
        cohort: (k,) clients to ask.
        w: (d,) where they start.
        key: The round's key for minibatches.
        local: The solver.
        prox: Weight of the pull towards w.
        shift: (k, d) constant added to each direction, row j for ``cohort[j]``.
        snapshot: Step in 1…τ after which the local model is also wanted.
        average: Whether the mean of the local models after steps 1…τ is also wanted.
    """

    kind: ClassVar[str] = "train"
    local: LocalSGD
    prox: float = 0.0
    shift: Tensor | None = None
    snapshot: int | None = None
    average: bool = False

    def nobody(self) -> Replies:
        """Models (0, d), and what else was asked for."""
        w = self.w.new_empty(0, self.w.numel())
        return Replies(_nobody(), w, None if self.snapshot is None else w, w if self.average else None)

    @property
    def vectors(self) -> int:
        """The model, and the shift where there is one."""
        return 1 if self.shift is None else 2

    def only(self, rows: Tensor) -> Self:
        """The same to some of the cohort, with their shifts."""
        return replace(super().only(rows), shift=None if self.shift is None else self.shift[rows])


@dataclass(frozen=True, eq=False)
class LossRequest(Request[Losses]):
    """Loss at w (d,) on a fresh minibatch of each client of the cohort; ``batch`` None = all its training data."""

    kind: ClassVar[str] = "losses"
    batch: int | None = None

    def nobody(self) -> Losses:
        """Values (0,)."""
        return Losses(_nobody(), torch.empty(0, dtype=torch.float64))


@dataclass(frozen=True, eq=False)
class GradientRequest(Request[Gradients]):
    """Gradient at w (d,) on a fresh minibatch of each client; ``batch`` None = all its training data."""

    kind: ClassVar[str] = "gradients"
    batch: int | None = None

    def nobody(self) -> Gradients:
        """Values (0, d) and losses (0,)."""
        return Gradients(_nobody(), self.w.new_empty(0, self.w.numel()), torch.empty(0, dtype=torch.float64))


def answers(reply: R, rows: Tensor) -> R:
    """Some rows of a reply: (k'',) positions in any order, or (k',) bool."""
    # All parts take the same rows, as clients and their vectors belong together.
    return reply._make(None if part is None else part[rows] for part in reply)


def reports_of(reply: R) -> Losses | None:
    """The clients and losses (k',) that a reply reports; None for models."""
    if isinstance(reply, Replies):
        return None
    return reply if isinstance(reply, Losses) else Losses(reply.clients, reply.losses)


def with_reports(reply: R, values: Tensor) -> R:
    """The reply with other losses (k',); models stay as they are."""
    if isinstance(reply, Losses):
        return reply._replace(values=values)
    return reply._replace(losses=values) if isinstance(reply, Gradients) else reply


def _nobody() -> Tensor:
    return torch.empty(0, dtype=torch.int64)
