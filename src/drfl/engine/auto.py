"""The engine that is chosen to fit the model and the device."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from drfl.core.errors import Notice
from drfl.engine.base import Engine, Models, PooledData, Tests
from drfl.engine.batches import Batches, ClientRows
from drfl.engine.loop import Loop
from drfl.engine.sgd import has_convolutions
from drfl.engine.stacked import Stacked, stacking_fault
from drfl.engine.threads import Threads
from drfl.engine.tracing import LOG, model_of
from drfl.federation.requests import TrainRequest
from drfl.task.task import Task

SMALL = 4096
"""Numbers in a batch below which convolutions are so short that calling them one by one takes most of the time."""

LARGE, PASSES = 10**8, 64
"""Parameters × (samples + PASSES) of a client's step above which its products and updates keep a core busy. The passes
of the updates over memory count like PASSES samples."""

_stackable: WeakKeyDictionary[Task, bool] = WeakKeyDictionary()


def choice(problem: PooledData, batch: int) -> Engine:
    """Choose an engine: stacks for CUDA devices and small work, threads for large work and recurrent layers on a CPU.

    Work is large if a batch has many numbers and passes through convolutions, or if the model has many parameters.
    Models that ``vmap`` does not support also use threads on a CPU, and the loop on a CUDA device. The choice follows
    a fixed rule and not a measurement, because a run must give the same numbers on a busy machine.
    ``docs/results/speed.md`` has the timings behind the rule.

    Args:
        problem: Task and samples.
        batch: Samples per step of a client.
    """
    if problem.x.is_cuda:
        return Stacked() if stackable(problem) else Loop()
    model = problem.task.model
    images = has_convolutions(model) and batch * problem.x[0].numel() >= SMALL
    large = problem.task.layout.d * (batch + PASSES) >= LARGE
    # stackable comes last, because its first call tries a training step; the other tests only inspect the model.
    return Threads() if images or large or recurrent(model) or not stackable(problem) else Stacked()


def recurrent(model: nn.Module) -> bool:
    """Return whether the model contains a recurrent layer."""
    return any(isinstance(layer, nn.RNNBase | nn.RNNCellBase) for layer in model.modules())


def stackable(problem: PooledData) -> bool:
    """Return whether the stacked engine can run the model; if not, log the reason once per task."""
    if problem.task not in _stackable:
        fault = stacking_fault(problem)
        _stackable[problem.task] = fault is None
        if fault is not None:
            text = f"{model_of(problem.task)} cannot be stacked ({fault}), so clients are trained one by one"
            LOG.warning(Notice(text, "slow-model", "model"))
    return _stackable[problem.task]


@dataclass(frozen=True)
class Auto:
    """Passes each call to the engine that :func:`choice` selects."""

    def check(self, problem: PooledData) -> None:
        """Check the model for the threads engine, which gets large batches; see :class:`drfl.engine.base.Selective`."""
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
        # A test passes all clients' rows at once, so their total number is the batch size.
        return choice(problem, len(rows.index)).evaluate(problem, rows, models)
