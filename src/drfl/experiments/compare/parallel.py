"""The runs of a comparison in other processes, with the same files as one after the other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from types import ModuleType

from drfl.engine.ray_cluster import Cluster
from drfl.experiments.compare.comparison import PreparedComparison, recalled, run_or_recall, store
from drfl.experiments.compare.outcomes import Outcome, ran
from drfl.experiments.execution.executor import LOOK, Workers, executor_of
from drfl.experiments.run.artifacts import write_run
from drfl.experiments.run.run_directory import ClaimedFolder
from drfl.experiments.run.runner import StopSignal, execute

Files = dict[str, bytes]
"""A run's folder."""


def compare_in_parallel(
    ready: PreparedComparison,
    claim: ClaimedFolder,
    watch: StopSignal,
    workers: Workers,
    warn: Callable[[str], None],
    own: Collection[ModuleType] = (),
) -> Iterator[Outcome]:
    """As :func:`drfl.experiments.compare.comparison.compare`, with several runs at a time, in the same order.

    Workers on this machine write their runs themselves, with checkpoints, and end a run after its round when they are
    asked to stop. What has ended on a cluster is written here at once, in any order; a run that is interrupted there
    starts from its beginning next time.

    Args:
        ready: What is compared.
        claim: The comparison's folder.
        watch: Ends the comparison.
        workers: Where the runs are.
        warn: Gets a line if a run continues from a checkpoint.
        own: The user's modules, see :func:`drfl.experiments.execution.executor.pickled`.

    Raises:
        InputError: What is compared cannot be sent to another process, there is no such cluster, or see ``compare``.
        DrflError: A worker was lost.
    """
    order = ready.design.order
    # Report cells that have ended without running them again.
    known: dict[tuple[str, int], Outcome | None] = {
        cell: found for cell in order if (found := recalled(claim, *cell)) is not None
    }
    here = not isinstance(workers, Cluster)
    ready.jobs.clear()  # workers build theirs themselves
    # A cluster does not get the claim: it has the key that signs checkpoints.
    with executor_of(workers, (ready, claim) if here else ready, own) as executor:
        call = _run_here if here else _run_elsewhere
        futures: dict[Future[tuple[Outcome | None, Files | None, list[str]]], tuple[str, int]] = {
            executor.submit(call, *cell): cell for cell in order if cell not in known
        }
        try:
            for cell in order:
                while cell not in known:
                    # Keep outcomes as they arrive, but yield them in the order of the design. Wake up regularly: a
                    # signal only sets a flag.
                    done = wait(futures, LOOK, FIRST_COMPLETED).done
                    # What has ended is kept before an error is raised.
                    for future in sorted(done, key=lambda future: future.exception() is not None):
                        outcome, files, lines = future.result()
                        if outcome is not None and not here:
                            store(claim, outcome, files)
                        for line in lines:
                            warn(line)
                        known[futures.pop(future)] = outcome
                    if watch.stop:
                        executor.ask_to_stop()
                        if not here and cell not in known:
                            return
                outcome = known[cell]
                if outcome is None:  # a cell cut short would bias the means
                    return
                yield outcome
        finally:
            executor.ask_to_stop()  # also if the caller has had enough


def _run_here(
    what: tuple[PreparedComparison, ClaimedFolder], watch: StopSignal, algorithm: str, seed: int
) -> tuple[Outcome | None, None, list[str]]:
    """A run on this machine, whose worker writes its folder; its outcome is None if it was interrupted."""
    lines: list[str] = []
    # Do not start cells that were queued when the stop was requested.
    if watch.stop:
        return None, None, lines
    return run_or_recall(*what, watch, algorithm, seed, warn=lines.append), None, lines


def _run_elsewhere(
    ready: PreparedComparison, watch: StopSignal, algorithm: str, seed: int
) -> tuple[Outcome, Files | None, list[str]]:
    """A run on another machine, and the files of its folder."""
    job = ready.job(algorithm, seed)
    outcome, finished = ran(algorithm, seed, lambda: execute(job))
    if finished is None:
        return outcome, None, []
    with tempfile.TemporaryDirectory(prefix="drfl-") as folder:
        write_run(Path(folder), finished)
        return outcome, {path.name: path.read_bytes() for path in Path(folder).iterdir()}, []
