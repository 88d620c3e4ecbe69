"""A comparison from its first run to its report, for `drfl compare` and `drfl.compare`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

from drfl.core.errors import InputError, Notice
from drfl.engine.ray_cluster import Cluster
from drfl.experiments.assess.predicted_records import predicted_in, stored_labels
from drfl.experiments.compare.comparison import (
    PreparedComparison,
    compare,
    finished_outcomes,
    read_outcomes,
    recall_finished,
    start_comparison,
)
from drfl.experiments.compare.comparison_results import Comparison, cell_name, write_comparison
from drfl.experiments.compare.outcomes import Outcome
from drfl.experiments.compare.predicted import (
    Predictions,
    check_predictions,
    predicted_rows,
    store_predictions,
    with_stored,
)
from drfl.experiments.compare.run_folders import Answer, collect, recall_outcome, run_elsewhere, run_in_folder
from drfl.experiments.compare.stored_runs import predicted_row
from drfl.experiments.execution.executor import Workers, executor_of
from drfl.experiments.run.resume import key_of
from drfl.experiments.run.run_directory import ClaimedFolder, claim_folder, fill_folder
from drfl.experiments.run.runner import StopSignal
from drfl.training.loop import Callback
from drfl.training.trackers import parse as parse_tracker


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
    numbered: bool = False,
    modules: Collection[ModuleType] = (),
    predictions: Predictions | None = None,
) -> Comparison:
    """Run the missing runs of a comparison, and write its results unless no run has ended.

    ``ended`` gets the outcome of each run, in order, and the number of outcomes so far. ``progress`` returns the
    callbacks of a run, and is used with one worker only. An interrupted comparison has stored the predictions that it
    began with.
    """
    design, outcomes, key = ready.design, list[Outcome](), key_of(ready.design.settings, place)
    predictions = with_stored(predictions or {}, place, key) if resume else predictions or {}
    check_predictions(predictions, ready)
    if resume:
        finished_outcomes(place, ready)  # rejects those of other runs before anything is written
    with claim_folder(
        place, "comparison", resume=resume, overwrite=overwrite, numbered=numbered, cells=design.cells,
        config=ready.config, warn=warn, key=key,
    ) as claim:  # fmt: skip
        store_predictions(claim, predictions)
        start_comparison(claim, ready, warn)
        if resume:
            recall_finished(claim, ready)
        for line in ready.warnings:
            warn(line)
        dropped = [name for name in stored_labels(claim.directory) if name not in predictions]
        if resume and dropped:
            text = (
                f"{', '.join(dropped)}: these predictions were not passed again, so their rows are "
                "removed; to keep them, pass `predictions`"
            )
            warn(Notice(text, "predictions-removed", "predictions"))
        if workers == 1:
            runs = compare(ready, claim, watch, progress, warn)
        else:
            runs = compare_in_parallel(ready, claim, watch, workers, warn, modules)
        for outcome in runs:
            outcomes.append(outcome)
            ended(outcome, len(outcomes))
        comparison = ready.to_comparison(outcomes, claim.directory)
        if outcomes:
            comparison = replace(comparison, predicted=predicted_rows(predictions, ready, comparison, warn))
            with fill_folder(claim) as folder:
                write_comparison(comparison, folder, ready.identity)
        # Checkpoints and records are needed until all runs have ended.
        claim.finished = comparison.is_complete
    return comparison


def stored_comparison(ready: PreparedComparison, directory: Path) -> Comparison:
    """Return the finished comparison in a folder, with the predictions that it stores.

    Raises:
        InputError: If its data have changed, or a file is damaged.
    """
    comparison = ready.to_comparison(read_outcomes(directory, ready), directory)
    return replace(comparison, predicted=tuple(map(predicted_row, predicted_in(directory, comparison.records))))


def check_tracker(track: str | None, workers: Workers) -> None:
    """Check that the tracker can receive the runs' histories."""
    if track is None:
        return
    parse_tracker(track, "")
    if isinstance(workers, Cluster):
        raise InputError(
            "trackers write files of this machine, but the runs are on a cluster: remove `track`",
            code="conflicting-options",
            field="track",
        )


def compare_in_parallel(
    ready: PreparedComparison,
    claim: ClaimedFolder,
    watch: StopSignal,
    workers: Workers,
    warn: Callable[[str], None],
    modules: Collection[ModuleType],
) -> Iterator[Outcome]:
    """Run a comparison like :func:`drfl.experiments.compare.comparison.compare`, with several runs at a time.

    Outcomes come in the same order.
    """
    cells = dict(zip(ready.design.cells, ready.design.order, strict=True))
    # Outcomes that are stored are not computed again.
    known: dict[str, Outcome | None] = {
        name: stored for name, cell in cells.items() if (stored := recall_outcome(claim, name, *cell)) is not None
    }
    is_local = not isinstance(workers, Cluster)
    # Do not start more processes than there are runs: each takes seconds to start.
    count = workers if isinstance(workers, Cluster) else min(workers, len(cells) - len(known))
    ready.jobs.clear()  # workers build their own
    # A cluster does not get the claim, which holds the key that signs checkpoints.
    with executor_of(count, (ready, claim) if is_local else ready, modules) as executor:
        call = _run_here if is_local else _run_elsewhere
        futures = {executor.submit(call, *cell): name for name, cell in cells.items() if name not in known}
        importlib.import_module("drfl.report.compose")  # takes over a second, while this process only waits
        ended = collect(claim, executor, futures, watch, warn, is_local=is_local)
        try:
            for name in cells:
                # Outcomes are stored as they arrive, but yielded in the order of the design.
                while name not in known:
                    arrived = next(ended, None)
                    if arrived is None:  # a cluster was asked to stop
                        return
                    known[arrived[0]] = arrived[1]
                outcome = known[name]
                if outcome is None:  # an incomplete run would bias the means
                    return
                yield outcome
        finally:
            executor.ask_to_stop()  # even if the caller does not consume all outcomes


def _run_here(what: tuple[PreparedComparison, ClaimedFolder], watch: StopSignal, algorithm: str, seed: int) -> Answer:
    """Run on this machine, where the worker writes the run's folder; the outcome is None after an interruption."""
    (ready, claim), lines = what, list[str]()
    # Do not start runs that were queued when the stop was requested.
    if watch.stop:
        return None, None, lines
    make, name = partial(ready.job, algorithm, seed), cell_name(algorithm, seed)
    return run_in_folder(claim, name, make, watch, warn=lines.append, track=ready.track), None, lines


def _run_elsewhere(ready: PreparedComparison, watch: StopSignal, algorithm: str, seed: int) -> Answer:
    """Run on another machine. A job that cannot be built ends the comparison."""
    job = ready.job(algorithm, seed)
    return run_elsewhere(algorithm, seed, lambda: job)
