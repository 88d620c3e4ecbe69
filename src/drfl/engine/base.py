"""What an engine is: pure functions that compute what clients compute, without state and without randomness."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from drfl.engine.batches import Batches, ClientRows
from drfl.federation.requests import Merged, TrainRequest
from drfl.task.task import Task


class PooledData(NamedTuple):
    """A task over a pool of samples.

    Args:
        task: model, loss and score.
        x: (n, …) all clients' inputs.
        y: (n, …) their targets.
        autocast: the type that matrix products and convolutions work in, e.g. bfloat16; None = the model's own.
            Parameters, losses and updates keep the model's type.
        masses: (n,) float64 on the CPU, what each row counts, see :class:`drfl.task.losses.Loss`; None = 1 each.
    """

    task: Task
    x: Tensor
    y: Tensor
    autocast: torch.dtype | None = None
    masses: Tensor | None = None

    def forward(self, model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The outputs of a model for inputs (B, …), computed in ``autocast``."""
        if self.autocast is None:
            return model(x)
        # CUDA graphs need autocast's cache of converted weights switched off, see torch.cuda.make_graphed_callables.
        with torch.autocast(x.device.type, self.autocast, cache_enabled=False):
            outputs = model(x)
        # The loss and its mean over the batch are computed in the model's own type: bfloat16 keeps 8 bits of a number.
        return outputs.to(self.task.layout.dtype)

    @property
    def averaged(self) -> bool:
        """Whether the loss of rows is the plain mean of theirs, which is then computed as a mean."""
        return self.masses is None and not self.task.criterion.summed

    def counted(self, rows: Tensor, real: Tensor | None = None) -> Tensor:
        """(…) float64 on the CPU, what the sum of the losses of rows (…, B) is divided by; 0 if none of them counts.

        Args:
            rows: of the pool.
            real: (…, B) which are no fillers; None = all.
        """
        each = torch.ones(rows.shape, dtype=torch.float64) if self.masses is None else self.masses[rows.cpu()]
        total = (each if real is None else each * real).sum(-1)
        return torch.ones_like(total) if self.task.criterion.summed else total

    def divisor(self, rows: Tensor) -> float:
        """The same of rows (B,); ∞ if none of them counts, so that their gradient is 0."""
        return len(rows) if self.averaged else float(self.counted(rows)) or math.inf

    def mean(self, losses: Tensor, rows: Tensor) -> Tensor:
        """() the loss of rows (B,) of the pool whose own are ``losses`` (B,)."""
        return losses.mean() if self.averaged else losses.sum() / self.divisor(rows)

    def means(self, losses: Tensor, rows: ClientRows) -> Tensor:
        """(N,) float64 the loss of each client whose rows' are ``losses`` (Σ_i n_i,) float64."""
        if self.averaged:
            return rows.means(losses)
        total = rows.totals(losses)
        if self.masses is None or self.task.criterion.summed:
            return total
        return total / rows.totals(self.masses[rows.index])

    def weights(self, batches: Batches, like: Tensor) -> Tensor:
        """(k, B) weight of each entry in its client's loss, in the type and place of ``like``; 0 for fillers.

        (k, T, B) where steps differ: in their numbers of entries, or in what these count.
        """
        if self.averaged:
            return batches.weights(like)
        places = torch.arange(batches.samples.shape[2])
        counts = batches.counts[:, None] if batches.by_step is None else batches.by_step
        real = (places < counts[:, :, None]).expand(batches.samples.shape)
        total = self.counted(batches.samples, real)
        # Where nothing counts the gradient is 0, but for a number too small to move anything: a step that a client
        # takes is one with weights.
        scale = torch.where(total == 0, torch.finfo(like.dtype).tiny, 1 / total)
        found = real.double() * scale[:, :, None]
        return (found if batches.by_step is not None or found.shape[1] > 1 else found[:, 0]).to(like)


class Models(NamedTuple):
    """What k clients trained; all (k, d). ``snapshot`` and ``average`` are None where not asked for."""

    w: Tensor
    snapshot: Tensor | None
    average: Tensor | None

    @classmethod
    def empty(cls, request: TrainRequest) -> Models:
        """Memory for what a request asks of its cohort; only the averages are zero."""
        # Every row of w and snapshot is overwritten; averages are accumulated step by step and so start from zero.
        U = request.w.new_empty(len(request.cohort), request.w.numel())
        snapshot = None if request.snapshot is None else torch.empty_like(U)
        return cls(U, snapshot, torch.zeros_like(U) if request.average else None)

    def of(self, part: Tensor | int | slice) -> Models:
        """Those of some clients."""
        snapshot, average = (None if table is None else table[part] for table in self[1:])
        return Models(self.w[part], snapshot, average)


class Tests(NamedTuple):
    """What a test of a model gave, or of a model for each client.

    Args:
        loss: (N,) float64 mean losses.
        values: (N,) float64 for each of the task's measures.
        rows: (Σ_i n_i, k) float64 for each of them, see :meth:`drfl.task.metrics.Metric.of_rows`.
        threshold: the log-odds above which rates call a row positive; None = 0, as nobody chose one.
    """

    loss: Tensor
    values: tuple[Tensor, ...]
    rows: tuple[Tensor, ...]
    threshold: float | None = None

    @classmethod
    def joined(cls, tests: Sequence[Tests]) -> Tests:
        """One of several clients from one of each."""
        loss, values, rows = zip(*(test[:3] for test in tests), strict=True)
        columns = [tuple(map(torch.cat, zip(*parts, strict=True))) for parts in (values, rows)]
        return cls(torch.cat(loss), columns[0], columns[1])


class Engine(Protocol):
    """A backend of the simulation. Engines agree up to float rounding, whatever the order of the clients."""

    def train(self, problem: PooledData, batches: Batches, request: TrainRequest) -> Models:
        """Local steps for the k clients of the request's cohort, whose samples are in ``batches``, row by row."""
        ...

    def losses(self, problem: PooledData, batches: Batches, w: Tensor) -> Tensor:
        """(k,) float64 mean losses at w (d,) on the first step's samples."""
        ...

    def gradients(self, problem: PooledData, batches: Batches, w: Tensor) -> tuple[Tensor, Tensor]:
        """(k, d) mean gradients and (k,) float64 mean losses at w (d,) on the first step's samples."""
        ...

    def evaluate(self, problem: PooledData, rows: ClientRows, models: Tensor) -> list[Tests]:
        """A test of each of the models (k, d) on each client's rows of the pool."""
        ...


@runtime_checkable
class Summing(Protocol):
    """An engine that can sum models where it computes them, so that they need neither be sent nor kept."""

    def mean(self, problem: PooledData, batches: Batches, request: TrainRequest, weights: Tensor) -> Merged:
        """Σ_j weights_j·w_j of what :meth:`Engine.train` would give; weights (k,) in the models' type."""
        ...


@runtime_checkable
class Selective(Protocol):
    """An engine that cannot run every model that the others can."""

    def check(self, problem: PooledData) -> None:
        """Refuse a model that it cannot run.

        Raises:
            InputError: with the reason.
        """
        ...
