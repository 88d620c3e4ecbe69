"""The runs of a comparison in worker processes, with the same files as one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import wait
from types import ModuleType

import cloudpickle

from drfl.core.errors import InputError
from drfl.core.user_code import keep_out, kept_out
from drfl.engine.ray_cluster import Cluster
from drfl.experiments.compare.comparison import PreparedComparison, run_or_recall_stack
from drfl.experiments.execution.pool import LOOK, Workers, pickled
from drfl.experiments.execution.shared_tensors import SharedTensors
from drfl.experiments.execution.worker_processes import StopFlag, WorkerProcesses
from drfl.experiments.run.run_directory import ClaimedFolder
from drfl.experiments.run.runner import Outcome, StopSignal


class _Asked(StopSignal):
    """Stops a worker's run when the process that made it says so."""

    def __init__(self, flag: StopFlag) -> None:
        super().__init__()
        self.flag = flag

    @property
    def stop(self) -> bool:
        return self.flag.is_set()


class _ComparisonWorker:
    """What a worker process has: the comparison, and the word to stop."""

    ready: PreparedComparison
    claim: ClaimedFolder
    watch: StopSignal
    failed: str = ""


def compare_at_once(
    ready: PreparedComparison,
    claim: ClaimedFolder,
    watch: StopSignal,
    workers: Workers,
    warn: Callable[[str], None],
    own: Collection[ModuleType] = (),
    stack: int = 1,
) -> Iterator[Outcome]:
    """:func:`compare_in_processes`, or :func:`drfl.experiments.compare.comparison_ray.compare_on_ray`."""
    if isinstance(workers, Cluster):
        from drfl.experiments.compare.comparison_ray import compare_on_ray

        return compare_on_ray(ready, claim, watch, workers, own)
    return compare_in_processes(ready, claim, watch, workers, warn, own, stack)


def compare_in_processes(
    ready: PreparedComparison,
    claim: ClaimedFolder,
    watch: StopSignal,
    jobs: int,
    warn: Callable[[str], None],
    own: Collection[ModuleType] = (),
    stack: int = 1,
) -> Iterator[Outcome]:
    """As :func:`drfl.experiments.compare.comparison.compare`, with several runs, or stacks, at a time, in the same
    order.

    Args:
        ready: what is compared. It goes to the workers by cloudpickle, so that what a notebook defines may be in it.
        claim: the comparison's folder.
        watch: ends it: runs under way stop after their round.
        jobs: how many processes.
        warn: gets a line where a run goes on.
        own: the user's modules, which the workers get whole, as they may not find them.
        stack: so many seeds of an algorithm are run side by side in a process.

    Raises:
        InputError: what is compared cannot be sent to another process, or see ``compare``.
        DrflError: a worker died.
    """
    # Workers map one shared copy of the data.
    tensors = SharedTensors()
    try:
        with WorkerProcesses(jobs, _enter, pickled((ready, claim, kept_out()), own, tensors.dumps)) as processes:
            try:
                futures = [processes.submit(_cells, cells) for cells in ready.design.stacks(stack)]
                for future in futures:
                    # Wake up regularly: a signal only sets a flag.
                    while not wait([future], LOOK).done:
                        if watch.stop:
                            processes.ask_to_stop()
                    outcomes, lines = future.result()
                    for line in lines:
                        warn(line)
                    yield from (outcome for outcome in outcomes if outcome is not None)
                    if None in outcomes:
                        break
            finally:
                processes.ask_to_stop()  # also if the caller has had enough
    finally:
        tensors.close()


def _enter(payload: bytes, stop: StopFlag) -> None:
    _ComparisonWorker.watch = _Asked(stop)
    try:
        _ComparisonWorker.ready, _ComparisonWorker.claim, folders = cloudpickle.loads(payload)
        for folder in folders:
            keep_out(folder)
    except Exception as error:  # an error here would look like a process that was killed
        _ComparisonWorker.failed = f"{type(error).__name__}: {' '.join(str(error).split())}"


def _cells(cells: Sequence[tuple[str, int]]) -> tuple[list[Outcome | None], list[str]]:
    lines: list[str] = []
    if _ComparisonWorker.failed:
        raise InputError(
            f"what is compared cannot be made in another process ({_ComparisonWorker.failed}): leave jobs out",
            code="not-picklable",
            field="jobs",
        )
    # Do not start cells that were queued when the stop was requested.
    if _ComparisonWorker.watch.stop:
        return [None], lines
    return run_or_recall_stack(
        _ComparisonWorker.ready, _ComparisonWorker.claim, _ComparisonWorker.watch, cells, warn=lines.append
    ), lines
