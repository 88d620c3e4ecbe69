"""The interface between an algorithm at the server and the clients, wherever these run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Generic, Literal, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

from drfl.client_table import ClientTable
from drfl.errors import InputError
from drfl.key import Key
from drfl.local import LocalSGD
from drfl.metrics import ACCURACY, Metric

Part = Literal["test", "validation"]
"""Which of the clients' rows a model is tested on."""

SCALAR_BYTES = 8
"""What a loss report counts in the ledger: one float64."""


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
        w: after the last local step.
        snapshot: after the asked-for step; None where none was asked for.
        average: mean over the steps 1…τ; None where not asked for.
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
            centred: subtract the mean of the reports first, where there are two or more, and multiply by
                k'/(k'−1)·(N−1)/N: then E[v] is the vector of losses less their mean.
        """
        v, k = torch.zeros(n, dtype=torch.float64), self.clients.numel()
        if centred and k > 1:
            v[self.clients] = (n - 1) / (k - 1) * (self.values - self.values.mean())
        elif k:
            # Over those who answered, not those who were asked: E[v] stays right where dropout is independent of the
            # data.
            v[self.clients] = n / k * self.values
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
        score: the federation's score, float64; NaN where it is not defined on a client's rows.
        loss: mean loss, float64.
        samples: number of test samples, int64.
        others: the federation's other measures, in their order, float64.
    """

    score: Tensor
    loss: Tensor
    samples: Tensor
    others: tuple[Tensor, ...] = ()


@dataclass
class Ledger:
    """Communication and computation of a run so far.

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
        """Add the counters of another ledger."""
        for name, value in other.totals().items():
            setattr(self, name, getattr(self, name) + value)

    def totals(self) -> dict[str, int]:
        """All counters by name."""
        return asdict(self)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Book nothing within the block: for evaluations, which are no part of the algorithm."""
        before = self.totals()
        try:
            yield
        finally:
            # Set back in place: wrappers and runs hold the same ledger.
            for name, value in before.items():
                setattr(self, name, value)


R = TypeVar("R", Replies, Losses, Gradients)


# eq=False, here and below: tensors compare entry by entry, so that a dataclass's == would raise.
@dataclass(frozen=True, eq=False)
class Request(ABC, Generic[R]):
    """What :class:`drfl.federation.Federation` can ask a cohort, as one object.

    Args:
        cohort: (k,) clients to ask.
        w: (d,) the model that is sent.
        key: of the request.
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
        key: the round's key for minibatches.
        local: the solver.
        prox: weight of the pull towards w.
        shift: (k, d) constant added to each direction, row j for ``cohort[j]``.
        snapshot: step in 1…τ after which the local model is also wanted.
        average: whether the mean of the local models after steps 1…τ is also wanted.
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
    """Mean loss at w (d,) on a fresh minibatch of each client of the cohort; ``batch`` None = all its training data."""

    kind: ClassVar[str] = "losses"
    batch: int | None = None

    def nobody(self) -> Losses:
        """Values (0,)."""
        return Losses(_nobody(), torch.empty(0, dtype=torch.float64))


@dataclass(frozen=True, eq=False)
class GradientRequest(Request[Gradients]):
    """Mean gradient at w (d,) on a fresh minibatch of each client; ``batch`` None = all its training data."""

    kind: ClassVar[str] = "gradients"
    batch: int | None = None

    def nobody(self) -> Gradients:
        """Values (0, d) and losses (0,)."""
        return Gradients(_nobody(), self.w.new_empty(0, self.w.numel()), torch.empty(0, dtype=torch.float64))


class Federation(ABC):
    """N clients as the server sees them. Clients keep no algorithm state; any of them may fail to answer.

    A cohort is a vector (k,) of distinct client indices. A request's key names the round's randomness: client i draws
    its samples from ``key.fold("client", i)``, whatever the backend.

    A subclass implements :meth:`ask` and :meth:`evaluate`, and :meth:`validate` where clients have validation rows;
    everything else is built on these.

    Attributes:
        n: number of clients N.
        shares: (N,) float64: each client's share of the training samples, summing to 1.
        w0: (d,) the initial model.
        ledger: what has been sent and computed so far.
        majority: (N,) float64: the share of the most frequent class among each client's test rows, which is what a
            model scores that always says the same; None where targets are not class labels, or nobody knows.
        measures: what :meth:`evaluate` measures, the score first.
        sizes: (N,) int64: training samples of each client; None = nobody knows, and local epochs are refused.
        table_dir: folder for the files that hold the server's tables of client vectors; None = they are in memory.
        averaged: whether :meth:`train` always asks for the mean of the local models too, as a run does that keeps the
            averaged solution.
    """

    n: int
    shares: Tensor
    w0: Tensor
    ledger: Ledger
    majority: Tensor | None = None
    measures: tuple[Metric, ...] = (ACCURACY,)
    sizes: Tensor | None = None
    table_dir: str | None = None
    averaged: bool = False

    def client_table(self) -> ClientTable:
        """(N, d) zeros, a row a client, for what an algorithm remembers of every client.

        Raises:
            InputError: ``table_dir`` cannot be used.
        """
        return ClientTable.zeros(self.n, self.w0, self.table_dir)

    def data_digest(self) -> str:
        """What the clients' data are known by, hexadecimal digits; "" where they are not here."""
        return ""

    @abstractmethod
    def ask(self, request: Request[R]) -> R:
        """Send a request to its cohort; the reply has a row for each client that answered."""

    @abstractmethod
    def evaluate(self, w: Tensor) -> Evaluation:
        """Score, loss and other measures of w (d,) on every client's test data."""

    def evaluate_each(self, models: ClientTable, part: Part = "test") -> Evaluation:
        """The same of a model (d,) for each client, rows of ``models`` (N, d).

        Raises:
            InputError: the clients' rows are not here, or have no such part.
        """
        raise InputError(
            "a model for each client can be tested in a simulation only: leave LocalOnly and FineTuned out"
        )

    def pooled(self) -> Federation:
        """One client that holds the training rows of all; its ledger is this one's.

        Raises:
            InputError: the rows are not here.
        """
        raise InputError("the clients' rows cannot be pooled, as they are not here: leave Pooled to simulations")

    def validate(self, w: Tensor) -> Evaluation:
        """The same on every client's validation rows, which take no part in training.

        Raises:
            InputError: the clients have none.
        """
        raise InputError(
            "these clients have no validation rows to select a model by: divide them as data.with_validation(0.2), or "
            "give --validation 0.2"
        )

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
        """Ask for local steps; see :class:`TrainRequest`."""
        # The run decides about averages, so that algorithms need not know of them when they ask.
        return self.ask(TrainRequest(cohort, w, key, local, prox, shift, snapshot, average or self.averaged))

    def losses(self, cohort: Tensor, w: Tensor, key: Key, *, batch: int | None = None) -> Losses:
        """Ask for loss reports; see :class:`LossRequest`."""
        return self.ask(LossRequest(cohort, w, key, batch))

    def gradients(self, cohort: Tensor, w: Tensor, key: Key, *, batch: int | None = None) -> Gradients:
        """Ask for gradients; see :class:`GradientRequest`."""
        return self.ask(GradientRequest(cohort, w, key, batch))


class WrappedFederation(Federation):
    """Behaves as the federation inside; a subclass overrides :meth:`ask`.

    Args:
        fed: the federation inside.
    """

    def __init__(self, fed: Federation) -> None:
        self.fed = fed
        # The very ledger of the federation inside: all wrappers book into one.
        self.n, self.shares, self.w0, self.ledger = fed.n, fed.shares, fed.w0, fed.ledger
        self.majority, self.measures, self.sizes = fed.majority, fed.measures, fed.sizes
        self.table_dir, self.averaged = fed.table_dir, fed.averaged

    def ask(self, request: Request[R]) -> R:
        """See :class:`drfl.federation.Federation`."""
        return self.fed.ask(request)

    def evaluate(self, w: Tensor) -> Evaluation:
        """See :class:`drfl.federation.Federation`."""
        return self.fed.evaluate(w)

    def validate(self, w: Tensor) -> Evaluation:
        """See :class:`drfl.federation.Federation`."""
        return self.fed.validate(w)

    def evaluate_each(self, models: ClientTable, part: Part = "test") -> Evaluation:
        """See :class:`drfl.federation.Federation`."""
        return self.fed.evaluate_each(models, part)

    def pooled(self) -> Federation:
        """See :class:`drfl.federation.Federation`."""
        return self.fed.pooled()

    def data_digest(self) -> str:
        """See :class:`drfl.federation.Federation`."""
        return self.fed.data_digest()


@runtime_checkable
class Bundling(Protocol):
    """A federation that can send tests of models and the request after them in one message."""

    def evaluate_later(self, models: Sequence[Tensor]) -> Callable[[], list[Evaluation]]:
        """Test models (d,) on every client's test data along with the next request, which sends the first of them.

        Returns:
            What gives the results; called before there was a request, it sends the tests alone.
        """
        ...


@runtime_checkable
class Doubtful(Protocol):
    """A federation that knows its clients' data, and what is to be doubted of them."""

    def doubts(self) -> tuple[str, ...]:
        """A sentence each, see :func:`drfl.data.checks.doubts`."""
        ...


def answers(reply: R, rows: Tensor) -> R:
    """Some rows of a reply: (k'',) positions in any order, or (k',) bool."""
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
