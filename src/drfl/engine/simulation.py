"""A federation whose clients are simulated on one machine."""

from __future__ import annotations

import copy
import dataclasses
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Self, cast

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError, Notice
from drfl.core.full_memory import explain_full_memory
from drfl.core.hashing import digest_of
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.data.checks import data_warnings
from drfl.data.row_scores import RowScores
from drfl.data.standardisation import is_table
from drfl.data.warm_start import differing_tensor, start_notices, warm_start
from drfl.engine import client_steps
from drfl.engine.auto import Auto, choice
from drfl.engine.base import Engine, Selective, Summing, Tests
from drfl.engine.batches import Batches, ClientRows, draw, draw_epochs
from drfl.engine.devices import device_of
from drfl.engine.evaluation import evaluate_outputs
from drfl.engine.loop_engine import Loop
from drfl.engine.prepared_pools import prepare
from drfl.engine.score_rows import at_threshold, row_scores, sums_of, youden
from drfl.engine.sgd import has_images
from drfl.engine.stacked import Stacked
from drfl.engine.threads import Threads
from drfl.engine.tracing import LOG
from drfl.federation.client_table import ClientTable
from drfl.federation.federation import SCALAR_BYTES, Evaluation, Federation, Ledger, Part
from drfl.federation.local_method import LocalMethod, OwnModels
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
from drfl.task.measure import Rows
from drfl.task.task import Task
from drfl.task.training_noise import draw_seeds

PRECISIONS = {"full": None, "bf16": torch.bfloat16}
"""Types for the matrix products of local steps, by their names on the command line."""


class Simulation(Federation):
    """A federation whose clients are all in this process.

    Args:
        data: The clients' samples.
        task: Model, loss and score; the model's current parameters are the initial model.
        engine: The backend for the computations; None = :class:`Auto`, which fits the model and the device.
        device: Device of models and data, e.g. ``"cpu"`` or ``"cuda"``.
        precision: "full", or "bf16" to compute matrix products and convolutions of the local steps in bfloat16.
            Parameters, updates, reported losses, gradients that are sent and tests keep the model's type, which must be
            float32.
        first: Number of the first client, used to draw its samples; not 0 if this process holds one of many clients.

    Floating-point inputs and targets are converted to the model's type. Integer inputs are converted too, unless the
    model accepts integers, as an embedding does, or they are fields of a dictionary or tuple. If the model is an
    ``nn.Sequential`` whose first layers are frozen (``requires_grad=False``), their outputs for all samples are
    computed once, unless they need more memory than the inputs.

    Simulations in different threads may share a task. Use each of them in one thread at a time.

    Raises:
        InputError: If the model, the loss and the data do not fit together, or the device is not available.
        DrflError: If the memory of a CUDA device is full, also later in every request and test.
    """

    @explain_full_memory()
    def __init__(
        self,
        data: ClientData,
        task: Task,
        *,
        engine: Engine | None = None,
        device: str = "cpu",
        precision: str = "full",
        first: int = 0,
    ) -> None:
        if engine is not None and (isinstance(engine, type) or not hasattr(engine, "gradients")):
            raise InputError(
                f"engine={engine!r:.60} must be an engine object such as drfl.Loop() or drfl.Stacked()",
                code="wrong-type",
                field="engine",
            )
        for name, thing, kind in (("data", data, ClientData), ("task", task, Task)):
            if not isinstance(thing, kind):
                # A description of data gives the samples of any seed, and a simulation needs those of one.
                made = f", such as {name}.for_seed(0)" if hasattr(thing, "for_seed") else ""
                raise InputError(
                    f"{name} is a {type(thing).__name__}: pass a drfl.{kind.__name__}{made}",
                    code="wrong-type",
                    field=name,
                )
        if data.has_missing:
            raise InputError(
                "inputs have missing values: standardise the inputs, which replaces missing values by the "
                "mean of the column",
                code="missing-values",
                field="standardise",
            )
        place, dtype = device_of(device), task.layout.dtype
        self._given = task
        self.engine: Engine = Auto() if engine is None else engine
        # The engine for loss reports, gradients and tests.
        self._passes: Engine = self.engine
        if task.criterion.of_batch:
            LOG.info("the loss is one of a whole batch, so reports and tests are computed one client after another")
            # Only the loop computes all rows of a client in one pass, without fillers.
            self._passes = Loop()
        data, task, train, self._test = prepare(data, task, place)
        if precision not in PRECISIONS:
            raise InputError(
                f"`precision` '{precision}' must be one of {', '.join(PRECISIONS)}",
                code="unknown-name",
                field="precision",
            )
        if precision == "bf16" and dtype != torch.float32:
            raise InputError(
                f"`precision = 'bf16'` requires a float32 model, got {dtype}. Use `precision = 'full'` or "
                "a float32 model.",
                code="unsupported-combination",
                field="precision",
            )
        self._train = train._replace(autocast=PRECISIONS[precision])
        if isinstance(self._passes, Selective):
            self._passes.check(self._train)
        self._rows, self._test_rows = ClientRows.of(data.train), ClientRows.of(data.test)
        self._validation_rows = None if data.validation is None else ClientRows.of(data.validation)
        self._first, self.data, self.names = first, data, data.names
        self.sizes = self._rows.sizes
        self.n, self.shares, self.w0, self.ledger = data.n, data.shares, task.w0, Ledger()
        self.majority, self.measures = data.majority, task.measures
        self.model = ClientModel.of(self._train.task, self.w0)
        self.raw_columns = data.standardisation is None and data.fields is None and is_table(data.inputs)
        if data.targets.is_floating_point():
            self.largest_target = float(data.targets.nan_to_num(0).abs().max())
        elif data.classes is not None and data.targets.dim() == 1 and self.outputs not in (1, len(data.classes)):
            raise InputError(
                f"the data have {len(data.classes)} classes, but the model has {self.outputs} outputs. Give the model "
                "one output per class, or name as many classes.",
                code="model-data-mismatch",
                field="model",
            )

    def __repr__(self) -> str:
        return f"<Simulation of {self.n} clients, {self._w0.numel():,} parameters, engine {type(self.engine).__name__}>"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>{self.data._repr_html_()}"

    @property
    def outputs(self) -> int:
        """Number of outputs of the model for a row, or for each of its positions."""
        task = self._test.task
        with torch.no_grad():
            outputs = task.outputs(task.layout.views(task.w0), self._test.x[:1])
        return outputs.shape[1] if outputs.dim() > 1 else 1

    def starting_from(self, path: Path) -> Self:
        """See :class:`drfl.federation.federation.Federation`."""
        started, origin = warm_start(self._given, self.data, path)
        name = differing_tensor(self._given, started.model.state_dict(), started.w0)
        if name is not None:
            raise InputError(
                f"`init_from`: '{name}' of {path} is frozen, and differs from that of the task: make the "
                "task from drfl.load_model(…).module",
                code="model-differs",
                field="init_from",
            )
        fed = copy.copy(self)
        fed.w0 = started.w0.to(self._w0)
        fed.model = ClientModel.of(self._train.task, fed.w0)
        fed.start_notices = tuple(start_notices(origin))
        return fed

    def data_warnings(self) -> tuple[Notice, ...]:
        """Return warnings about suspicious client data, see :func:`drfl.data.checks.data_warnings`."""
        return data_warnings(self.data)

    def ask(self, request: Request[R]) -> R:
        """Send a request to its cohort, see :class:`drfl.federation.federation.Federation`; every client replies.

        Raises:
            InputError: If a batch is not a valid number of samples.
            ValueError: If the request asks for a snapshot after a step that does not exist, or that not all clients
                take.
        """
        cohort, w, concrete = request.cohort, request.w, cast("TrainRequest | LossRequest | GradientRequest", request)
        if not len(cohort):
            return request.empty_reply()
        batches, steps = self._drawn(concrete)
        # The caller may be in inference mode or under no_grad, so that gradients could not be computed.
        with torch.inference_mode(False), torch.enable_grad(), explain_full_memory():
            match concrete:
                case TrainRequest(work=None, start=None) if not self._needs_method:
                    reply = Replies(cohort, *self.engine.train(self._train, batches, concrete))
                case TrainRequest():
                    reply = self._train_with(concrete, batches)
                # Reported losses drive λ, and gradients step sizes and certificates, so they are always computed in the
                # model's type.
                case LossRequest():
                    reply = Losses(cohort, self._passes.losses(self._train._replace(autocast=None), batches, w))
                case _:
                    exact = self._train._replace(autocast=None)
                    reply = Gradients(cohort, *self._passes.gradients(exact, batches, w))
        # Everything after `clients`: vectors (k, d), and losses (k,), which count as one float64 each.
        parts = [part.dim() for part in (reply.models if isinstance(reply, Replies) else reply[1:]) if part is not None]
        self._book(concrete, batches.total(steps), parts.count(2), parts.count(1))
        return cast("R", reply)

    @property
    def _needs_method(self) -> bool:
        """Whether all local steps are those of a client-side method, which engines do not run."""
        return bool(self._train.task.statistics) or self._train.task.criterion.of_batch

    def _train_with(self, request: TrainRequest, batches: Batches) -> Replies:
        """Train with a client-side method, or with the task's loss from start models."""
        if request.shift is not None and self._train.task.statistics:
            raise InputError(
                "drift terms are not defined for running statistics of BatchNorm. Use FedBN or FedAvg, or replace the "
                "layers with drfl.models.without_batch_norm(model).",
                code="unsupported-combination",
                field="model",
            )
        if request.work is None:
            method = LocalMethod()
            request = dataclasses.replace(request, work=MethodWork(method, self.layout_of(method)))
        engine = self.engine
        if isinstance(engine, Auto) and self._train.task.criterion.of_batch:
            engine = Threads() if has_images(self._train) else Stacked()
        elif isinstance(engine, Auto):
            engine = choice(self._train, len(request.cohort), batches.samples.shape[2])
        # The plain engine and the threads of a large model compute one client after another.
        vectorise = not isinstance(engine, Loop | Threads)
        models, *rest = client_steps.train(self._train, batches, request, self._rows, vectorise=vectorise)
        return Replies(request.cohort, *models, *rest)

    def own_models(self, models: OwnModels) -> ClientTable:
        """See :class:`drfl.federation.federation.Federation`."""
        w, method, store = models.w, models.method, models.states
        work, table = MethodWork(method, self.layout_of(method)), self.client_table()
        for client in torch.arange(self.n).split(1):
            row = None if store is None else store[client][0]
            table = table.put(client, client_steps.own_model(self._train, work, w, row)[None])
        return table

    def mean(
        self, D: Cohort, w: Tensor, local: LocalSGD, key: Key, *, prox: float = 0.0, snapshot: int | None = None
    ) -> tuple[Tensor, Merged | None]:
        """Train and average, see :class:`drfl.federation.federation.Federation`; a summing engine stores no models."""
        if not isinstance(self.engine, Summing) or self._needs_method:
            return super().mean(D, w, local, key, prox=prox, snapshot=snapshot)
        request = TrainRequest(D.clients, w, key, local, prox, None, snapshot, self.averaged)
        batches, steps = self._drawn(self.checked(request))
        with torch.inference_mode(False), torch.enable_grad(), explain_full_memory():
            model = self.engine.mean(self._train, batches, request, D.weights_of(D.clients).to(w))
        self._book(request, batches.total(steps), sum(part is not None for part in model))
        return D.clients, model

    def _drawn(self, request: TrainRequest | LossRequest | GradientRequest) -> tuple[Batches, int]:
        """Draw the cohort's samples; also return the number of steps or epochs."""
        steps, batch, epochs, snapshot = 1, None, None, None
        if isinstance(request, TrainRequest):
            batch, epochs, snapshot = request.local.batch, request.local.epochs, request.snapshot
            steps = epochs or request.local.tau
        else:
            batch = request.batch
        if batch is not None:
            checks.integer("batch", batch)
        if snapshot is not None and epochs is not None:
            raise ValueError(f"snapshot={snapshot}: with epochs clients take different numbers of steps")
        if snapshot is not None and not 1 <= snapshot <= steps:
            raise ValueError(f"snapshot={snapshot} must be a step in 1…{steps}")
        draw_batches = draw if epochs is None else draw_epochs
        batches = draw_batches(self._rows, request.cohort, steps, batch, request.key, self._first)
        if isinstance(request, TrainRequest):
            if self._train.task.noisy:
                T = steps if batches.by_step is None else batches.by_step.shape[1]
                clients = (request.cohort + self._first).tolist()
                batches = batches._replace(seeds=draw_seeds(clients, T, batches.counts, request.key.fold("noise")))
            return batches, steps
        masses = self._train.masses
        if masses is None or not bool((none := self._train.counted(batches.step_rows(0), batches.real) == 0).any()):
            return batches, steps
        # If none of a client's drawn rows counts in the loss, its reported loss would be 0/0, so the draw is repeated
        # among the rows that count. If the client did not reply, or reported 0, λ would neglect clients with few such
        # rows.
        counting = self._rows.only(masses[self._rows.index] != 0)
        redrawn = draw(counting, request.cohort[none], 1, request.batch, request.key.fold("counting"), self._first)
        samples = batches.samples.clone()
        # Fillers repeat the client's first sample, like those of the draw.
        fillers = redrawn.samples[:, :, :1].expand(-1, -1, samples.shape[2] - redrawn.samples.shape[2])
        samples[none] = torch.cat([redrawn.samples, fillers], 2)
        return Batches(samples, batches.counts.masked_scatter(none, redrawn.counts)), steps

    def _book(
        self, request: TrainRequest | LossRequest | GradientRequest, samples: Tensor, vectors: int, scalars: int = 0
    ) -> None:
        """Count the cost of a request.

        Args:
            request: The request, with its cohort.
            samples: (k,) number of samples per client.
            vectors: Number of vectors that each client sent.
            scalars: Number of scalars that each client sent.
        """
        size, total = request.w.element_size(), int(samples.sum())
        vector = request.w.numel() * size
        down, up, per_step = request.sent_numbers * size, vectors * vector + scalars * SCALAR_BYTES, 1
        if isinstance(request, TrainRequest):
            per_step = request.local.optimizer.gradients
            if request.work is not None:
                layout = request.work.layout
                # Private parameters are not sent, and the state of a client is already there.
                up += (layout.message_size - vectors * int(layout.private.sum())) * size
                per_step *= request.work.method.gradients
        self.ledger.down(len(request.cohort), down)
        self.ledger.up(len(request.cohort), up)
        if isinstance(request, LossRequest):
            self.ledger.loss_evaluations += total
        else:
            self.ledger.gradient_evaluations += total * per_step

    def evaluate(self, w: Tensor) -> Evaluation:
        """See :class:`drfl.federation.federation.Federation`."""
        return self._evaluation(self._test_rows, self._tests(w))

    def evaluate_all(self, models: Sequence[Tensor]) -> list[Evaluation]:
        """See :class:`drfl.federation.federation.Federation`."""
        for w in models:
            self.check_model(w)
        with explain_full_memory():
            tests = self._passes.evaluate(self._test, self._test_rows, torch.stack(list(models)))
        with_rates = (self._cut(test, w, "test") for test, w in zip(tests, models, strict=True))
        return [self._evaluation(self._test_rows, test) for test in with_rates]

    def tested(self, w: Tensor) -> tuple[Evaluation, RowScores]:
        """Return :meth:`evaluate` and :meth:`row_scores` from a single pass."""
        tests = self._tests(w)
        scores = row_scores(self.measures, self._test_rows, tests, self._patients)
        return self._evaluation(self._test_rows, tests), scores

    def tested_outputs(self, outputs: Tensor) -> tuple[Evaluation, RowScores]:
        """Return :meth:`tested` for outputs that another model computed of the test rows.

        Args:
            outputs: (Σ_i n_i, …) float64, the rows of ``data.test`` of one client after the other. Rates are at the
                threshold ½.
        """
        tests = evaluate_outputs(self._test, self._test_rows, outputs)
        if any(measure.rows is Rows.RATE for measure in self.measures):
            tests = at_threshold(self.measures, self._test_rows, tests, None)
        scores = row_scores(self.measures, self._test_rows, tests, self._patients)
        return self._evaluation(self._test_rows, tests), scores

    def row_scores(self, models: Tensor | ClientTable | OwnModels) -> RowScores:
        """Return the scores on every test row of the model w (d,), or of each client's model, rows of (N, d)."""
        models = self.own_models(models) if isinstance(models, OwnModels) else models
        return row_scores(self.measures, self._test_rows, self._tests(models), self._patients)

    def validate(self, w: Tensor) -> Evaluation:
        """See :class:`drfl.federation.federation.Federation`."""
        if self._validation_rows is None:
            return super().validate(w)
        return self._evaluation(self._validation_rows, self._tests(w, "validation"))

    def evaluate_each(self, models: ClientTable | OwnModels, part: Part = "test") -> Evaluation:
        """See :class:`drfl.federation.federation.Federation`."""
        models = self.own_models(models) if isinstance(models, OwnModels) else models
        rows = self._test_rows if part == "test" else self._validation_rows
        if rows is None:
            return super().validate(self.w0)  # raises the error that there are none
        return self._evaluation(rows, self._tests(models, part))

    def test_rows_digest(self) -> str:
        """Return a digest of the clients' test rows: which client is tested on which rows, and their targets.

        Inputs are excluded, because standardisation by other training rows changes them although the rows are the same.
        """
        rows = self._test_rows
        return digest_of([rows.starts, rows.index, self._test.y[rows.index]])

    def describe_task(self) -> dict[str, str]:
        """See :class:`drfl.federation.federation.Federation`."""
        return self._given.description | {"precision": str(self._train.autocast or "full")}

    def data_digest(self) -> str:
        """See :class:`drfl.federation.federation.Federation`."""
        parts, rows = (self._train, self._test), (self._rows, self._validation_rows, self._test_rows)
        pools = [pool for part in parts for pool in (part.x, part.y)]
        lists = (x for part in rows if part is not None for x in (part.index, part.starts))
        return digest_of([*pools, *lists], "" if self.data.fields is None else str(self.data.fields))

    def pooled(self) -> Federation:
        """See :class:`drfl.federation.federation.Federation`."""
        whole = copy.copy(self)  # shares everything but the assignment of rows to clients, including the ledger
        whole._rows = ClientRows.of([self._rows.index])
        whole.n, whole.names, whole.shares = 1, (), torch.ones(1, dtype=torch.float64)
        whole.sizes = whole._rows.sizes
        return whole

    def _tests(self, models: Tensor | ClientTable, part: Part = "test") -> Tests:
        """Test one model (d,) or one per client, with rates at the threshold chosen on validation rows."""
        return self._cut(self._scored(models, part), models, part)

    def _cut(self, tests: Tests, models: Tensor | ClientTable, part: Part) -> Tests:
        """Set the rates of a test to the threshold chosen on the validation rows of all clients."""
        place = next((j for j, measure in enumerate(self.measures) if measure.rows is Rows.RATE), None)
        if place is None:
            return tests
        rows, threshold = self._test_rows if part == "test" else self._validation_rows, None
        assert rows is not None
        if self._validation_rows is not None:
            # A threshold chosen on the test rows would make the rates look better than they are.
            validation = tests if part == "validation" else self._scored(models, "validation")
            threshold = youden(*validation.rows[place].unbind(1))
        return at_threshold(self.measures, rows, tests, threshold)

    @explain_full_memory()
    def _scored(self, models: Tensor | ClientTable, part: Part) -> Tests:
        problem, rows = self._test, self._test_rows
        if part == "validation":
            assert self._validation_rows is not None
            problem, rows = self._train._replace(autocast=None), self._validation_rows
        if not isinstance(models, ClientTable):
            self.check_model(models)
            return self._passes.evaluate(problem, rows, models[None])[0]
        # Models are tested one at a time, because a table of them may be larger than the memory.
        per_client = (ClientRows.of([rows.of_client(i)]) for i in range(self.n))
        return Tests.joined(
            [
                self._passes.evaluate(problem, client_rows, models[torch.tensor([i])])[0]
                for i, client_rows in enumerate(per_client)
            ]
        )

    def row_counts_of_largest_patients(self) -> Tensor:
        """Return (N,) int64, the test rows of each client's patient with the most; 1 if rows are independent."""
        patients = self._patients
        return torch.ones_like(self._test_rows.sizes) if patients is None else self._test_rows.largest(patients)

    @property
    def _patients(self) -> Tensor | None:
        return None if self.data.patients is None else self.data.patients.cpu()

    def _evaluation(self, rows: ClientRows, tests: Tests) -> Evaluation:
        score, *others = tests.values
        sums = sums_of(self.measures, rows, tests, self._patients)
        return Evaluation(score, tests.loss, rows.sizes, tuple(others), sums, tests.threshold)
