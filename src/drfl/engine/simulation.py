"""A federation whose clients run here, on one machine."""

from __future__ import annotations

import torch
from torch import Tensor

from drfl import checks
from drfl.data import ClientData
from drfl.engine.auto import Auto
from drfl.engine.base import Engine, Problem
from drfl.engine.batches import Batches, draw
from drfl.engine.frozen import features, narrows, split
from drfl.engine.rows import Rows
from drfl.errors import InputError
from drfl.federation import NOT_ASKED, SCALAR_BYTES, Evaluation, Gradients, Ledger, Losses, Replies
from drfl.key import Key
from drfl.local import LocalSGD
from drfl.task import Task

PRECISIONS = {"full": None, "bf16": torch.bfloat16}
"""The types that the local steps' products may work in, by the name that the command knows them by."""


class Simulation:
    """A :class:`drfl.federation.Federation` of clients that all live in this process.

    Args:
        data: the clients' samples.
        task: model, loss and score; the model's present parameters are the initial model.
        engine: the backend that computes; None = :class:`Auto`, the one that fits the model and the device.
        device: where models and data live, e.g. ``"cpu"`` or ``"cuda"``.
        first: the number of the first client, under which it draws its samples: not 0 where this process holds one of
            many clients.
        precision: "full", or "bf16": matrix products and convolutions of the local steps are then worked out in
            bfloat16. Parameters, updates, loss reports and tests keep the model's type, which must be float32.

    Floating-point inputs and targets are brought to the model's type. Where the model is an ``nn.Sequential`` whose
    first layers are frozen (``requires_grad=False``), what these give for all samples is computed here, once, unless it
    takes more memory than the inputs.

    Raises:
        InputError: the model, the loss and the data do not fit together, or the device is not there.
    """

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
        if isinstance(engine, str | type):
            raise InputError(f"engine={engine!r} must be an engine itself, such as Loop() or Stacked()")
        place, dtype = _device(device), task.layout.dtype

        def bring(t: Tensor) -> Tensor:
            return t.to(place, dtype) if t.is_floating_point() else t.to(place)

        self.engine: Engine = Auto() if engine is None else engine
        task = task if place.type == "cpu" else task.to(place, dtype)
        train = Problem(task, bring(data.inputs), bring(data.targets))
        test = Problem(task, bring(data.test_inputs), bring(data.test_targets))
        for problem in (train, test):
            task.check(problem.x[:4], problem.y[:4])
            task.check_targets(problem.x, problem.y)
        train, self._test = _behind_backbone(train, test)
        self._train = train._replace(autocast=_autocast(precision, dtype))
        self._rows, self._test_rows = Rows.of(data.train), Rows.of(data.test)
        self._first = first
        self.n, self.shares, self.w0, self.ledger = data.n, data.shares, task.w0, Ledger()

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
        with torch.inference_mode(False), torch.enable_grad():  # wherever the caller may be
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
        return Losses(cohort, self.engine.losses(self._train._replace(autocast=None), batches, w))

    def gradients(self, cohort: Tensor, w: Tensor, key: Key, *, batch: int | None = None) -> Gradients:
        """See :class:`drfl.federation.Federation`."""
        batches = self._draw(cohort, key, 1, batch)
        vector = w.numel() * w.element_size()
        self.ledger.down(len(cohort), vector)
        self.ledger.up(len(cohort), vector + SCALAR_BYTES)
        self.ledger.gradient_evaluations += int(batches.counts.sum())
        with torch.inference_mode(False), torch.enable_grad():
            return Gradients(cohort, *self.engine.gradients(self._train, batches, w))

    def evaluate(self, w: Tensor) -> Evaluation:
        """See :class:`drfl.federation.Federation`."""
        return Evaluation(*self.engine.evaluate(self._test, self._test_rows, w), self._test_rows.sizes)

    def _draw(self, cohort: Tensor, key: Key, steps: int, batch: int | None) -> Batches:
        if batch is not None:
            checks.whole("batch", batch)
        return draw(self._rows, cohort, steps, batch, key, self._first)


def _behind_backbone(train: Problem, test: Problem) -> tuple[Problem, Problem]:
    """The problems with the features of a frozen backbone in place of the inputs."""
    parts = split(train.task)
    if parts is None or not narrows(parts.backbone, train.x):
        return train, test
    found = features(parts.backbone, train.x)
    tested = found if test.x is train.x else features(parts.backbone, test.x)
    return Problem(parts.task, found, train.y), Problem(parts.task, tested, test.y)


def _autocast(precision: str, dtype: torch.dtype) -> torch.dtype | None:
    if precision not in PRECISIONS:
        raise InputError(f"precision '{precision}' must be one of {', '.join(PRECISIONS)}")
    if precision == "bf16" and dtype != torch.float32:
        raise InputError(f"precision 'bf16' needs a model in float32, not {dtype}: leave one of them out")
    return PRECISIONS[precision]


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"device '{name}' is not there: {reason}") from error
    return device
