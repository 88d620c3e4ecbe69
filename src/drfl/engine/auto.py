"""The engine that is predicted to be the fastest for the model, the cohort and the device."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from torch import Tensor

from drfl.core.errors import Notice
from drfl.engine.base import Engine, Models, PooledData, Tests
from drfl.engine.batches import Batches, ClientRows
from drfl.engine.sgd import has_images
from drfl.engine.stacked import MEGABYTES, Stacked, trial_of
from drfl.engine.step_cost import STACKED, THREADS, multiplications_per_row, step_cost
from drfl.engine.threads import Threads
from drfl.engine.tracing import LOG, model_of
from drfl.federation.requests import TrainRequest
from drfl.task.task import Task

SMALL = 4096
"""With fewer numbers in the rows of a pass, convolutions are so short that the calls take most of the time."""

LARGE, PASSES = 10**8, 64
"""Passes over rows keep several threads busy if multiplications per row × (rows + PASSES) exceed this."""

LEVEL = 1.12
"""Maximum ratio of predicted times at which threads are chosen although a stack may be faster. The prediction is not
more exact, and beside busy processes a stack that uses all cores waits for its slowest thread.
"""

_stackable: WeakKeyDictionary[Task, bool] = WeakKeyDictionary()
_choices: WeakKeyDictionary[Task, dict[Hashable, Engine]] = WeakKeyDictionary()


def choice(problem: PooledData, clients: int, batch: int) -> Engine:
    """Choose an engine for local steps.

    On a CUDA device that is the stacked engine, with one client per stack if the model cannot be stacked. On a CPU it
    is the one with the smaller predicted time, and threads if the times are similar. The prediction counts the model's
    work and measures nothing, because a run must give the same numbers on a busy machine.

    Args:
        problem: Task and samples.
        clients: Number of clients.
        batch: Samples per step of a client.
    """
    if problem.x.is_cuda:
        return _on_cuda(problem)
    choices, key = _choices.setdefault(problem.task, {}), (clients, batch, problem.autocast, problem.x.shape[1:])
    if key in choices:
        return choices[key]
    threads, least = THREADS.of(problem, batch, step_cost(problem).operations), STACKED.of(problem, batch, 0)
    if threads <= least:
        # The trial takes as long as several steps of a large model, and would not change the decision.
        engine = _explained(Threads(), problem, clients, batch, threads, least, "at least")
    elif not stackable(problem):
        engine = Threads()
    else:
        # A client's share of the operations of its stack, see Stacked.
        client = batch * problem.x[:1].nbytes + 3 * problem.task.w0.nbytes
        together = min(clients, max(1, MEGABYTES * 2**20 // client))
        trial = trial_of(problem)
        stacked = STACKED.of(problem, batch, trial.operations / together + trial.unstacked)
        faster = Threads() if threads < LEVEL * stacked else Stacked()
        engine = _explained(faster, problem, clients, batch, threads, stacked, "about")
    choices[key] = engine
    return engine


def _on_cuda(problem: PooledData) -> Stacked:
    return Stacked() if stackable(problem) else Stacked(clients=1)


def _explained(
    engine: Engine, problem: PooledData, clients: int, batch: int, threads: float, stacked: float, bound: str
) -> Engine:
    LOG.debug(
        "engine %s for %s, %d clients, %d samples: a client's step is predicted to take %.2f ms of a core in threads, "
        "%s %.2f ms in a stack (%s)",
        type(engine).__name__.lower(),
        model_of(problem.task),
        clients,
        batch,
        threads / 1e6,
        bound,
        stacked / 1e6,
        ", ".join(f"{name} {value:.3g}" for name, value in step_cost(problem)._asdict().items()),
    )
    return engine


def pass_choice(problem: PooledData, rows: int) -> Engine:
    """Choose an engine for losses, gradients and tests at given models.

    On a CPU, use threads if the pass is large or the model cannot be stacked, and stacks otherwise.

    Args:
        problem: Task and samples.
        rows: Rows of a client, or all rows of a test.
    """
    if problem.x.is_cuda:
        return _on_cuda(problem)
    images = has_images(problem) and rows * problem.x[0].numel() >= SMALL
    large = multiplications_per_row(problem) * (rows + PASSES) >= LARGE
    # stackable comes last, because its first call tries a training step.
    return Threads() if images or large or not stackable(problem) else Stacked()


def stackable(problem: PooledData) -> bool:
    """Return whether the stacked engine can run the model; if not, log the reason once per task."""
    if problem.task not in _stackable:
        fault = trial_of(problem).fault
        _stackable[problem.task] = fault is None
        if fault is not None:
            text = f"{model_of(problem.task)} cannot be stacked ({fault}), so clients are trained one by one"
            LOG.warning(Notice(text, "slow-model", "model"))
    return _stackable[problem.task]


@dataclass(frozen=True)
class Auto:
    """Passes each call to the engine that :func:`choice` or :func:`pass_choice` selects.

    The log ``drfl.engine`` explains the choices at level DEBUG.
    """

    def check(self, problem: PooledData) -> None:
        """Check the model for the threads engine, which gets large batches; see :class:`drfl.engine.base.Selective`."""
        Threads().check(problem)

    def train(self, problem: PooledData, batches: Batches, request: TrainRequest) -> Models:
        """See :class:`drfl.engine.base.Engine`."""
        return choice(problem, len(request.cohort), batches.samples.shape[2]).train(problem, batches, request)

    def losses(self, problem: PooledData, batches: Batches, w: Tensor) -> Tensor:
        """See :class:`drfl.engine.base.Engine`."""
        return pass_choice(problem, batches.samples.shape[2]).losses(problem, batches, w)

    def gradients(self, problem: PooledData, batches: Batches, w: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`drfl.engine.base.Engine`."""
        return pass_choice(problem, batches.samples.shape[2]).gradients(problem, batches, w)

    def evaluate(self, problem: PooledData, rows: ClientRows, models: Tensor) -> list[Tests]:
        """See :class:`drfl.engine.base.Engine`."""
        # A test passes all clients' rows at once, so their total number is the batch size.
        return pass_choice(problem, len(rows.index)).evaluate(problem, rows, models)
