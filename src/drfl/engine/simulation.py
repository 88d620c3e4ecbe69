"""A federation whose clients run here, on one machine."""

from __future__ import annotations

import torch
from torch import Tensor

from drfl import checks
from drfl.data import ClientData
from drfl.engine.base import Engine, Problem
from drfl.engine.batches import Batches, draw
from drfl.engine.stacked import Stacked
from drfl.errors import InputError
from drfl.federation import NOT_ASKED, SCALAR_BYTES, Evaluation, Gradients, Ledger, Losses, Replies
from drfl.key import Key
from drfl.local import LocalSGD
from drfl.task import Task


class Simulation:
    """A :class:`drfl.federation.Federation` of clients that all live in this process.

    Args:
        data: the clients' samples.
        task: model, loss and score; the model's present parameters are the initial model.
        engine: the backend that computes.
        device: where models and data live, e.g. ``"cpu"`` or ``"cuda"``.

    Floating-point inputs and targets are brought to the model's type.

    Raises:
        InputError: the model, the loss and the data do not fit together, or the device is not there.
    """

    def __init__(self, data: ClientData, task: Task, *, engine: Engine | None = None, device: str = "cpu") -> None:
        if isinstance(engine, str | type):
            raise InputError(f"engine={engine!r} must be an engine itself, such as Loop() or Stacked()")
        place, dtype = _device(device), task.layout.dtype

        def bring(t: Tensor) -> Tensor:
            return t.to(place, dtype) if t.is_floating_point() else t.to(place)

        self.engine: Engine = Stacked() if engine is None else engine
        task = task if place.type == "cpu" else task.to(place, dtype)
        self._train = Problem(task, bring(data.inputs), bring(data.targets))
        self._test = Problem(task, bring(data.test_inputs), bring(data.test_targets))
        self._rows, self._test_rows = data.train, data.test
        self.n, self.shares, self.w0, self.ledger = data.n, data.shares, task.w0, Ledger()
        for problem in (self._train, self._test):
            task.check(problem.x[:4], problem.y[:4])
            task.check_targets(problem.x, problem.y)

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
        """See :class:`drfl.federation.Federation`. Everybody who is asked answers."""
        if snapshot is not None and not 1 <= snapshot <= local.steps:
            raise ValueError(f"snapshot={snapshot} must be a step in 1…{local.steps}")
        batches = self._draw(cohort, key, local.steps, local.batch)
        models = self.engine.train(
            self._train, batches, w, local, prox=prox, shift=shift, snapshot=snapshot, average=average
        )
        vector, k = w.numel() * w.element_size(), len(cohort)
        self.ledger.down(k, vector * (1 if shift is None else 2))
        self.ledger.up(k, vector * (1 + (snapshot is not None) + average))
        self.ledger.gradient_evaluations += int(batches.counts.sum()) * local.steps
        parts = (NOT_ASKED if part is None else part for part in models)
        return Replies(cohort, *parts)

    def losses(self, cohort: Tensor, w: Tensor, key: Key, *, batch: int | None = None) -> Losses:
        """See :class:`drfl.federation.Federation`."""
        batches = self._draw(cohort, key, 1, batch)
        self.ledger.down(len(cohort), w.numel() * w.element_size())
        self.ledger.up(len(cohort), SCALAR_BYTES)
        self.ledger.loss_evaluations += int(batches.counts.sum())
        return Losses(cohort, self.engine.losses(self._train, batches, w))

    def gradients(self, cohort: Tensor, w: Tensor, key: Key, *, batch: int | None = None) -> Gradients:
        """See :class:`drfl.federation.Federation`."""
        batches = self._draw(cohort, key, 1, batch)
        vector = w.numel() * w.element_size()
        self.ledger.down(len(cohort), vector)
        self.ledger.up(len(cohort), vector + SCALAR_BYTES)
        self.ledger.gradient_evaluations += int(batches.counts.sum())
        return Gradients(cohort, *self.engine.gradients(self._train, batches, w))

    def evaluate(self, w: Tensor) -> Evaluation:
        """See :class:`drfl.federation.Federation`."""
        samples = torch.tensor([len(rows) for rows in self._test_rows])
        return Evaluation(*self.engine.evaluate(self._test, self._test_rows, w), samples)

    def _draw(self, cohort: Tensor, key: Key, steps: int, batch: int | None) -> Batches:
        if batch is not None:
            checks.whole("batch", batch)
        clients = cohort.tolist()
        return draw([self._rows[i] for i in clients], clients, steps, batch, key)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"device '{name}' is not there: {reason}") from error
    return device
