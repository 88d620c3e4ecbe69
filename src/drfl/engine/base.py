"""What an engine is: pure functions that compute what clients compute, without state and without randomness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from drfl.engine.batches import Batches
from drfl.local import LocalSGD
from drfl.task import Task


class Problem(NamedTuple):
    """A task over a pool of samples.

    Args:
        task: model, loss and score.
        x: (n, …) all clients' inputs.
        y: (n, …) their targets.
    """

    task: Task
    x: Tensor
    y: Tensor


class Models(NamedTuple):
    """What k clients trained; all (k, d). ``snapshot`` and ``average`` are None where not asked for."""

    w: Tensor
    snapshot: Tensor | None
    average: Tensor | None


def rounded(values: Sequence[float], like: Tensor) -> list[float]:
    """Numbers in the models' type: one too large for it is infinite, and the run diverges; torch would refuse it."""
    return torch.tensor(values, dtype=like.dtype).tolist()


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

    def evaluate(self, problem: Problem, rows: Sequence[Tensor], w: Tensor) -> tuple[Tensor, Tensor]:
        """(N,) float64 mean scores and (N,) float64 mean losses of w (d,) on each client's rows of the pool."""
        ...
