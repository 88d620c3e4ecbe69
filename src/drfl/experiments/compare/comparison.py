"""Comparisons of several algorithms over several seeds, whose runs are stored as they end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from drfl.core.errors import InputError, Notice
from drfl.core.json_toml import read_toml
from drfl.core.user_code import label_of
from drfl.experiments.compare.comparison_results import Comparison, cell_name
from drfl.experiments.compare.outcomes import Outcome, StoredOutcomes
from drfl.experiments.compare.run_folders import keep_outcome, recall_outcome, run_in_folder
from drfl.experiments.config.about_run import AboutRun, comparison_toml
from drfl.experiments.config.build import JobBuilder, build_job, build_setup
from drfl.experiments.config.config import Config
from drfl.experiments.config.data_settings import load_data
from drfl.experiments.config.ready_run import Job
from drfl.experiments.config.run_settings import RunSettings
from drfl.experiments.execution import records
from drfl.experiments.run.manifest import CHECKPOINT, IDENTITY, OUTCOMES, is_finished, read_manifest
from drfl.experiments.run.resume import check_same, check_settings, identity
from drfl.experiments.run.run_directory import ClaimedFolder
from drfl.experiments.run.run_warnings import warnings_of
from drfl.experiments.run.runner import StopSignal
from drfl.task.measure import Measure
from drfl.training.checkpoint import DamagedError
from drfl.training.loop import Callback


class Design(NamedTuple):
    """The design of a comparison: settings, algorithms and seeds."""

    settings: RunSettings
    algorithms: tuple[str, ...]
    seeds: tuple[int, ...]

    @property
    def order(self) -> tuple[tuple[str, int], ...]:
        """Algorithm and seed of each run, in the order in which they run."""
        # Seed by seed: consecutive runs share data and model, and an interrupted comparison has whole seeds to compare.
        return tuple((algorithm, seed) for seed, algorithm in itertools.product(self.seeds, self.algorithms))

    def in_order(self, outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
        """Sort outcomes into :attr:`order`."""
        # Outcomes arrive in order of completion.
        places = {(label_of(algorithm), seed): place for place, (algorithm, seed) in enumerate(self.order)}
        return tuple(sorted(outcomes, key=lambda outcome: places[outcome.algorithm, outcome.seed]))

    @property
    def cells(self) -> tuple[str, ...]:
        """The names of the runs' folders, in that order."""
        return tuple(cell_name(*cell) for cell in self.order)


Build = Callable[[str, int], Job]
"""Builds the run of an algorithm, by its name, at a seed."""


class PreparedComparison(NamedTuple):
    """A comparison whose algorithms can all start.

    Args:
        design: The settings, algorithms and seeds.
        build: Builds its runs.
        about: The description of a run of each algorithm.
        measures: The metrics, the score first.
        clients: N.
        identity: The identity of the first algorithm's run at the first seed, see
            :func:`drfl.experiments.run.resume.identity`.
        warnings: Warnings about its data, see :func:`drfl.experiments.run.run_warnings.warnings_of`.
        jobs: The runs at the first seed, by algorithm. A run is removed when it starts.
        track: Where runs send their histories, see :func:`drfl.training.trackers.parse`; None = nowhere.
    """

    design: Design
    build: Build
    about: tuple[AboutRun, ...]
    measures: tuple[Measure, ...]
    clients: int
    identity: Mapping[str, object]
    warnings: tuple[Notice, ...]
    jobs: dict[str, Job]
    track: str | None = None

    def job(self, algorithm: str, seed: int) -> Job:
        """Return the run of an algorithm at a seed. At the first seed it is the run that was built as a check."""
        job = self.jobs.pop(algorithm, None) if seed == self.design.seeds[0] else None
        return self.build(algorithm, seed) if job is None else job

    @property
    def config(self) -> str:
        """The configuration as TOML, from which the comparison resumes."""
        return comparison_toml(self.about)

    def to_comparison(self, outcomes: Iterable[Outcome], directory: Path) -> Comparison:
        """Return the comparison with the runs that have ended."""
        ended = self.design.in_order(outcomes)
        settings, names, seeds = self.design
        labels = tuple(map(label_of, names))
        return Comparison(
            settings, labels, seeds, self.about, self.measures, self.clients, ended, directory, self.warnings
        )

    @classmethod
    def of(cls, design: Design, build: Build, kept: Path | None = None) -> Self:
        """Build the runs at the first seed, which checks that all algorithms can start.

        ``kept`` is the configuration file of the comparison to resume, which must match.
        """
        before: dict[str, object] = {}
        if kept is not None:
            before = read_toml(kept, follow=False, remedy=REMEDY)
            rounds = before.get("rounds")
            # A finished comparison may get more rounds.
            if kept.parent.name != CHECKPOINT and isinstance(rounds, int) and rounds < design.settings.rounds:
                before["rounds"] = design.settings.rounds
        jobs: dict[str, Job] = {}
        for algorithm in design.algorithms:
            job = jobs[algorithm] = build(algorithm, design.seeds[0])
            tables, name = before.get("algorithms"), job.about.algorithm
            if isinstance(tables, dict) and name in tables:
                # A comparison's file has no single algorithm and no seed, so those of this run are added.
                table = {name: tables[name]}
                kept_run = {**before, "algorithm": name, "seed": job.settings.seed, "algorithms": table}
                files, needed = kept_run.pop("files", None), job.about.files
                if isinstance(files, dict) and needed:
                    kept_run["files"] = {path: digest for path, digest in files.items() if path in needed}
                check_settings(job, kept_run)
        # Data and initial model are the same for all.
        first, about = jobs[design.algorithms[0]], tuple(job.about for job in jobs.values())
        return cls(design, build, about, first.fed.measures, first.data.n, identity(first), warnings_of(first), jobs)


def from_config(config: Config, log: Callable[[str], None] | None = None) -> Build:
    """Load the data of a configuration, and return the function that builds its runs.

    The configuration's algorithm and seed do not matter.
    """
    # Runs divide the same data in different ways.
    dataset = load_data(config, log)
    return JobBuilder(
        lambda seed: build_setup(config.model_copy(update={"seed": seed}), dataset),
        lambda setup, algorithm, seed: build_job(config.for_algorithm(algorithm, seed), setup),
    )


def read_cells(directory: Path) -> tuple[list[str], list[int]]:
    """Return the algorithms and seeds of the comparison in a folder; empty if there is none."""
    manifest = read_manifest(directory) if directory.is_dir() else None
    # Split from the right: an algorithm's name may contain "-seed".
    pairs = [name.rpartition("-seed") for name in (() if manifest is None else manifest.cells)]
    return list(dict.fromkeys(p[0] for p in pairs)), list(dict.fromkeys(int(p[2]) for p in pairs))


def extended_design(directory: Path, design: Design) -> Design:
    """Return a design with the algorithms and seeds of the comparison in a folder first, and the others after them."""
    algorithms, seeds = read_cells(directory)
    names = {label_of(algorithm): algorithm for algorithm in design.algorithms}
    for kind, stored, requested in (("algorithms", algorithms, tuple(names)), ("seeds", seeds, design.seeds)):
        if not set(stored) <= set(requested):
            before, now = (", ".join(map(str, values)) for values in (stored, requested))
            raise InputError(
                f"the comparison to resume has the {kind} {before}, not {now}: pass at least these, or another folder",
                code="other-run",
                field=kind,
            )
    return design._replace(
        algorithms=tuple(names[label] for label in dict.fromkeys((*algorithms, *names))),
        seeds=tuple(dict.fromkeys((*seeds, *design.seeds))),
    )


def start_comparison(claim: ClaimedFolder, ready: PreparedComparison, warn: Callable[[str], None]) -> None:
    """Store the identity of the comparison, or check that the comparison to resume has the same data."""
    path = claim.checkpoints / IDENTITY
    if path.is_file():
        stored = records.read(claim.checkpoints, path.stem, claim.key) or {}
        for line in _check_same(ready, stored, path):
            warn(line)
    records.write(claim.checkpoints, path.stem, ready.identity, claim.key)
    # Write this last, because it makes the folder resumable.
    claim.begin(ready.config)


REMEDY = "start again with `overwrite`"


def is_up_to_date(directory: Path, ready: PreparedComparison) -> bool:
    """Return whether the folder of a comparison holds all runs of a design, with as many rounds, and all have ended."""
    manifest = read_manifest(directory) if directory.is_dir() and is_finished(directory) else None
    if manifest is None or not set(ready.design.cells) <= set(manifest.cells):
        return False
    return StoredOutcomes.read(directory, REMEDY).rounds in (None, ready.design.settings.rounds)


def recall_finished(claim: ClaimedFolder, ready: PreparedComparison) -> None:
    """Make records of the outcomes in the folder of a comparison that is extended.

    With more rounds than before, the runs start again.
    """
    for outcome in finished_outcomes(claim.directory, ready):
        name = cell_name(outcome.algorithm, outcome.seed)
        if name in ready.design.cells and records.read(claim.checkpoints, name, claim.key) is None:
            keep_outcome(claim, name, outcome)


def finished_outcomes(directory: Path, ready: PreparedComparison) -> tuple[Outcome, ...]:
    """Return the outcomes in the folder of a comparison, if there are any with as many rounds as in a new one."""
    if not (directory / OUTCOMES).is_file():
        return ()
    rounds = StoredOutcomes.read(directory, REMEDY).rounds
    return read_outcomes(directory, ready) if rounds in (None, ready.design.settings.rounds) else ()


def read_outcomes(directory: Path, ready: PreparedComparison) -> tuple[Outcome, ...]:
    """Return the outcomes of a finished comparison."""
    finished = StoredOutcomes.read(directory, REMEDY)
    # The data may have changed under the same name.
    _check_same(ready, finished.identity, directory / OUTCOMES)
    return finished.outcomes


def _check_same(ready: PreparedComparison, kept: Mapping[str, object], path: Path) -> list[Notice]:
    """See :func:`drfl.experiments.run.resume.check_same`; ``kept`` is the content of the file ``path``."""
    try:
        return check_same(ready.jobs[ready.design.algorithms[0]], kept)
    except DamagedError as error:
        raise InputError(f"cannot read {path} ({error}): {REMEDY}", code="file-unreadable", field=str(path)) from None


def compare(
    ready: PreparedComparison,
    claim: ClaimedFolder,
    watch: StopSignal,
    progress: Callable[[str, int], Sequence[Callback]] = lambda algorithm, seed: (),
    warn: Callable[[str], None] = lambda line: None,
) -> Iterator[Outcome]:
    """Run every algorithm at every seed, with the same partition and initial model at each seed.

    Runs that have ended are not repeated, and interrupted ones continue from their checkpoints. A run that fails,
    because it diverges or its algorithm cannot continue, has an outcome, too. After an interruption the comparison ends
    with the runs that are complete.
    """
    for algorithm, seed in ready.design.order:
        name = cell_name(algorithm, seed)
        outcome = recall_outcome(claim, name, algorithm, seed)
        if outcome is not None:
            ready.jobs.pop(algorithm, None)  # to free its memory
        else:
            make = partial(ready.job, algorithm, seed)
            outcome = run_in_folder(claim, name, make, watch, progress(algorithm, seed), warn, ready.track)
        if outcome is None:  # an incomplete run would bias the means
            return
        yield outcome
        if watch.stop:
            return
