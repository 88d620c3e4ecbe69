"""``drfl.tune``: search for the hyperparameters of an algorithm, with clients and task as objects."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from drfl.core import checks
from drfl.core.described import code_of
from drfl.core.errors import DrflError, InputError, unknown
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.data.validation_split import held_out_training
from drfl.experiments.compare.compare_objects import as_seed_function, clients_by_seed, description_of
from drfl.experiments.compare.objects import (
    about_objects,
    check_algorithms,
    object_job_builder,
    rule_objects,
    run_settings,
    sources_of,
    user_modules,
)
from drfl.experiments.config.about_run import AboutRun
from drfl.experiments.config.build import VALIDATION
from drfl.experiments.config.data_settings import DataSettings
from drfl.experiments.config.hyperparameters import Value
from drfl.experiments.config.ready_run import Job
from drfl.experiments.config.run_settings import RunSettings
from drfl.experiments.execution.cells import Cell
from drfl.experiments.execution.executor import LocalExecutor, Workers, workers_of
from drfl.experiments.execution.records import Record
from drfl.experiments.execution.run_cells import CellPool, make_pool
from drfl.experiments.execution.training_cells import cost, job_from_about, run_job
from drfl.experiments.tuning import own_spaces
from drfl.experiments.tuning.configured import OF_ONE
from drfl.experiments.tuning.confirmation import check_seeds, confirm
from drfl.experiments.tuning.criterion import Criterion
from drfl.experiments.tuning.job import FIRST_SEED
from drfl.experiments.tuning.output import check_place, make_place, write
from drfl.experiments.tuning.own_spaces import AlgorithmSpace
from drfl.experiments.tuning.run_searches import EndedTrial, run
from drfl.experiments.tuning.search import Search
from drfl.experiments.tuning.suggestion import SearchPoint, import_optuna, suggest
from drfl.experiments.tuning.tuned import Tuned
from drfl.federation.algorithm import Algorithm
from drfl.task.task import Task

if TYPE_CHECKING:
    import optuna


def _algorithm_at(name: str, space: AlgorithmSpace, table: Mapping[str, Value]) -> tuple[Algorithm, optuna.Trial]:
    """Call a space with these values as suggestions; return the algorithm, and the trial that it was made from."""
    trial = cast("optuna.Trial", import_optuna().trial.FixedTrial(dict(table)))  # spaces take it for a trial
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* out of the range of the distribution")  # rejected later
        return own_spaces.call_space(name, space, trial), trial


@dataclass(frozen=True)
class ObjectRuns:
    """Builds and executes the runs of a search, also in worker processes."""

    space: AlgorithmSpace
    data: Callable[[int], ClientData]
    task: Callable[[int], Task]
    settings: RunSettings
    described: Mapping[str, object]

    @property
    def validation(self) -> float:
        """The share of each client's training rows to judge on."""
        return VALIDATION if self.settings.validation is None else self.settings.validation

    def algorithm(self, name: str, table: Mapping[str, Value]) -> Algorithm:
        """Return the algorithm at a point."""
        return _algorithm_at(name, self.space, table)[0]

    def job(self, name: str, algorithm: Algorithm, seed: int) -> Job:
        """Build a run that is tested on validation rows only."""

        def clients(seed: int) -> ClientData:
            # Test rows must not choose hyperparameters.
            return held_out_training(self.data(seed), self.validation, Key(seed))

        build = object_job_builder(self.settings, {name: algorithm}, clients, self.task, self.described)
        return build(name, seed)

    def __call__(self, cell: Cell, data_dir: Path | None = None) -> Record:
        """Run a cell that :meth:`ObjectSubject.cells` made."""
        name, table, seed = (cell.job[key] for key in ("algorithm", "trial", "seed"))
        assert isinstance(name, str)
        assert isinstance(table, Mapping)
        assert isinstance(seed, int)
        return run_job(self.job(name, self.algorithm(name, table), seed))


@dataclass(frozen=True)
class ObjectSubject:
    """An algorithm as a function of an Optuna trial; see :class:`drfl.experiments.tuning.search.SearchSubject`.

    Args:
        name: The algorithm's name in files.
        runs: Builds its runs.
        known: Digests of data and initial model at each seed.
        clients: N.
        searched: The seeds of the search; a confirmation has others.
        first: The parameters of the first trial; None = they are suggested.
        sample: The fields of the algorithm at some point, which identify a space that depends on more than its code.
    """

    name: str
    runs: ObjectRuns
    known: Mapping[int, Mapping[str, object]]
    clients: int
    searched: range
    first: Mapping[str, Value] | None
    sample: Mapping[str, object]

    def fingerprint(self) -> dict[str, object]:
        """Return everything that its trials depend on."""
        known = {seed: self.known[seed] for seed in self.searched}
        digests = {f"the {what} at seed {seed}": name for seed, own in known.items() for what, name in own.items()}
        first = {f"first {parameter}": value for parameter, value in (self.first or {}).items()}
        sample = {f"{self.name}.{parameter}": value for parameter, value in self.sample.items()}
        return {"the code of the space": code_of(self.runs.space), **first, **sample, **digests}

    def defaults(self) -> SearchPoint | None:
        """Return the first trial, if its parameters were given."""
        if self.first is None:
            return None
        try:
            _, trial = _algorithm_at(self.name, self.runs.space, self.first)
        except InputError as error:
            suggested = suggest(self.draw, (), Key(0)).table
            if lacking := [name for name in suggested if name not in self.first]:
                raise InputError(
                    f"`first` has no value for {', '.join(lacking)}: pass one for each parameter of the space",
                    code="missing-option",
                    field="first",
                ) from None
            raise InputError(f"`first` does not fit: {error}", code=error.code, field="first") from error
        for name in self.first:
            if name not in trial.params:
                raise unknown("parameter", name, trial.params, "first")
        table, places = dict(trial.params), dict(trial.distributions)
        for name, value in table.items():
            if not places[name]._contains(places[name].to_internal_repr(value)):
                raise InputError(
                    f"`first` sets {name} to {value!r}, which is outside the space, {places[name]}. Choose a value of "
                    "the space, or widen the space.",
                    code="out-of-range",
                    field="first",
                )
        return SearchPoint(table, table, places)

    def draw(self, trial: optuna.Trial) -> SearchPoint:
        """Draw another trial."""
        own_spaces.call_space(self.name, self.runs.space, trial)
        return SearchPoint(dict(trial.params), dict(trial.params))

    def cells(self, table: Mapping[str, Value], seeds: Sequence[int]) -> list[Cell]:
        """Return the runs of a trial."""
        algorithm, cells = self.runs.algorithm(self.name, table), list[Cell]()
        for seed in seeds:
            about = self.about(algorithm, seed)
            job = {**job_from_about(about), "trial": dict(table), "parameters": about.parameters, **self.known[seed]}
            cells.append(Cell("training", job, cost(self.runs.settings.rounds, about.parameters, self.clients)))
        return cells

    def about(self, algorithm: Algorithm, seed: int) -> AboutRun:
        """Return the description of a run for its files."""
        task, settings = self.runs.task(seed), self.runs.settings.model_copy(update={"seed": seed})
        sources = sources_of([algorithm, task.model, *rule_objects(settings)])
        return about_objects(settings, self.name, algorithm, self.clients, task, sources, self.runs.described)


def tune_objects(
    space: AlgorithmSpace,
    data: ClientData | DataSettings | Callable[[int], ClientData],
    task: Task | Callable[[int], Task],
    settings: Mapping[str, object],
    *,
    trials: int,
    seeds: int,
    confirm_seeds: int,
    criterion: str,
    first: Mapping[str, Value] | None,
    out: Path | None,
    jobs: int | str,
    progress: Callable[[str], None],
) -> Tuned:
    """See :func:`drfl.tune`."""
    import_optuna()
    checks.integer("trials", trials)
    checks.integer("seeds", seeds)
    check_seeds(confirm_seeds)
    workers = workers_of(jobs)
    if not callable(space) or isinstance(space, type):
        kind = space.__name__ if isinstance(space, type) else type(space).__name__
        raise InputError(
            f"space is {kind}: pass a function of an Optuna trial that returns an algorithm",
            code="wrong-type",
            field="space",
        )
    if first is not None and not isinstance(first, Mapping):
        raise InputError(
            f"`first` must be a mapping of parameters to values, got {type(first).__name__}",
            code="wrong-type",
            field="first",
        )
    learned, searched = as_seed_function("task", task, Task), range(FIRST_SEED, FIRST_SEED + seeds)
    model = learned(FIRST_SEED)
    runs = ObjectRuns(space, clients_by_seed(data), learned, run_settings(settings, model), description_of(data))
    judge = Criterion(criterion, model.measures[0])
    point = suggest(ObjectSubject("algorithm", runs, {}, 0, searched, None, {}).draw, (), Key(0).fold("tuning", "name"))
    algorithm = runs.algorithm("algorithm", point.table)
    name = type(algorithm).__name__
    if isinstance(algorithm, type) or not callable(getattr(algorithm, "round", None)):
        returned = f"the class {algorithm.__name__}" if isinstance(algorithm, type) else f"an object of type {name}"
        raise InputError(
            f"the space returned {returned}: return an algorithm such as drfl.DRFA(m=10)",
            code="wrong-type",
            field="space",
        )
    name = name if name.isidentifier() else "algorithm"
    check_algorithms({name: algorithm})
    # Build the first trial at every seed before anything is written, because it may be unable to start.
    job = runs.job(name, algorithm, FIRST_SEED)
    confirmed = confirm_seeds if first is not None else 0
    known = {FIRST_SEED: job.digests}
    for seed in range(FIRST_SEED + 1, searched.stop + confirmed):
        known[seed] = runs.job(name, algorithm, seed).digests
    subject = ObjectSubject(name, runs, known, job.data.n, searched, first, job.about.parameters)
    subject.defaults()  # raises an error if a parameter is missing
    common = {key: value for key, value in job_from_about(job.about).items() if key not in OF_ONE}
    common |= model.description
    for kind, digest in job.about.files.items():
        common[f"the SHA-256 of {kind}"] = digest[:12]
    about = {"rounds": runs.settings.rounds, "validation": runs.validation, "score": judge.score.name}
    search = Search(name, {name: subject}, trials, seeds, judge, common, about)
    if out is None:
        with tempfile.TemporaryDirectory(prefix="drfl-") as folder:
            tuned = _run_search(search, runs, Path(folder) / "search", workers, confirm_seeds, progress)
            return tuned._replace(directory=None)
    return _run_search(search, runs, out, workers, confirm_seeds, progress)


def _run_search(
    search: Search,
    runs: ObjectRuns,
    out: Path,
    workers: Workers,
    confirm_seeds: int,
    progress: Callable[[str], None],
) -> Tuned:
    check_place(out, search.name)
    make_place(out, search.name)

    def pool() -> CellPool:
        if workers == 1:
            return CellPool(LocalExecutor(runs))
        # One algorithm of the space shows which modules workers need.
        algorithm = runs.algorithm(search.name, search.next_point(search.name, ()).table)
        modules = user_modules([algorithm, runs.task(FIRST_SEED).model, runs.space, *rule_objects(runs.settings)])
        return make_pool(workers, runs, modules=modules)

    def ended(end: EndedTrial) -> None:
        progress(f"[{end.finished}/{end.total}] {end.line(search.criterion.shown)}")

    trials = run(search, out, pool=pool, ended=ended)
    # Without a first trial, the best trial has no default to compare with.
    confirmations = confirm(search, trials, out, seeds=confirm_seeds, pool=pool, progress=progress)
    write(search, trials, out, "drfl.tune", confirmations)
    finished = trials[search.name]
    # If all trials failed, the choice of the best one would be arbitrary.
    if not any("rounds" in trial.stopped for trial in finished):
        how = " or ".join(sorted({how for trial in finished for how in trial.stopped}))
        raise DrflError(f"every run of {search.name} was {how}: change the space", code="no-results", field="space")
    best = search.best(finished)
    algorithm = runs.algorithm(search.name, best.table)
    seeds = tuple(search.seeds)
    result = Tuned(algorithm, best, search.criterion, tuple(finished), seeds, out, confirmations.get(search.name))
    if result.headline:
        progress(result.headline)
    return result
