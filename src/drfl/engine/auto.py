"""The engine that fits the model and the device."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from drfl.core.errors import Notice
from drfl.engine.base import Engine, Models, PooledData, Tests
from drfl.engine.batches import Batches, ClientRows
from drfl.engine.loop import Loop
from drfl.engine.sgd import convolutional
from drfl.engine.stacked import Stacked, stacking_fault
from drfl.engine.threads import Threads
from drfl.engine.tracing import LOG, model_of
from drfl.federation.requests import TrainRequest
from drfl.task.task import Task

SMALL = 4096
"""Numbers in a batch below which convolutions are so short that calling them one by one takes most of the time."""

LARGE, PASSES = 10**8, 64
"""Parameters × (samples + PASSES) of a client's step from which its products and its updates fill a core by themselves;
the updates' passes over memory count as so many samples."""

_stackable: WeakKeyDictionary[Task, bool] = WeakKeyDictionary()


def choice(problem: PooledData, batch: int) -> Engine:
    """Stacks on a CUDA device and for small work; worker threads on a CPU for large work and for recurrent layers.

    Large is a batch of many numbers through convolutions, or many parameters. Models that ``vmap`` cannot take go to
    the threads too, on a CUDA device to the loop. A rule, not a measurement: a run must give the same numbers on a busy
    machine. ``docs/speed.md`` has the table that it rests on.

    Args:
        problem: task and samples.
        batch: samples of a client's step.
    """
    if problem.x.is_cuda:
        return Stacked() if stackable(problem) else Loop()
    model = problem.task.model
    images = convolutional(model) and batch * problem.x[0].numel() >= SMALL
    large = problem.task.layout.d * (batch + PASSES) >= LARGE
    # stackable comes last, as it tries a training step the first time; the others only look at the model.
    return Threads() if images or large or recurrent(model) or not stackable(problem) else Stacked()


def recurrent(model: nn.Module) -> bool:
    """Whether the model has a recurrent layer in it."""
    return any(isinstance(layer, nn.RNNBase | nn.RNNCellBase) for layer in model.modules())


def stackable(problem: PooledData) -> bool:
    """Whether the stacked engine can take the model; the log says why not, once a task."""
    if problem.task not in _stackable:
        fault = stacking_fault(problem)
        _stackable[problem.task] = fault is None
        if fault is not None:
            text = f"{model_of(problem.task)} cannot be stacked ({fault}): its clients are trained one by one"
            LOG.warning(Notice(text, "slow-model", "model"))
    return _stackable[problem.task]


@dataclass(frozen=True)
class Auto:
    """Hands every call on to the engine that :func:`choice` names."""

    def check(self, problem: PooledData) -> None:
        """See :class:`drfl.engine.base.Selective`; large batches go to the threads."""
        Threads().check(problem)

    def train(self, problem: PooledData, batches: Batches, request: TrainRequest) -> Models:
        """See :class:`drfl.engine.base.Engine`."""
        return choice(problem, batches.samples.shape[2]).train(problem, batches, request)

    def losses(self, problem: PooledData, batches: Batches, w: Tensor) -> Tensor:
        """See :class:`drfl.engine.base.Engine`."""
        return choice(problem, batches.samples.shape[2]).losses(problem, batches, w)

    def gradients(self, problem: PooledData, batches: Batches, w: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`drfl.engine.base.Engine`."""
        return choice(problem, batches.samples.shape[2]).gradients(problem, batches, w)

    def evaluate(self, problem: PooledData, rows: ClientRows, models: Tensor) -> list[Tests]:
        """See :class:`drfl.engine.base.Engine`."""
        # A test passes all clients' rows at once, so that their number is the batch.
        return choice(problem, len(rows.index)).evaluate(problem, rows, models)
