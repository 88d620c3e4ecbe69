"""A sweep from its first run to its report, for `drfl sweep` and `drfl.sweep`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path

from drfl.core.errors import InputError
from drfl.core.user_code import label_of
from drfl.data import Dataset
from drfl.engine.ray_cluster import Cluster
from drfl.experiments.compare.outcomes import Outcome, StoredOutcomes
from drfl.experiments.compare.run_comparison import check_tracker
from drfl.experiments.compare.run_folders import (
    Answer,
    collect,
    keep_outcome,
    recall_outcome,
    run_elsewhere,
    run_in_folder,
)
from drfl.experiments.config.algorithm_settings import COMMON
from drfl.experiments.config.build import Setup, build_job, build_setup
from drfl.experiments.config.config import Config
from drfl.experiments.config.data_settings import LATEST, DataKey, load_latest
from drfl.experiments.config.latest import Latest
from drfl.experiments.config.ready_run import Job
from drfl.experiments.execution.executor import Shared, Workers, executor_of
from drfl.experiments.run.manifest import OUTCOMES, is_finished, read_manifest
from drfl.experiments.run.resume import key_of
from drfl.experiments.run.run_directory import ClaimedFolder, claim_folder, fill_folder
from drfl.experiments.run.runner import StopSignal
from drfl.experiments.sweep.results import Sweep, write_sweep
from drfl.experiments.sweep.study import SweepRun, SweepStudy
from drfl.training.callbacks import describe

Ended = Callable[[SweepRun, Outcome, int], None]
"""Called with each run that ends, its outcome, and the number of runs that have ended."""


def run_sweep(
    study: SweepStudy,
    place: Path,
    watch: StopSignal,
    workers: Workers,
    *,
    ended: Ended,
    warn: Callable[[str], None],
    resume: bool = False,
    overwrite: bool = False,
    numbered: bool = False,
    track: str | None = None,
) -> Sweep:
    """Run the missing runs of a sweep in one pool, and write its results unless no run has ended.

    A run that diverges or cannot start is an outcome like others. Runs of an earlier sweep in the folder that the
    study still contains are not repeated.
    """
    check_tracker(track, workers)
    key = key_of(study.runs[0].config, place)
    names = tuple(run.name for run in study.runs)
    before = read_manifest(place) if resume and place.is_dir() else None
    # Runs that the study no longer contains stay in the folder, but are not among its results.
    former = tuple(name for name in (() if before is None else before.cells) if name not in names)
    with claim_folder(
        place, "sweep", resume=resume, overwrite=overwrite, numbered=numbered, cells=(*names, *former),
        config=study.toml, warn=warn, key=key,
    ) as claim:  # fmt: skip
        if (claim.directory / OUTCOMES).is_file():
            for outcome in StoredOutcomes.read(claim.directory, "start again with `overwrite`").outcomes:
                if outcome.run in names and (outcome.failed or is_finished(claim.directory / outcome.run)):
                    keep_outcome(claim, outcome.run, outcome)
        claim.begin(study.toml)
        outcomes: dict[str, Outcome] = {}
        for run in study.runs:
            known = recall_outcome(claim, run.name, run.config.algorithm, run.config.seed)
            if known is not None:
                outcomes[run.name] = known._replace(run=run.name)
        missing = [run for run in study.runs if run.name not in outcomes]
        for run, outcome in _run_all(claim, missing, watch, workers, warn, track):
            outcomes[run.name] = outcome._replace(run=run.name)
            ended(run, outcome, len(outcomes))
        done = tuple(run for run in study.runs if run.name in outcomes)
        sweep = Sweep(study, done, tuple(outcomes[run.name] for run in done), claim.directory)
        if done:
            with fill_folder(claim) as folder:
                write_sweep(sweep, folder, former)
        claim.finished = sweep.is_complete
    return sweep


def describe_end(run: SweepRun, outcome: Outcome) -> str:
    """Describe a run that ended in one line."""
    if outcome.metrics is None:
        return f"{run.label}: {outcome.stopped}: {outcome.reason}"
    return f"{run.label}: {describe(outcome.metrics, run.config.measures[0])}"


def _run_all(
    claim: ClaimedFolder,
    missing: list[SweepRun],
    watch: StopSignal,
    workers: Workers,
    warn: Callable[[str], None],
    track: str | None,
) -> Iterator[tuple[SweepRun, Outcome]]:
    """Run in this process or in workers, and yield the runs as they end, each with its outcome."""
    if workers == 1 or not missing:
        for run in missing:
            outcome, _, lines = _run_here(claim, watch, run, track=track)
            for line in lines:
                warn(line)
            if outcome is None:
                return
            yield run, outcome
        return
    is_local = not isinstance(workers, Cluster)
    # Do not start more processes than there are runs: each takes seconds to start.
    count = workers if isinstance(workers, Cluster) else min(workers, len(missing))
    # A cluster does not get the claim, which holds the key that signs checkpoints.
    with executor_of(count, claim if is_local else None) as executor:
        call = _run_here if is_local else _run_elsewhere
        runs = {run.name: run for run in missing}
        data: dict[DataKey, Shared[Dataset]] = {}
        futures: dict[Future[Answer], str] = {}
        try:
            for run in missing:
                if run.config.key not in data:
                    data[run.config.key] = executor.share(load_latest(run.config))
                more = (track,) if is_local else ()
                futures[executor.submit(call, run, data[run.config.key], *more)] = run.name
            for name, outcome in collect(claim, executor, futures, watch, warn, is_local=is_local):
                if outcome is not None:
                    yield runs[name], outcome
        finally:
            executor.ask_to_stop()  # even if the caller does not consume all outcomes
            for shared in data.values():
                shared.close()


SETUPS = Latest[Setup]()
"""Clients, task and simulation of the last run in this process, which the next one mostly shares."""

NOT_IN_SETUP: Mapping[str, object] = {"algorithm": "FedAvg", "algorithms": {}, "files": {}, **dict.fromkeys(COMMON)}
"""Settings of the algorithm, on which the setup does not depend, with values to compare without them."""


def _job(config: Config, data: Shared[Dataset] | None) -> Job:
    dataset = load_latest(config) if data is None else LATEST.get(config.key, data.get)
    alike = config.model_copy(update=dict(NOT_IN_SETUP))
    return build_job(config, SETUPS.get((alike, config.key), lambda: build_setup(config, dataset)))


def _run_here(
    claim: ClaimedFolder,
    watch: StopSignal,
    run: SweepRun,
    data: Shared[Dataset] | None = None,
    track: str | None = None,
) -> Answer:
    """Run on this machine, where the worker writes the run's folder; the outcome is None after an interruption."""
    lines: list[str] = []
    # Do not start runs that were queued when the stop was requested.
    if watch.stop:
        return None, None, lines
    try:
        job = _job(run.config, data)
    except InputError as error:
        # One impossible point of a grid must not end the others.
        outcome = Outcome(label_of(run.config.algorithm), run.config.seed, "refused", reason=str(error))
        keep_outcome(claim, run.name, outcome)
        return outcome, None, lines
    outcome = run_in_folder(claim, run.name, lambda: job, watch, warn=lines.append, track=track)
    return outcome, None, lines


def _run_elsewhere(nothing: None, watch: StopSignal, run: SweepRun, data: Shared[Dataset]) -> Answer:
    """Run on another machine. A job that cannot be built is an outcome and does not end the others."""
    return run_elsewhere(run.config.algorithm, run.config.seed, lambda: _job(run.config, data))
