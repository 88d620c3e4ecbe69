"""The engine interface: the computations of clients as pure functions, without state and randomness."""

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
    """A task with a pool of samples.

    Args:
        task: Model, loss and score.
        x: (n, …) inputs of all clients.
        y: (n, …) their targets.
        autocast: Type for matrix products and convolutions, e.g. bfloat16; None = the model's type. Parameters, losses
            and updates keep the model's type.
        masses: (n,) float64 on the CPU, the weight of each row, see :class:`drfl.task.losses.Loss`; None = 1 each.
    """

    task: Task
    x: Tensor
    y: Tensor
    autocast: torch.dtype | None = None
    masses: Tensor | None = None

    def forward(self, model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Compute the outputs of a model for inputs (B, …), with products in ``autocast``."""
        if self.autocast is None:
            return model(x)
        # CUDA graphs require autocast's cache of converted weights to be off, see torch.cuda.make_graphed_callables.
        with torch.autocast(x.device.type, self.autocast, cache_enabled=False):
            outputs = model(x)
        # The loss and its mean over the batch use the model's type, because bfloat16 has only 8 significant bits.
        return outputs.to(self.task.layout.dtype)

    @property
    def averaged(self) -> bool:
        """Whether the loss of several rows is the plain mean of their losses, computed as a mean."""
        return self.masses is None and not self.task.criterion.summed

    def counted(self, rows: Tensor, real: Tensor | None = None) -> Tensor:
        """Return (…) float64 on the CPU: the divisor of the sum of the losses of rows (…, B); 0 if no row counts.

        Args:
            rows: Rows of the pool.
            real: (…, B) whether an entry is real and not a filler; None = all are real.
        """
        each = torch.ones(rows.shape, dtype=torch.float64) if self.masses is None else self.masses[rows.cpu()]
        total = (each if real is None else each * real).sum(-1)
        return torch.ones_like(total) if self.task.criterion.summed else total

    def divisor(self, rows: Tensor) -> float:
        """Return the divisor for rows (B,); ∞ if no row counts, so that their gradient is 0."""
        return len(rows) if self.averaged else float(self.counted(rows)) or math.inf

    def mean(self, losses: Tensor, rows: Tensor) -> Tensor:
        """Return () the loss of rows (B,) of the pool from their ``losses`` (B,)."""
        return losses.mean() if self.averaged else losses.sum() / self.divisor(rows)

    def means(self, losses: Tensor, rows: ClientRows) -> Tensor:
        """Return (N,) float64: the loss of each client from the ``losses`` (Σ_i n_i,) float64 of its rows."""
        if self.averaged:
            return rows.means(losses)
        total = rows.totals(losses)
        if self.masses is None or self.task.criterion.summed:
            return total
        return total / rows.totals(self.masses[rows.index])

    def weights(self, batches: Batches, like: Tensor) -> Tensor:
        """Return (k, B): the weight of each entry in its client's loss, with the type and device of ``like``.

        Fillers have weight 0. The shape is (k, T, B) if steps differ in their numbers of entries or in their divisors.
        """
        if self.averaged:
            return batches.weights(like)
        places = torch.arange(batches.samples.shape[2])
        counts = batches.counts[:, None] if batches.by_step is None else batches.by_step
        real = (places < counts[:, :, None]).expand(batches.samples.shape)
        total = self.counted(batches.samples, real)
        # If no row of a step counts, its gradient must be 0. A weight too small to have any effect replaces 0, because
        # a step counts as taken only if it has nonzero weights.
        scale = torch.where(total == 0, torch.finfo(like.dtype).tiny, 1 / total)
        weights = real.double() * scale[:, :, None]
        return (weights if batches.by_step is not None or weights.shape[1] > 1 else weights[:, 0]).to(like)


class Models(NamedTuple):
    """The models that k clients trained, all (k, d); ``snapshot`` and ``average`` are None unless requested."""

    w: Tensor
    snapshot: Tensor | None
    average: Tensor | None

    @classmethod
    def empty(cls, request: TrainRequest) -> Models:
        """Allocate the tensors for a request; only the averages are zero."""
        # All rows of w and snapshot will be overwritten. Averages are accumulated step by step and so start from zero.
        U = request.w.new_empty(len(request.cohort), request.w.numel())
        snapshot = None if request.snapshot is None else torch.empty_like(U)
        return cls(U, snapshot, torch.zeros_like(U) if request.average else None)

    def of(self, part: Tensor | int | slice) -> Models:
        """Return the models of some clients."""
        snapshot, average = (None if table is None else table[part] for table in self[1:])
        return Models(self.w[part], snapshot, average)


class Tests(NamedTuple):
    """The test results of a model, or of one model per client.

    Args:
        loss: (N,) float64 mean losses.
        values: (N,) float64 for each of the task's measures.
        rows: (Σ_i n_i, k) float64 for each measure, see :meth:`drfl.task.metrics.Metric.of_rows`.
        threshold: The log-odds above which rates count a row as positive; None = 0, which was not chosen.
    """

    loss: Tensor
    values: tuple[Tensor, ...]
    rows: tuple[Tensor, ...]
    threshold: float | None = None

    @classmethod
    def joined(cls, tests: Sequence[Tests]) -> Tests:
        """Join the results of single clients into one."""
        loss, values, rows = zip(*(test[:3] for test in tests), strict=True)
        columns = [tuple(map(torch.cat, zip(*parts, strict=True))) for parts in (values, rows)]
        return cls(torch.cat(loss), columns[0], columns[1])


class Engine(Protocol):
    """A backend of the simulation. Engines agree up to float rounding, and the order of clients has no effect."""

    def train(self, problem: PooledData, batches: Batches, request: TrainRequest) -> Models:
        """Run the local steps of the k clients in the request's cohort; their samples are the rows of ``batches``."""
        ...

    def losses(self, problem: PooledData, batches: Batches, w: Tensor) -> Tensor:
        """Return (k,) float64: mean losses at w (d,) on the first step's samples."""
        ...

    def gradients(self, problem: PooledData, batches: Batches, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return (k, d) mean gradients and (k,) float64 mean losses at w (d,) on the first step's samples."""
        ...

    def evaluate(self, problem: PooledData, rows: ClientRows, models: Tensor) -> list[Tests]:
        """Test each of the models (k, d) on each client's rows of the pool."""
        ...


@runtime_checkable
class Summing(Protocol):
    """An engine that can sum models where it computes them, so that they are neither sent nor stored."""

    def mean(self, problem: PooledData, batches: Batches, request: TrainRequest, weights: Tensor) -> Merged:
        """Return Σ_j weights_j·w_j of the models that :meth:`Engine.train` would return; weights (k,) in their type."""
        ...


@runtime_checkable
class Selective(Protocol):
    """An engine that cannot run all models."""

    def check(self, problem: PooledData) -> None:
        """Reject a model that the engine cannot run.

        Raises:
            InputError: If it cannot; the message gives the reason.
        """
        ...
