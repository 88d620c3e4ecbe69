"""The runs of a comparison in worker processes, with the same files as one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import wait
from types import ModuleType

import cloudpickle

from drfl.core.errors import InputError
from drfl.core.user_code import keep_out, kept_out
from drfl.engine.ray_cluster import Cluster
from drfl.experiments.compare.comparison import PreparedComparison, run_or_recall
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
) -> Iterator[Outcome]:
    """:func:`compare_in_processes`, or :func:`drfl.experiments.compare.comparison_ray.compare_on_ray`."""
    if isinstance(workers, Cluster):
        from drfl.experiments.compare.comparison_ray import compare_on_ray

        return compare_on_ray(ready, claim, watch, workers, own)
    return compare_in_processes(ready, claim, watch, workers, warn, own)


def compare_in_processes(
    ready: PreparedComparison,
    claim: ClaimedFolder,
    watch: StopSignal,
    jobs: int,
    warn: Callable[[str], None],
    own: Collection[ModuleType] = (),
) -> Iterator[Outcome]:
    """As :func:`drfl.experiments.compare.comparison.compare`, with several runs at a time, in the same order.

    Args:
        ready: what is compared. It goes to the workers by cloudpickle, so that what a notebook defines may be in it.
        claim: the comparison's folder.
        watch: ends it: runs under way stop after their round.
        jobs: how many processes.
        warn: gets a line where a run goes on.
        own: the user's modules, which the workers get whole, as they may not find them.

    Raises:
        InputError: what is compared cannot be sent to another process, or see ``compare``.
        DrflError: a worker died.
    """
    # Workers map one shared copy of the data.
    tensors = SharedTensors()
    try:
        with WorkerProcesses(jobs, _enter, pickled((ready, claim, kept_out()), own, tensors.dumps)) as processes:
            try:
                futures = [processes.submit(_cell, *cell) for cell in ready.design.order]
                for future in futures:
                    # Wake up regularly: a signal only sets a flag.
                    while not wait([future], LOOK).done:
                        if watch.stop:
                            processes.ask_to_stop()
                    outcome, lines = future.result()
                    for line in lines:
                        warn(line)
                    if outcome is None:
                        break
                    yield outcome
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


def _cell(algorithm: str, seed: int) -> tuple[Outcome | None, list[str]]:
    lines: list[str] = []
    if _ComparisonWorker.failed:
        raise InputError(
            f"what is compared cannot be made in another process ({_ComparisonWorker.failed}): leave jobs out",
            code="not-picklable",
            field="jobs",
        )
    # Do not start cells that were queued when the stop was requested.
    if _ComparisonWorker.watch.stop:
        return None, lines
    ready, claim, watch = _ComparisonWorker.ready, _ComparisonWorker.claim, _ComparisonWorker.watch
    return run_or_recall(ready, claim, watch, algorithm, seed, warn=lines.append), lines
