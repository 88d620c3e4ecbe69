"""What an engine is: pure functions that compute what clients compute, without state and without randomness."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from drfl.engine.batches import Batches
from drfl.engine.rows import Rows
from drfl.local import LocalSGD
from drfl.task import Task


class Problem(NamedTuple):
    """A task over a pool of samples.

    Args:
        task: model, loss and score.
        x: (n, …) all clients' inputs.
        y: (n, …) their targets.
        autocast: the type that matrix products and convolutions work in, e.g. bfloat16; None = the model's own.
            Parameters, losses and updates keep the model's type.
    """

    task: Task
    x: Tensor
    y: Tensor
    autocast: torch.dtype | None = None

    def forward(self, model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The outputs of a model for inputs (B, …), worked out in ``autocast``."""
        if self.autocast is None:
            return model(x)
        with torch.autocast(x.device.type, self.autocast, cache_enabled=False):  # as CUDA graphs need it
            outputs = model(x)
        return outputs.to(self.task.layout.dtype)


class Models(NamedTuple):
    """What k clients trained; all (k, d). ``snapshot`` and ``average`` are None where not asked for."""

    w: Tensor
    snapshot: Tensor | None
    average: Tensor | None

    @classmethod
    def room(cls, k: int, w: Tensor, snapshot: int | None, average: bool) -> Models:
        """Memory for k models of the size, type and place of w (d,); only the averages are zero."""
        U = w.new_empty(k, w.numel())
        return cls(U, torch.empty_like(U) if snapshot is not None else None, torch.zeros_like(U) if average else None)

    def of(self, part: Tensor | int | slice) -> Models:
        """Those of some clients."""
        snapshot, average = (None if table is None else table[part] for table in self[1:])
        return Models(self.w[part], snapshot, average)


class Engine(Protocol):
    """A backend of the simulation. Engines agree up to float rounding, whatever the order of the clients."""

    def train(
        self,
        problem: Problem,
        batches: Batches,
        w: Tensor,
        local: LocalSGD,
        *,
        prox: float,
        shift: Tensor | None,
        snapshot: int | None,
        average: bool,
    ) -> Models:
        """Local steps for k clients: see :meth:`drfl.federation.Federation.train`."""
        ...

    def losses(self, problem: Problem, batches: Batches, w: Tensor) -> Tensor:
        """(k,) float64 mean losses at w (d,) on the first step's samples."""
        ...

    def gradients(self, problem: Problem, batches: Batches, w: Tensor) -> tuple[Tensor, Tensor]:
        """(k, d) mean gradients and (k,) float64 mean losses at w (d,) on the first step's samples."""
        ...

    def evaluate(self, problem: Problem, rows: Rows, w: Tensor) -> tuple[Tensor, Tensor]:
        """(N,) float64 mean scores and (N,) float64 mean losses of w (d,) on each client's rows of the pool."""
        ...
