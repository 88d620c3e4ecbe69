"""The federation: the interface between the server's algorithm and the clients, independent of the backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from drfl.core.errors import InputError, Notice, listing
from drfl.core.html_table import MOST, html_table
from drfl.core.key import Key
from drfl.federation.client_table import ClientTable
from drfl.federation.local_method import LocalMethod, MethodLayout, OwnModels
from drfl.federation.requests import (
    GradientRequest,
    Gradients,
    Losses,
    LossRequest,
    Merged,
    MethodWork,
    R,
    Replies,
    Request,
    TrainRequest,
)
from drfl.federation.sampling import Cohort
from drfl.optim.local import LocalSGD
from drfl.task.client_model import ClientModel
from drfl.task.metrics import ACCURACY, Metric

Q = TypeVar("Q", bound=Request[Any])

Part = Literal["test", "validation"]
"""The rows on which a model is evaluated."""

SCALAR_BYTES = 8
"""Size of a reported loss in the ledger: one float64."""


class Evaluation(NamedTuple):
    """The results of one model on every client's test data. Unless stated otherwise, tensors have shape (N,).

    Args:
        score: Score, float64; NaN if it is undefined on a client's rows.
        loss: Mean loss, float64.
        samples: Number of test samples, int64.
        others: The federation's other metrics, in their order, float64.
        sums: Sums over each client's rows for each of the M metrics, score first, float64 (N, M, 5). For a mean of x
            over rows, they are [rows, Σ x, Σ x², k, 0], with k the rows of the patient with the most rows, or 0 if rows
            are independent; for a rate, the same over the rows that count. For a metric
            that ranks rows, they are [positive rows, negative rows, pairs in order with half a pair for a tie, Σ c²,
            Σ d²], with c and d the numbers of ordered pairs of a positive and of a negative row. For other metrics,
            they are [rows, NaN, …]. They are NaN if outputs are not finite. None = not computed. If no metric ranks
            rows, the first three columns are enough.
        threshold: Log-odds above which rates count a row as positive, chosen on validation rows; None = 0, that is,
            probability 1/2.
    """

    score: Tensor
    loss: Tensor
    samples: Tensor
    others: tuple[Tensor, ...] = ()
    sums: Tensor | None = None
    threshold: float | None = None

    def __repr__(self) -> str:
        known = self.score[~self.score.isnan()]
        ends = f"{float(known.min()):.3f} to {float(known.max()):.3f}" if known.numel() else "undefined"
        return f"<Evaluation of {len(self.score)} clients: score {ends}, mean loss {float(self.loss.mean()):.3f}>"

    def _repr_html_(self) -> str:
        import pandas as pd

        order = self.loss.argsort(descending=True)[:MOST].tolist()
        columns = {"score": self.score, "loss": self.loss, "samples": self.samples}
        rows = {"client": order, **{name: values[order].tolist() for name, values in columns.items()}}
        return html_table(repr(self), pd.DataFrame(rows), len(self.score) - MOST)


@dataclass
class Ledger:
    """Counters of the communication and computation of a run.

    Args:
        bytes_down: Payload in bytes from the server to clients: models without private parameters, shifts, and tensors
            of client-side methods.
        bytes_up: Payload in bytes from clients to the server: models without private parameters, snapshots, gradients,
            messages of client-side methods, and 8 bytes per loss.
        messages: Number of requests sent to clients plus replies received.
        gradient_evaluations: Number of samples whose gradient was computed.
        loss_evaluations: Number of samples whose loss was computed without a gradient, except in evaluations.
    """

    bytes_down: int = 0
    bytes_up: int = 0
    messages: int = 0
    gradient_evaluations: int = 0
    loss_evaluations: int = 0

    def down(self, clients: int, nbytes: int) -> None:
        """Count one request with a payload of ``nbytes`` to each client."""
        self.bytes_down += clients * nbytes
        self.messages += clients

    def up(self, clients: int, nbytes: int) -> None:
        """Count one reply with a payload of ``nbytes`` from each client."""
        self.bytes_up += clients * nbytes
        self.messages += clients

    def add(self, other: Ledger) -> None:
        """Add the counters of another ledger."""
        for name, value in other.totals().items():
            setattr(self, name, getattr(self, name) + value)

    def totals(self) -> dict[str, int]:
        """Return all counters by name."""
        return asdict(self)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing in the block, for evaluations that are not part of the algorithm."""
        with self._restored(self.totals()):
            yield

    @contextmanager
    def unsent(self) -> Iterator[None]:
        """Count only the computation in the block, for models that do not leave their client."""
        counters = self.totals()
        # The counters of computation are not restored.
        del counters["gradient_evaluations"], counters["loss_evaluations"]
        with self._restored(counters):
            yield

    @contextmanager
    def _restored(self, before: Mapping[str, int]) -> Iterator[None]:
        try:
            yield
        finally:
            # Restore in place, because wrappers and runs share this ledger.
            for name, value in before.items():
                setattr(self, name, value)


def called(names: Sequence[str], *clients: int) -> str:
    """Return clients' names in messages: "client 'North'", or "clients 3, 5, 7 and 2 more clients" without names."""
    texts = [f"'{names[client]}'" if 0 <= client < len(names) else str(client) for client in clients]
    return f"client{'s' * (len(texts) != 1)} {listing(texts, 'client')}"


LARGE_TARGET = 100.0
"""Targets above this size are the likely reason for failed training, because outputs begin near 0."""


class Federation(ABC):
    """N clients as seen by the server. Clients have no algorithm state, and any of them may fail to answer.

    A cohort is a vector (k,) of distinct client indices. The key of a request determines the randomness of the round:
    client i draws its samples from ``key.fold("client", i)`` with any backend.

    A subclass implements :meth:`ask` and :meth:`evaluate`, and :meth:`validate` if the clients have validation rows.
    All other methods are based on these.

    Attributes:
        n: Number of clients N.
        shares: Each client's share of the training samples, summing to 1, float64 (N,).
        w0: Initial model (d,). Each access returns a copy, so that changes in place do not affect later runs.
        ledger: Counters of communication and computation.
        majority: Share of the most frequent class among each client's test rows, float64 (N,), which is the accuracy of
            a constant prediction. None if targets are not class labels or unknown.
        largest_target: Largest absolute value of the targets; None if they are class labels or unknown.
        raw_columns: Whether inputs are known to be rows of columns that drfl did not standardise.
        measures: Metrics that :meth:`evaluate` computes, score first.
        sizes: Number of training samples of each client, int64 (N,); None = unknown, and local epochs are rejected.
        table_dir: Folder for the files of the server's tables of client vectors; None = the tables are in memory.
        averaged: Whether :meth:`train` always asks for the mean of the local models too, which a run needs for the
            averaged solution.
        model: The initial model, whose structure client-side methods need; None if the server does not know it.
        names: Names of the N clients, for messages; () = they have none.
        start_notices: Warnings about the initial model, see :meth:`starting_from`.
        untested: Names of the clients that did not answer the last test.
    """

    n: int
    shares: Tensor
    ledger: Ledger
    majority: Tensor | None = None
    largest_target: float | None = None
    raw_columns: bool = False
    measures: tuple[Metric, ...] = (ACCURACY,)
    sizes: Tensor | None = None
    table_dir: str | None = None
    averaged: bool = False
    model: ClientModel | None = None
    names: tuple[str, ...] = ()
    start_notices: tuple[Notice, ...] = ()
    untested: tuple[str, ...] = ()

    def name_of(self, client: int) -> str:
        """Return the name of a client in messages."""
        return called(self.names, client)

    def names_of(self, clients: Tensor) -> str:
        """Return the names of several clients (k,) in messages, which list only the first ones."""
        return called(self.names, *clients.tolist())

    @property
    def w0(self) -> Tensor:
        """Initial model (d,), as a copy."""
        return self._w0.clone()

    @w0.setter
    def w0(self, w: Tensor) -> None:
        self._w0 = w

    def client_store(self, method: LocalMethod) -> ClientTable | None:
        """Create the store of the clients' private parameters and states; None if the method needs none.

        In a simulation, the rows are the clients' values, and an unwritten row represents the start value. In a
        deployment, sites store the values, and a row has a number by which the site recognises its values.
        """
        size = self.layout_of(method).size
        return ClientTable.zeros(self.n, self._w0.new_empty(size), self.table_dir) if size else None

    def layout_of(self, method: LocalMethod) -> MethodLayout:
        """Return the layout of a method's tensors.

        Raises:
            InputError: If this federation cannot run client-side methods, or the method does not fit the model.
        """
        if self.model is None:
            raise InputError(
                f"{type(method).__name__} changes the clients' local steps, which this federation does not support",
                code="unsupported-combination",
                field="algorithm",
            )
        return MethodLayout.of(method, self.model)

    def client_table(self) -> ClientTable:
        """Create a table of zeros (N, d) for the state that an algorithm stores per client.

        Raises:
            InputError: If ``table_dir`` cannot be used.
        """
        return ClientTable.zeros(self.n, self._w0, self.table_dir)

    def starting_from(self, path: Path) -> Self:
        """Return the same clients with the initial model of a file, and its ``start_notices``, see :func:`drfl.run`.

        Raises:
            InputError: If the file does not fit the clients, or they are not in this process.
        """
        raise InputError(
            f"init_from needs a drfl.Simulation, which knows the clients' columns, not a {type(self).__name__}",
            code="unsupported-combination",
            field="init_from",
        )

    def target_advice(self) -> str:
        """Return advice for failed training if targets are large; "" otherwise."""
        if self.largest_target is None or self.largest_target < LARGE_TARGET:
            return ""
        return f"standardise the targets, which reach {self.largest_target:.3g}, or "

    def describe_task(self) -> dict[str, str]:
        """Describe the model, the loss and the metrics, for the identity of checkpoints; empty if unknown."""
        return {}

    def data_digest(self) -> str:
        """Return a digest of the clients' data in hexadecimal digits; "" if the data are not in this process."""
        return ""

    def check_model(self, w: object) -> None:
        """Raise InputError unless w is a parameter vector (d,) of the model."""
        if isinstance(w, Tensor) and w.shape == self._w0.shape and w.dtype == self._w0.dtype:
            return
        dtype, shape = self._w0.dtype, tuple(self._w0.shape)
        got = (
            f"{w.dtype} of shape {tuple(w.shape)}" if isinstance(w, Tensor) else f"an object of type {type(w).__name__}"
        )
        if isinstance(w, nn.Module):
            remedy = " task.layout.flatten(module) returns the vector of a module."
        else:
            is_short = isinstance(w, Tensor) and w.shape != self._w0.shape
            remedy = "" if is_short else f" Convert it with torch.as_tensor(w, dtype={dtype})."
        raise InputError(
            f"a model must be a tensor {dtype} of shape {shape}, like `w0`, got {got}.{remedy}",
            code="wrong-shape" if isinstance(w, Tensor) and w.shape != self._w0.shape else "wrong-type",
            field="model",
        )

    def checked(self, request: Q) -> Q:
        """Return a request whose cohort, model and key fit this federation.

        Raises:
            InputError: If one of them does not.
        """
        cohort = request.cohort
        if not (isinstance(cohort, Tensor) and cohort.dtype == torch.int64 and cohort.dim() == 1):
            got = f"{cohort.dtype} of shape {tuple(cohort.shape)}" if isinstance(cohort, Tensor) else f"{cohort!r:.60}"
            raise InputError(
                f"a cohort must be an int64 tensor (k,) of clients, such as torch.tensor([0, 2]), got {got}",
                code="wrong-type",
                field="cohort",
            )
        # Without clients, a tensor has no minimum.
        if len(cohort) and not (int(cohort.min()) >= 0 and int(cohort.max()) < self.n):
            raise InputError(
                f"the clients of a cohort must be in 0..{self.n - 1}, but range from {int(cohort.min())} to "
                f"{int(cohort.max())}",
                code="out-of-range",
                field="cohort",
            )
        if len(cohort.unique()) < len(cohort):
            raise InputError(
                f"a cohort must have each client once, got {cohort.tolist()!s:.60}. Give clients that were drawn "
                "several times a larger weight, as drfl.sampling.with_replacement does.",
                code="given-twice",
                field="cohort",
            )
        self.check_model(request.w)
        if not isinstance(request.key, Key):
            raise InputError(
                f"the key of a request must be a drfl.Key, such as that of the round, got {request.key!r:.60}",
                code="wrong-type",
                field="key",
            )
        return request

    @abstractmethod
    def ask(self, request: Request[R]) -> R:
        """Send a request to its cohort. The reply has a row for each client that answered."""

    @abstractmethod
    def evaluate(self, w: Tensor) -> Evaluation:
        """Compute the score, the loss and other metrics of w (d,) on every client's test data."""

    def evaluate_all(self, models: Sequence[Tensor]) -> list[Evaluation]:
        """Evaluate several models (d,)."""
        return [self.evaluate(w) for w in models]

    def own_models(self, models: OwnModels) -> ClientTable | OwnModels:
        """Return the clients' own models (N, d) if they are in this process; otherwise return ``models`` unchanged."""
        return models

    def evaluate_each(self, models: ClientTable | OwnModels, part: Part = "test") -> Evaluation:
        """Evaluate a separate model for each client: the rows of ``models`` (N, d), or its own model.

        Raises:
            InputError: If this is not a simulation, or the clients have no rows of this part.
        """
        raise InputError(
            "a separate model for each client can only be evaluated in a simulation. Remove LocalOnly and FineTuned.",
            code="simulation-only",
        )

    def pooled(self) -> Federation:
        """Return a federation of one client with the training rows of all clients and the same ledger.

        Raises:
            InputError: If this is not a simulation.
        """
        raise InputError(
            "the clients' rows can only be pooled in a simulation. Remove Pooled.",
            code="simulation-only",
        )

    def validate(self, w: Tensor) -> Evaluation:
        """Evaluate w on every client's validation rows, which are not used for training.

        Raises:
            InputError: If the clients have no validation rows.
        """
        raise InputError(
            "the clients have no validation rows for model selection or early stopping. Use "
            "data.with_validation(0.2), or `validation = 0.2` on the command line.",
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
        start: Tensor | None = None,
    ) -> Replies:
        """Ask for local steps; see :class:`drfl.federation.requests.TrainRequest`."""
        # The run decides whether averages are needed, so that algorithms need not handle them.
        averaged = average or self.averaged
        return self.ask(self.checked(TrainRequest(cohort, w, key, local, prox, shift, snapshot, averaged, start)))

    def train_with(
        self,
        method: LocalMethod,
        cohort: Tensor,
        w: Tensor,
        local: LocalSGD,
        key: Key,
        *,
        store: ClientTable | None = None,
        context: Mapping[str, Tensor] | None = None,
        per_client: Mapping[str, Tensor] | None = None,
        start: Tensor | None = None,
        prox: float = 0.0,
        average: bool = False,
    ) -> Replies:
        """Ask for the local steps of a client-side method.

        Args:
            method: The method.
            cohort: Clients to ask, (k,).
            w: Global model (d,).
            local: Local solver.
            key: Key of the round.
            store: The client store, see :meth:`client_store`; None if the method needs none.
            context: Tensors for all clients, by name.
            per_client: Tensors (k, …) by name, row j for ``cohort[j]``.
            start: Models (k, d) from which the clients start instead of w; None = w.
            prox: Weight of the proximal term.
            average: Whether the means of the local models over the steps are also needed.
        """
        request = self.checked(TrainRequest(cohort, w, key, local, prox, average=average or self.averaged, start=start))
        states = None if store is None else store[cohort]
        work = MethodWork(method, self.layout_of(method), states, context or {}, per_client or {})
        return self.ask(replace(request, work=work))

    def mean(
        self, D: Cohort, w: Tensor, local: LocalSGD, key: Key, *, prox: float = 0.0, snapshot: int | None = None
    ) -> tuple[Tensor, Merged | None]:
        """Ask for local steps if only the weighted mean of the models is needed, which a backend may sum incrementally.

        Args:
            D: The cohort with its weights; see :meth:`drfl.federation.sampling.Cohort.weights_of`.
            w: Global model (d,); see :class:`drfl.federation.requests.TrainRequest` for this and the other arguments.
            local: Local solver.
            key: Key of the round.
            prox: Weight of the proximal term.
            snapshot: Step after which the mean is also returned.

        Returns:
            The clients that answered (k',), and the mean of their models, or None if no client answered.
        """
        up = self.train(D.clients, w, local, key, prox=prox, snapshot=snapshot)
        if not up.clients.numel():
            return up.clients, None
        # The weights of the clients that answered sum to 1.
        a = D.weights_of(up.clients).to(w)
        return up.clients, up.merged(lambda w_i: a @ w_i)

    def losses(self, cohort: Tensor, w: Tensor, key: Key, *, batch: int | None = None) -> Losses:
        """Ask for losses; see :class:`drfl.federation.requests.LossRequest`."""
        return self.ask(self.checked(LossRequest(cohort, w, key, batch)))

    def gradients(self, cohort: Tensor, w: Tensor, key: Key, *, batch: int | None = None) -> Gradients:
        """Ask for gradients; see :class:`drfl.federation.requests.GradientRequest`."""
        return self.ask(self.checked(GradientRequest(cohort, w, key, batch)))


class WrappedFederation(Federation):
    """A federation that behaves like the wrapped one. Subclasses override :meth:`ask`.

    Args:
        fed: The wrapped federation.
    """

    def __init__(self, fed: Federation) -> None:
        self.fed = fed
        # All wrappers share the ledger of the wrapped federation.
        self.n, self.shares, self.w0, self.ledger = fed.n, fed.shares, fed.w0, fed.ledger
        self.majority, self.measures, self.sizes = fed.majority, fed.measures, fed.sizes
        self.largest_target, self.raw_columns = fed.largest_target, fed.raw_columns
        self.table_dir, self.averaged, self.model, self.names = fed.table_dir, fed.averaged, fed.model, fed.names

    def ask(self, request: Request[R]) -> R:
        """Call :meth:`Federation.ask` of the wrapped federation."""
        return self.fed.ask(request)

    def evaluate(self, w: Tensor) -> Evaluation:
        """Call :meth:`Federation.evaluate` of the wrapped federation."""
        return self.fed.evaluate(w)

    def validate(self, w: Tensor) -> Evaluation:
        """Call :meth:`Federation.validate` of the wrapped federation."""
        return self.fed.validate(w)

    def client_store(self, method: LocalMethod) -> ClientTable | None:
        """Call :meth:`Federation.client_store` of the wrapped federation."""
        return self.fed.client_store(method)

    def own_models(self, models: OwnModels) -> ClientTable | OwnModels:
        """Call :meth:`Federation.own_models` of the wrapped federation."""
        return self.fed.own_models(models)

    def evaluate_each(self, models: ClientTable | OwnModels, part: Part = "test") -> Evaluation:
        """Call :meth:`Federation.evaluate_each` of the wrapped federation."""
        return self.fed.evaluate_each(models, part)

    def pooled(self) -> Federation:
        """Call :meth:`Federation.pooled` of the wrapped federation."""
        return self.fed.pooled()

    def describe_task(self) -> dict[str, str]:
        """Call :meth:`Federation.describe_task` of the wrapped federation."""
        return self.fed.describe_task()

    def data_digest(self) -> str:
        """Call :meth:`Federation.data_digest` of the wrapped federation."""
        return self.fed.data_digest()


@runtime_checkable
class Bundling(Protocol):
    """A federation that can send evaluations of models together with the next request in one message."""

    def evaluate_later(self, models: Sequence[Tensor]) -> Callable[[], list[Evaluation]]:
        """Evaluate models (d,) on every client's test data together with the next request, which sends the first model.

        Returns:
            A function that returns the results. If it is called before the next request, it sends the evaluations
            separately.
        """
        ...


@runtime_checkable
class DataChecked(Protocol):
    """A federation that can check its clients' data.

    Attributes:
        names: Names of the N clients, for messages.
    """

    names: tuple[str, ...]

    def data_warnings(self) -> tuple[str, ...]:
        """Return warnings, ideally as :class:`drfl.core.errors.Notice`; see :func:`drfl.data.checks.data_warnings`."""
        ...
