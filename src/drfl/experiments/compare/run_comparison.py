"""A comparison from its first run to its report, in a folder; `drfl compare` and `drfl.compare` share it."""

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
    """Run the missing runs of a comparison, and write its results unless no run has ended.

    Args:
        ready: The comparison.
        place: Its folder.
        watch: Tells whether to stop.
        workers: Where runs are computed.
        ended: Called with the outcome of each run, in order, and the number of outcomes so far.
        warn: Called with lines for the user.
        progress: Returns the callbacks of a run; used with one worker only.
        resume: See :func:`drfl.experiments.run.run_directory.claimed`.
        overwrite: See there.
        anew: See there.
        own: The user's modules, see :func:`drfl.experiments.execution.executor.pickled`.

    Raises:
        InputError: If a run cannot be built, or the folder holds something else or cannot be written to.
        DrflError: If a worker was lost.
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
            runs = compare(ready, claim, watch, progress, warn)
        else:
            runs = compare_in_parallel(ready, claim, watch, workers, warn, own)
        for outcome in runs:
            outcomes.append(outcome)
            ended(outcome, len(outcomes))
        comparison = ready.compared(outcomes, claim.directory)
        if outcomes:
            with filled(claim) as folder:
                write_comparison(comparison, folder, ready.identity)
        # Checkpoints and records are needed until all runs have ended.
        claim.finished = comparison.is_complete
    return comparison
