"""The interface between an algorithm at the server and the clients, wherever these run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation.client_table import ClientTable
from drfl.federation.requests import (
    GradientRequest,
    Gradients,
    Losses,
    LossRequest,
    Merged,
    R,
    Replies,
    Request,
    TrainRequest,
)
from drfl.federation.sampling import Cohort
from drfl.optim.local import LocalSGD
from drfl.task.metrics import ACCURACY, Metric

Part = Literal["test", "validation"]
"""Which of the clients' rows a model is tested on."""

SCALAR_BYTES = 8
"""What a loss report counts in the ledger: one float64."""


class Evaluation(NamedTuple):
    """How one model does on every client's test data; (N,) where nothing else is said.

    Args:
        score: The federation's score, float64; NaN where it is not defined on a client's rows.
        loss: Mean loss, float64.
        samples: Number of test samples, int64.
        others: The federation's other measures, in their order, float64.
        sums: (N, M, 5) float64 for each of the M measures, the score first, over the client's rows: of one that is a
            mean of x over rows [rows, Σ x, Σ x², 0, 0]; of a rate the same over the rows that count; of one that ranks
            rows [rows of the positive class, rows of the other, pairs of both in order with ties for half, Σ c², Σ d²],
            where c of a positive row and d of another is the number of its pairs in order; of others [rows, NaN, …].
            NaN where the model's outputs are not finite. None = nobody has counted. Without a measure that ranks rows
            the first three are enough.
        threshold: The log-odds above which rates call a row positive, chosen on validation rows; None = 0, which is
            probability 1/2, as no validation rows chose one.
    """

    score: Tensor
    loss: Tensor
    samples: Tensor
    others: tuple[Tensor, ...] = ()
    sums: Tensor | None = None
    threshold: float | None = None


@dataclass
class Ledger:
    """Communication and computation of a run so far.

    Args:
        bytes_down: Payload from the server to clients: models and shifts in their own type.
        bytes_up: Payload from clients to the server: models, snapshots, gradients, and 8 bytes a loss.
        messages: Requests sent to clients plus replies received.
        gradient_evaluations: Samples whose gradient was computed.
        loss_evaluations: Samples whose loss was computed without a gradient (evaluation on test data not counted).
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
        with self._set_back(self.totals()):
            yield

    @contextmanager
    def unsent(self) -> Iterator[None]:
        """Book the computation of the block, but no communication: for models that do not leave their client."""
        sent = self.totals()
        # The computation still counts; only the messages do not.
        del sent["gradient_evaluations"], sent["loss_evaluations"]
        with self._set_back(sent):
            yield

    @contextmanager
    def _set_back(self, before: Mapping[str, int]) -> Iterator[None]:
        try:
            yield
        finally:
            # Set back in place: wrappers and runs hold the same ledger.
            for name, value in before.items():
                setattr(self, name, value)


LARGE_TARGET = 100.0
"""Targets beyond are the likely reason if training fails, as outputs begin near 0."""


class Federation(ABC):
    """N clients as the server sees them. Clients keep no algorithm state; any of them may fail to answer.

    A cohort is a vector (k,) of distinct client indices. A request's key names the round's randomness: client i draws
    its samples from ``key.fold("client", i)``, whatever the backend.

    A subclass implements :meth:`ask` and :meth:`evaluate`, and :meth:`validate` where clients have validation rows;
    everything else is built on these.

    Attributes:
        n: Number of clients N.
        shares: (N,) float64: each client's share of the training samples, summing to 1.
        w0: (d,) the initial model.
        ledger: What has been sent and computed so far.
        majority: (N,) float64: the share of the most frequent class among each client's test rows, which is what a
            model scores that always says the same; None where targets are not class labels, or nobody knows.
        largest_target: The largest of the targets, less their sign; None where they are class labels, or nobody knows.
        measures: What :meth:`evaluate` measures, the score first.
        sizes: (N,) int64: training samples of each client; None = nobody knows, and local epochs are refused.
        table_dir: Folder for the files that hold the server's tables of client vectors; None = they are in memory.
        averaged: Whether :meth:`train` always asks for the mean of the local models too, as a run does that keeps the
            averaged solution.
    """

    n: int
    shares: Tensor
    w0: Tensor
    ledger: Ledger
    majority: Tensor | None = None
    largest_target: float | None = None
    measures: tuple[Metric, ...] = (ACCURACY,)
    sizes: Tensor | None = None
    table_dir: str | None = None
    averaged: bool = False

    def client_table(self) -> ClientTable:
        """(N, d) zeros, a row a client, for what an algorithm remembers of every client.

        Raises:
            InputError: If ``table_dir`` cannot be used.
        """
        return ClientTable.zeros(self.n, self.w0, self.table_dir)

    def target_advice(self) -> str:
        """The first thing to do if training fails and targets are large numbers; "" if they are not."""
        if self.largest_target is None or self.largest_target < LARGE_TARGET:
            return ""
        return f"standardise the targets, which reach {self.largest_target:.3g}, or "

    def data_digest(self) -> str:
        """What the clients' data are known by, hexadecimal digits; "" where they are not here."""
        return ""

    @abstractmethod
    def ask(self, request: Request[R]) -> R:
        """Send a request to its cohort; the reply has a row for each client that answered."""

    @abstractmethod
    def evaluate(self, w: Tensor) -> Evaluation:
        """Score, loss and other measures of w (d,) on every client's test data."""

    def evaluate_all(self, models: Sequence[Tensor]) -> list[Evaluation]:
        """The same of several models (d,)."""
        return [self.evaluate(w) for w in models]

    def evaluate_each(self, models: ClientTable, part: Part = "test") -> Evaluation:
        """The same of a model (d,) for each client, rows of ``models`` (N, d).

        Raises:
            InputError: If the clients' rows are not here, or have no such part.
        """
        raise InputError(
            "a model for each client can be tested in a simulation only: leave LocalOnly and FineTuned out",
            code="simulation-only",
        )

    def pooled(self) -> Federation:
        """One client that holds the training rows of all; its ledger is this one's.

        Raises:
            InputError: If the rows are not here.
        """
        raise InputError(
            "the clients' rows cannot be pooled, as they are not here: leave Pooled to simulations",
            code="simulation-only",
        )

    def validate(self, w: Tensor) -> Evaluation:
        """The same on every client's validation rows, which take no part in training.

        Raises:
            InputError: If the clients have none.
        """
        raise InputError(
            "these clients have no validation rows to select a model or to stop by: divide them as "
            "data.with_validation(0.2), or give --validation 0.2",
            code="no-validation",
            field="validation",
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
        """Ask for local steps; see :class:`drfl.federation.requests.TrainRequest`."""
        # The run decides about averages, so that algorithms need not know of them when they ask.
        return self.ask(TrainRequest(cohort, w, key, local, prox, shift, snapshot, average or self.averaged))

    def mean(
        self, D: Cohort, w: Tensor, local: LocalSGD, key: Key, *, prox: float = 0.0, snapshot: int | None = None
    ) -> tuple[Tensor, Merged | None]:
        """Ask for local steps whose models matter by their weighted mean alone, which a backend may sum piece by piece.

        Args:
            D: Whom to ask, and how much each counts, see :meth:`drfl.federation.sampling.Cohort.weights_of`.
            w: See :class:`drfl.federation.requests.TrainRequest`, as the others.
            local: The solver.
            key: The round's.
            prox: Weight of the pull towards w.
            snapshot: Step after which the mean is also wanted.

        Returns:
            Who answered (k',), and the mean of their models; None where that is nobody.
        """
        up = self.train(D.clients, w, local, key, prox=prox, snapshot=snapshot)
        if not up.clients.numel():
            return up.clients, None
        # The weights of the clients that answered sum to 1.
        a = D.weights_of(up.clients).to(w)
        return up.clients, up.merged(lambda w_i: a @ w_i)

    def losses(self, cohort: Tensor, w: Tensor, key: Key, *, batch: int | None = None) -> Losses:
        """Ask for loss reports; see :class:`drfl.federation.requests.LossRequest`."""
        return self.ask(LossRequest(cohort, w, key, batch))

    def gradients(self, cohort: Tensor, w: Tensor, key: Key, *, batch: int | None = None) -> Gradients:
        """Ask for gradients; see :class:`drfl.federation.requests.GradientRequest`."""
        return self.ask(GradientRequest(cohort, w, key, batch))


class WrappedFederation(Federation):
    """Behaves as the federation inside; a subclass overrides :meth:`ask`.

    Args:
        fed: The federation inside.
    """

    def __init__(self, fed: Federation) -> None:
        self.fed = fed
        # The very ledger of the federation inside: all wrappers book into one.
        self.n, self.shares, self.w0, self.ledger = fed.n, fed.shares, fed.w0, fed.ledger
        self.majority, self.measures, self.sizes = fed.majority, fed.measures, fed.sizes
        self.largest_target = fed.largest_target
        self.table_dir, self.averaged = fed.table_dir, fed.averaged

    def ask(self, request: Request[R]) -> R:
        """See :class:`drfl.federation.federation.Federation`."""
        return self.fed.ask(request)

    def evaluate(self, w: Tensor) -> Evaluation:
        """See :class:`drfl.federation.federation.Federation`."""
        return self.fed.evaluate(w)

    def validate(self, w: Tensor) -> Evaluation:
        """See :class:`drfl.federation.federation.Federation`."""
        return self.fed.validate(w)

    def evaluate_each(self, models: ClientTable, part: Part = "test") -> Evaluation:
        """See :class:`drfl.federation.federation.Federation`."""
        return self.fed.evaluate_each(models, part)

    def pooled(self) -> Federation:
        """See :class:`drfl.federation.federation.Federation`."""
        return self.fed.pooled()

    def data_digest(self) -> str:
        """See :class:`drfl.federation.federation.Federation`."""
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
class DataChecked(Protocol):
    """A federation that can check its clients' data.

    Attributes:
        names: (N,) of the clients, for messages.
    """

    names: tuple[str, ...]

    def data_warnings(self) -> tuple[str, ...]:
        """A sentence each, best a :class:`drfl.core.errors.Notice`, see :func:`drfl.data.checks.data_warnings`."""
        ...
