"""Run the searches of several algorithms, and store their trials in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from drfl.core.errors import DrflError, InputError, listing
from drfl.core.run_end import FAILURES, RESET
from drfl.core.user_code import label_of
from drfl.experiments.execution import cells
from drfl.experiments.execution.cells import Cell
from drfl.experiments.execution.executor import iterate_completed
from drfl.experiments.execution.records import CELLS, Record
from drfl.experiments.execution.run_cells import CellPool
from drfl.experiments.execution.training_cells import rollback_text
from drfl.experiments.run.measures import MetricColumn
from drfl.experiments.run.runner import StopSignal
from drfl.experiments.tuning.search import Search
from drfl.experiments.tuning.suggestion import SearchPoint, Trial, direction, import_optuna

if TYPE_CHECKING:
    from optuna import Study


FILE = "study.db"
"""The name of the database in the folder of results."""

_FINGERPRINT = "fingerprint"
_TRIAL = "trial with clients"


class TrialStore:
    """The finished trials, stored so that a process that is killed loses none of them.

    A trial is written in one transaction when its last seed has finished; running trials are never in the file. Trials
    from other sources, and running trials of another process, are ignored.
    """

    def __init__(self, folder: Path, *, smaller: bool = False) -> None:
        optuna, self._direction = import_optuna(), direction(smaller)
        self.path = folder / FILE
        with self._readable():
            # Open the file with a function, because characters such as ? and { in the path are special in a URL.
            self._storage = optuna.storages.RDBStorage(
                "sqlite:///study.db",
                engine_kwargs={"creator": lambda: sqlite3.connect(self.path, check_same_thread=False)},
            )
        self._studies: dict[str, Study] = {}

    def __enter__(self) -> Self:
        """Return the store."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        # Otherwise SQLAlchemy keeps its connections open.
        self._storage.remove_session()
        self._storage.engine.dispose()

    def open(self, algorithm: str, fingerprint: Mapping[str, object]) -> list[Trial]:
        """Return the trials of an algorithm so far, in order.

        ``fingerprint`` is everything that the trials depend on, as plain values.

        Raises:
            InputError: If the file's trials are of another job, space or criterion, or it is damaged.
        """
        optuna = import_optuna()
        with self._readable():
            study = optuna.create_study(
                storage=self._storage, study_name=algorithm, direction=self._direction, load_if_exists=True
            )
            known = study.user_attrs.get(_FINGERPRINT)
            # A new study, or one whose process was killed before the next line.
            if known is None:
                study.set_user_attr(_FINGERPRINT, dict(fingerprint))
            elif known != dict(fingerprint):
                none = "nothing"
                name = next(n for n in {**known, **fingerprint} if known.get(n, none) != fingerprint.get(n, none))
                before, now = known.get(name, none), fingerprint.get(name, none)
                raise InputError(
                    f"{self.path} has trials of {algorithm} with {name} = {before}, not {now}: pass "
                    f"another `out`, or delete {self.path}",
                    code="other-run",
                    field=name,
                )
            self._studies[algorithm] = study
            finished: dict[int, Trial] = {}
            for frozen in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,)):
                stored = frozen.user_attrs.get(_TRIAL)
                if stored is not None:
                    trial = Trial(
                        stored[0], dict(frozen.params), stored[1], tuple(stored[2]), tuple(stored[3]),
                        frozen.distributions, *map(tuple, stored[4:]),
                    )  # fmt: skip
                    # Two processes may have run the same trial: the first one counts.
                    finished.setdefault(trial.number, trial)
        # Up to the first gap: the search continues with the first missing trial.
        trials: list[Trial] = []
        while len(trials) in finished:
            trials.append(finished[len(trials)])
        return trials

    def add(self, algorithm: str, trial: Trial) -> None:
        """Store a finished trial."""
        optuna = import_optuna()
        counts = trial.undefined, trial.clients, trial.set_back
        content = [trial.number, trial.table, trial.scores, trial.stopped, *counts]
        # Use one transaction, so that a killed process leaves no trial without its score.
        frozen = optuna.trial.create_trial(
            value=trial.score,
            params=trial.point,
            distributions=dict(trial.places),
            user_attrs={_TRIAL: content},
        )
        try:
            self._studies[algorithm].add_trial(frozen)
        except optuna.exceptions.StorageInternalError as error:
            cause = error.__cause__ or error
            raise DrflError(
                f"cannot write {self.path} ({cause}): fix this and run the command again",
                code="cannot-write",
                field=str(self.path),
            ) from None

    @contextmanager
    def _readable(self) -> Iterator[None]:
        from sqlalchemy.exc import SQLAlchemyError

        optuna = import_optuna()
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, optuna.exceptions.OptunaError, RuntimeError) as error:
            cause = getattr(error, "orig", None) or error.__cause__ or error
            raise InputError(
                f"cannot use {self.path} ({cause}): delete it, or pass another `out`",
                code="file-unreadable",
                field=str(self.path),
            ) from None


class EndedTrial(NamedTuple):
    """A finished trial, the best score of its algorithm so far, and the progress of the search over all algorithms.

    ``finished`` includes the trials of earlier calls, and ``share`` is that of the cost of the trials that had to run.
    ``reason`` is why a run was refused.
    """

    algorithm: str
    trial: Trial
    best: float
    finished: int
    total: int
    share: float
    reason: str = ""

    def line(self, column: MetricColumn) -> str:
        """Describe the trial in one line."""
        broken = sorted({how for how in self.trial.stopped if how in FAILURES})
        fate = f", {' and '.join(broken)} at some seeds{': ' if self.reason else ''}{self.reason}" if broken else ""
        fate += f", {RESET}: {listing(self.trial.set_back, 'run')}" if self.trial.set_back else ""
        score, best = (f"{column.text(value)} {column.unit}".rstrip() for value in (self.trial.score, self.best))
        name = label_of(self.algorithm)
        return f"{name} trial {self.trial.number}: {column.name} {score}{self.trial.note} (best {best}){fate}"


@dataclass
class _Running:
    """A running trial: its point, and the records of its finished seeds."""

    point: SearchPoint
    cells: list[Cell]
    records: dict[str, Record] = field(default_factory=dict)


def _refused(error: InputError) -> Record:
    """Return the record of a run that cannot start at a point of the space, such as a cohort of too many clients."""
    return {"stopped": "refused", "reason": str(error), "rounds": 0, "rows": [], "accuracy": [], "samples": []}


MakePool = Callable[[], CellPool]


def run(
    search: Search,
    folder: Path,
    *,
    pool: MakePool,
    ended: Callable[[EndedTrial], None] = lambda end: None,
    watch: StopSignal | None = None,
) -> dict[str, list[Trial]]:
    """Run the trials that are missing.

    ``pool`` is called only if something is missing, and ``ended`` with each trial that finishes.

    Returns:
        The trials by algorithm, in order.

    Raises:
        InputError: If the folder holds another search.
        DrflError: If a worker died, or the folder cannot be written to.
        StoppedError: If a signal asked to stop. Finished trials and runs are stored.
    """
    with TrialStore(folder, smaller=search.criterion.smaller) as store:
        trials = {a: store.open(a, search.fingerprint(a))[: search.trials] for a in search.subjects}
        if any(len(stored) < search.trials for stored in trials.values()):
            # Start processes only if something is missing, because that takes seconds.
            with pool() as at_work:
                _Loop(search, store, at_work, folder / CELLS, trials, ended, watch or StopSignal()).run()
    return trials


class _Loop:
    """A running search. Only one thread suggests, evaluates and writes trials; only runs are in other processes."""

    def __init__(
        self,
        search: Search,
        store: TrialStore,
        pool: CellPool,
        folder: Path,
        trials: dict[str, list[Trial]],
        ended: Callable[[EndedTrial], None],
        watch: StopSignal,
    ) -> None:
        self._search, self._store, self._pool, self._folder = search, store, pool, folder
        self._trials, self._ended, self._watch = trials, ended, watch
        self._running: dict[str, _Running] = {}
        self._futures: dict[Future[Record], tuple[str, Cell]] = {}
        missing = {a: search.trials - len(own) for a, own in trials.items()}
        # All trials have the same number of rounds, so they cost as much as the first one.
        self._cost = {a: sum(c.cost for c in search.cells(a, search.next_point(a, ()).table)) for a in search.subjects}
        self._whole = sum(self._cost[a] * missing[a] for a in search.subjects)
        self._spent = 0.0

    def run(self) -> None:
        # Algorithms run side by side, but each one's trials in order, because a trial depends on those before it.
        for algorithm in self._search.subjects:
            self._go_on(algorithm)
        for future in iterate_completed(self._futures, self._watch):
            algorithm, cell = self._futures.pop(future)
            try:
                record = future.result()
            except InputError as error:
                record = _refused(error)
            self._running[algorithm].records[cell.key] = record
            self._go_on(algorithm)

    def _go_on(self, algorithm: str) -> None:
        """Start the algorithm's next trial, or finish the current one if all its seeds have finished; then continue."""
        while True:
            running = self._running.get(algorithm)
            if running is None:
                if len(self._trials[algorithm]) == self._search.trials:
                    return
                # The point depends only on earlier trials, which are all stored.
                point = self._search.next_point(algorithm, self._trials[algorithm])
                try:
                    running = _Running(point, self._search.cells(algorithm, point.table))
                except InputError as error:
                    running = _Running(point, [], {str(seed): _refused(error) for seed in self._search.seeds})
                self._running[algorithm] = running
                missing = list[Cell]()
                for cell in running.cells:
                    # Reuse the runs of an interrupted trial.
                    record = cells.read(self._folder, cell)
                    if record is not None:
                        running.records[cell.key] = record
                    else:
                        missing.append(cell)
                for cell in missing:
                    self._futures[self._pool.submit(cell, self._folder)] = algorithm, cell
            elif len(running.records) == self._search.repeats:
                order = [cell.key for cell in running.cells] or [*running.records]
                records = [running.records[key] for key in order]
                tested = [pair for pair in map(self._search.criterion.undefined, records) if pair[1]]
                trials = self._trials[algorithm]
                trial = Trial(
                    number=len(trials),
                    point=running.point.values,
                    table=running.point.table,
                    scores=tuple(self._search.criterion.of(record) for record in records),
                    stopped=tuple(map(self._search.criterion.end, records)),
                    places=running.point.places,
                    undefined=tuple(undefined for undefined, _ in tested),
                    clients=tuple(clients for _, clients in tested),
                    set_back=tuple(
                        f"seed {seed} ({count})"
                        for seed, count in zip(self._search.seeds, map(rollback_text, records), strict=True)
                        if count
                    ),
                )
                self._store.add(algorithm, trial)
                trials.append(trial)
                del self._running[algorithm]
                self._spent += self._cost[algorithm]
                total = self._search.trials * len(self._trials)
                finished = sum(map(len, self._trials.values()))
                best = self._search.best(trials).score
                share = self._spent / self._whole
                reason = next((str(r["reason"]) for r in records if self._search.criterion.end(r) == "refused"), "")
                self._ended(EndedTrial(algorithm, trial, best, finished, total, share, reason))
            else:
                return
