"""A comparison from its first run to its report, in a folder: what `drfl compare` and `drfl.compare` share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import ModuleType

from drfl.experiments.compare.comparison import PreparedComparison, compare, start
from drfl.experiments.compare.comparison_results import Comparison, write_comparison
from drfl.experiments.compare.outcomes import Outcome
from drfl.experiments.compare.parallel import compare_in_parallel
from drfl.experiments.execution.executor import Workers
from drfl.experiments.run.resume import key_of
from drfl.experiments.run.run_directory import claimed, filled
from drfl.experiments.run.runner import StopSignal
from drfl.training.loop import Callback


def run_comparison(
    ready: PreparedComparison,
    place: Path,
    watch: StopSignal,
    workers: Workers,
    *,
    ended: Callable[[Outcome, int], None],
    warn: Callable[[str], None],
    progress: Callable[[str, int], Sequence[Callback]] = lambda algorithm, seed: (),
    resume: bool = False,
    overwrite: bool = False,
    anew: bool = False,
    own: Collection[ModuleType] = (),
) -> Comparison:
    """Run what has not ended of a comparison, and write its results unless no run has ended.

    Args:
        ready: what is compared.
        place: its folder.
        watch: ends it.
        workers: where its runs are.
        ended: called with the outcome of each run, in order, and with their number so far.
        warn: gets a line on what may matter.
        progress: callbacks for each run; for one worker only.
        resume: see :func:`drfl.experiments.run.run_directory.claimed`.
        overwrite: see there.
        anew: see there.
        own: the user's modules, see :func:`drfl.experiments.execution.executor.pickled`.

    Raises:
        InputError: a run cannot be built, or the folder cannot be written to or holds something else.
        DrflError: a worker was lost.
    """
    design, outcomes = ready.design, list[Outcome]()
    with claimed(
        place, "comparison", resume=resume, overwrite=overwrite, anew=anew, cells=design.cells,
        config=ready.config, tell=warn, key=key_of(design.settings, place),
    ) as claim:  # fmt: skip
        start(claim, ready, warn)
        for line in ready.warnings:
            warn(line)
        if workers == 1:
            found = compare(ready, claim, watch, progress, warn)
        else:
            found = compare_in_parallel(ready, claim, watch, workers, warn, own)
        for outcome in found:
            outcomes.append(outcome)
            ended(outcome, len(outcomes))
        comparison = ready.compared(outcomes, claim.directory)
        if outcomes:
            with filled(claim) as folder:
                write_comparison(comparison, folder, ready.identity)
        # Checkpoints and records of cells are needed until all cells are done.
        claim.finished = comparison.is_complete
    return comparison
