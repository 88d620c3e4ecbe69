"""Several runs side by side, whose calls of their engines are computed as one stack.

Each run has a thread of its own, but only one of them works at a time: it hands over when it calls its engine, and once
all have, calls of one form are computed together. So what is computed together, and in which order, depends on the runs
alone, and nothing that belongs to the process is used by two of them at once.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar, cast

import torch
from torch import Tensor

from drfl.core.intraop import allowed
from drfl.engine import joint, joint_training
from drfl.engine.auto import Auto, choice
from drfl.engine.base import Engine, Models, PooledData, Tests
from drfl.engine.batches import Batches, ClientRows
from drfl.engine.joint import EngineCall, Pools, results_of
from drfl.engine.stacked import Stacked
from drfl.federation.requests import TrainRequest

A = TypeVar("A")
T = TypeVar("T")

SMALL = 2**20
"""Samples × parameters of a run's call up to which it is computed with others on a CPU. In larger ones the share of
Python and torch is small, and a stack of several runs does not fit into the caches."""

Turn = Callable[[], object]
"""What a run goes on with: gives the result of its call."""


class Abandoned(BaseException):
    """Ends a run whose group is abandoned; no ``except Exception`` of a run holds it up."""


class LockstepRun:
    """A run of a group: where its thread and the group's leave each other word."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[EngineCall[object] | None] = SimpleQueue()
        self._turns: SimpleQueue[Turn | None] = SimpleQueue()
        self._abandoned = False
        self.trained = self.calls = 0
        self.waited = 0.0

    def ask(self, call: EngineCall[A]) -> A:
        """In the run's thread: the result of a call, once it is this run's turn again."""
        self._asked.put(cast("EngineCall[object]", call))
        # Threads of torch are a setting of the process in part: a run finds its own again.
        threads, began = torch.get_num_threads(), time.perf_counter()
        turn = self.wait()
        self.waited += time.perf_counter() - began
        torch.set_num_threads(threads)
        return cast("A", turn())

    def wait(self) -> Turn:
        """In the run's thread: wait for its turn."""
        turn = None if self._abandoned else self._turns.get()
        if turn is None:
            raise Abandoned
        return turn

    def end(self) -> None:
        """In the run's thread: hand over for good."""
        self._asked.put(None)

    def go_on(self, turn: Turn) -> EngineCall[object] | None:
        """In the group's thread: let the run go on up to its next call; None where it has ended."""
        self._turns.put(turn)
        call = self._asked.get()
        if call is not None:
            self.calls += 1
            self.trained += call.request is not None
        return call

    def abandon(self) -> None:
        """In the group's thread: have the run end at its call."""
        self._abandoned = True
        self._turns.put(None)


_member: ContextVar[LockstepRun | None] = ContextVar("member", default=None)


def own_seconds() -> float:
    """Seconds, from any moment on, without those in which a run of :func:`run_in_lockstep`'s waited for the others."""
    member = _member.get()
    return time.perf_counter() - (0.0 if member is None else member.waited)


def run_in_lockstep(functions: Sequence[Callable[[], T]]) -> list[Future[T]]:
    """Call functions side by side; calls of their engines that fit together are computed as one stack.

    The rows of a stack are in the order of the functions.

    Args:
        functions: each makes and plays a run, whose simulation has an engine from :func:`shared`.

    Returns:
        What each gave or raised: an error ends its own run alone.
    """
    members, futures = [LockstepRun() for _ in functions], [Future[T]() for _ in functions]
    threads = allowed()

    def body(function: Callable[[], T], member: LockstepRun, future: Future[T]) -> None:
        _member.set(member)
        try:
            member.wait()
            torch.set_num_threads(threads)
            future.set_result(function())
        except BaseException as error:  # whoever asks for the result is to have it
            future.set_exception(error)
        finally:
            member.end()

    begun = [
        # A context of its own: what a run sets in it is not for the others.
        threading.Thread(target=contextvars.copy_context().run, args=(body, *own), daemon=True)
        for own in zip(functions, members, futures, strict=True)
    ]
    try:
        for thread in begun:
            thread.start()
        _conduct(members)
    except BaseException:  # Ctrl-C reaches this thread alone
        for member in members:
            member.abandon()
        raise
    finally:
        for thread in begun:
            if thread.ident is not None:
                thread.join()
        torch.set_num_threads(threads)
    return futures


def _conduct(members: Sequence[LockstepRun]) -> None:
    """Give the runs their turns, one at a time, until all have ended."""
    pools, waiting = Pools(), dict[int, EngineCall[object]]()
    turns = dict[int, Turn].fromkeys(range(len(members)), lambda: None)
    while turns:
        for i, turn in turns.items():
            call = members[i].go_on(turn)
            if call is not None:
                waiting[i] = call
        turns = _next(members, waiting, pools)
        for i in turns:
            del waiting[i]


def _next(members: Sequence[LockstepRun], waiting: dict[int, EngineCall[object]], pools: Pools) -> dict[int, Turn]:
    """The runs whose calls are computed next, all of one form, and what they go on with.

    The run that is furthest behind is among them: that with the fewest local steps asked for, as they come once a
    round, and before local steps comes whatever else is waited for. So runs fall into step, also those that took more
    calls to find a step size.
    """
    if not waiting:
        return {}

    def progress(i: int) -> tuple[int, int, int]:
        return members[i].trained, members[i].calls, i

    form = waiting[min(waiting, key=progress)].form
    chosen = [i for i in sorted(waiting) if waiting[i].form == form]
    together = _Together([waiting[i] for i in chosen], pools)
    return {i: partial(together.of, position) for position, i in enumerate(chosen)}


class _Together(Generic[A]):
    """The results of calls of one form, computed by the first run that goes on, in its thread and with its threads."""

    def __init__(self, calls: Sequence[EngineCall[A]], pools: Pools) -> None:
        self._calls, self._pools = calls, pools
        self._results: list[A] | None = None
        self._failed = False

    def of(self, position: int) -> A:
        """That of one of them."""
        if self._results is None and not self._failed:
            try:
                self._results = results_of(self._calls, self._pools)
            except Exception:  # of one of the runs, or for want of memory: each is to see its own alone
                self._failed = True
        return self._calls[position].alone() if self._results is None else self._results[position]


def shared(engine: Engine) -> Engine:
    """The engine of a run in lockstep; the engine itself elsewhere, and where it does not stack clients."""
    member = _member.get()
    return engine if member is None or not isinstance(engine, Auto | Stacked) else Shared(engine, member)


@dataclass(frozen=True)
class Shared:
    """An engine whose small calls wait for those of the other runs; see :func:`run_in_lockstep`.

    Large ones are computed at once, as the engine does.

    Args:
        engine: computes what is not computed together.
        member: the run.
    """

    engine: Auto | Stacked
    member: LockstepRun

    def check(self, problem: PooledData) -> None:
        """See :class:`drfl.engine.base.Selective`."""
        self.engine.check(problem)

    def _stacked(self, problem: PooledData, batches: Batches) -> Stacked | None:
        """The stacked engine, where it is the one that computes the call, and the call is small."""
        k, _, B = batches.samples.shape
        if not problem.x.is_cuda and k * B * problem.task.layout.d > SMALL:
            return None
        engine = choice(problem, B) if isinstance(self.engine, Auto) else self.engine
        return engine if isinstance(engine, Stacked) else None

    def train(self, problem: PooledData, batches: Batches, request: TrainRequest) -> Models:
        """See :class:`drfl.engine.base.Engine`."""
        stacked = self._stacked(problem, batches)
        if stacked is None:
            return self.engine.train(problem, batches, request)
        alone = partial(stacked.train, problem, batches, request)
        settings = joint_training.solver_of(request)
        call = EngineCall(stacked, problem, batches, request.w, alone, joint_training.train, request, settings)
        return self.member.ask(call)

    def losses(self, problem: PooledData, batches: Batches, w: Tensor) -> Tensor:
        """See :class:`drfl.engine.base.Engine`."""
        stacked = self._stacked(problem, batches)
        if stacked is None:
            return self.engine.losses(problem, batches, w)
        alone = partial(stacked.losses, problem, batches, w)
        return self.member.ask(EngineCall(stacked, problem, batches, w, alone, joint.losses))

    def gradients(self, problem: PooledData, batches: Batches, w: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`drfl.engine.base.Engine`."""
        stacked = self._stacked(problem, batches)
        if stacked is None:
            return self.engine.gradients(problem, batches, w)
        alone = partial(stacked.gradients, problem, batches, w)
        return self.member.ask(EngineCall(stacked, problem, batches, w, alone, joint.gradients))

    def evaluate(self, problem: PooledData, rows: ClientRows, models: Tensor) -> list[Tests]:
        """See :class:`drfl.engine.base.Engine`."""
        return self.engine.evaluate(problem, rows, models)
