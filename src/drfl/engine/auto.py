"""The engine that fits the model and the device."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from drfl.engine.base import Engine, Models, Problem
from drfl.engine.batches import Batches
from drfl.engine.convolutions import convolutional
from drfl.engine.rows import Rows
from drfl.engine.stacked import Stacked
from drfl.engine.threads import Threads
from drfl.local import LocalSGD

SMALL = 4096
"""Numbers in a batch below which convolutions are so short that calling them one by one takes most of the time."""


def choice(problem: Problem, batch: int) -> Engine:
    """Worker threads for convolutions over batches of so many samples on a CPU, else the stacked engine.

    A rule, not a measurement: a run must give the same numbers on a busy machine. ``docs/speed.md`` has the table that
    it rests on.
    """
    large = batch * problem.x[0].numel() >= SMALL
    return Threads() if large and convolutional(problem.task.model) and not problem.x.is_cuda else Stacked()


@dataclass(frozen=True)
class Auto:
    """Hands every call on to the engine that :func:`choice` names."""

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
        """See :class:`drfl.engine.base.Engine`."""
        engine = choice(problem, batches.samples.shape[2])
        return engine.train(problem, batches, w, local, prox=prox, shift=shift, snapshot=snapshot, average=average)

    def losses(self, problem: Problem, batches: Batches, w: Tensor) -> Tensor:
        """See :class:`drfl.engine.base.Engine`."""
        return choice(problem, batches.samples.shape[2]).losses(problem, batches, w)

    def gradients(self, problem: Problem, batches: Batches, w: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`drfl.engine.base.Engine`."""
        return choice(problem, batches.samples.shape[2]).gradients(problem, batches, w)

    def evaluate(self, problem: Problem, rows: Rows, w: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`drfl.engine.base.Engine`."""
        return choice(problem, len(rows.index)).evaluate(problem, rows, w)
