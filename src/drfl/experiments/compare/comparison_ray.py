"""The runs of a comparison on a Ray cluster, with the same files as one after the other, which are written here."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from types import ModuleType

from drfl.engine.ray_cluster import Cluster
from drfl.experiments.compare.comparison import PreparedComparison, ran, recalled, store
from drfl.experiments.execution.pool import LOOK
from drfl.experiments.execution.ray_pool import Tasks
from drfl.experiments.run.artifacts import write_run
from drfl.experiments.run.run_directory import ClaimedFolder
from drfl.experiments.run.runner import Outcome, StopSignal, execute

Files = dict[str, bytes]
"""A run's folder."""


def compare_on_ray(
    ready: PreparedComparison,
    claim: ClaimedFolder,
    watch: StopSignal,
    cluster: Cluster,
    own: Collection[ModuleType] = (),
) -> Iterator[Outcome]:
    """As :func:`drfl.experiments.compare.comparison_processes.compare_in_processes`, on a cluster.

    What has ended is kept at once, in any order; of a run under way nothing is kept, and one that was interrupted
    elsewhere is begun anew.

    Args:
        ready: what is compared; workers get it, with its data, from the object store, once each.
        claim: the comparison's folder, to which workers do not write.
        watch: ends it: runs under way are dropped.
        cluster: where.
        own: the user's modules, which the workers get whole.

    Raises:
        InputError: what is compared cannot be sent, there is no such cluster, or see ``compare``.
        DrflError: a worker was lost again and again.
    """
    order = ready.design.order
    # Report cells that have ended without running them again.
    known = {cell: found for cell in order if (found := recalled(claim, *cell)) is not None}
    tasks = Tasks(cluster, ready, _cell, own)
    try:
        asked = {tasks.begin(*cell): cell for cell in order if cell not in known}
        for cell in order:
            while cell not in known:
                # Store outcomes as they arrive, but yield them in the order of the design.
                for ref in tasks.ended(LOOK):
                    result = tasks.result(ref)
                    assert isinstance(result, tuple)
                    outcome, files = result  # see _cell
                    store(claim, outcome, files)
                    known[asked[ref]] = outcome
                if watch.stop and cell not in known:
                    return
            yield known[cell]
    finally:
        tasks.stop()  # also where the caller has had enough


def _cell(ready: PreparedComparison, algorithm: str, seed: int) -> tuple[Outcome, Files | None]:
    """A run on a worker, and the files of its folder."""
    job = ready.build(algorithm, seed)
    outcome, finished = ran(algorithm, seed, lambda: execute(job))
    if finished is None:
        return outcome, None
    with tempfile.TemporaryDirectory(prefix="drfl-") as folder:
        write_run(Path(folder), finished.job, finished.result)
        return outcome, {path.name: path.read_bytes() for path in Path(folder).iterdir()}
