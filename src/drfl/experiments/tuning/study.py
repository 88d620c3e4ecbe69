"""A study: the searches of several algorithms, run on a pool and kept in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from drfl.core.errors import DrflError, InputError, listed
from drfl.core.run_end import BROKEN, SET_BACK
from drfl.core.user_code import label_of
from drfl.experiments.execution import cells
from drfl.experiments.execution.cells import Cell
from drfl.experiments.execution.executor import as_ended
from drfl.experiments.execution.records import CELLS, Record
from drfl.experiments.execution.run_cells import CellPool
from drfl.experiments.execution.training_cells import set_back
from drfl.experiments.run.measures import Column
from drfl.experiments.run.runner import StopSignal
from drfl.experiments.tuning.search import Search
from drfl.experiments.tuning.suggestion import SearchPoint, Trial, direction, needed

if TYPE_CHECKING:
    from optuna import Study


FILE = "study.db"
"""Its name within the folder of results."""

_FINGERPRINT = "fingerprint"
_TRIAL = "trial with clients"


class TrialStore:
    """The trials that ended, kept so that a process killed at any time loses none of them.

    A trial enters the file whole, in one transaction, when its last seed has ended; the file never knows of one that
    runs. Trials of another origin, or still running because somebody else opened the study, are passed over.

    Args:
        folder: where the file lies or is made.
        smaller: whether less is better, in a study that is made.

    Raises:
        InputError: Optuna is missing, or the file cannot be used.
    """

    def __init__(self, folder: Path, *, smaller: bool = False) -> None:
        optuna, self._direction = needed(), direction(smaller)
        self.path = folder / FILE
        with self._readable():
            # by a function, as a URL would read signs such as ? and { in the path its own way
            self._storage = optuna.storages.RDBStorage(
                "sqlite:///study.db",
                engine_kwargs={"creator": lambda: sqlite3.connect(self.path, check_same_thread=False)},
            )
        self._studies: dict[str, Study] = {}

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        # SQLAlchemy would keep its connections open.
        self._storage.remove_session()
        self._storage.engine.dispose()

    def open(self, algorithm: str, fingerprint: Mapping[str, object]) -> list[Trial]:
        """The trials of an algorithm so far, in order.

        Args:
            algorithm: its name.
            fingerprint: all that the trials depend on, plain values.

        Raises:
            InputError: the file's trials are of another job, space or criterion, or it is damaged.
        """
        optuna = needed()
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
                    f"{self.path} has trials of {algorithm} with {name} = {before}, not {now}: "
                    f"give another --out, or delete {self.path}",
                    code="other-run",
                    field=name,
                )
            self._studies[algorithm] = study
            found: dict[int, Trial] = {}
            for frozen in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,)):
                own = frozen.user_attrs.get(_TRIAL)
                if own is not None:
                    trial = Trial(
                        own[0], dict(frozen.params), own[1], tuple(own[2]), tuple(own[3]), frozen.distributions,
                        *map(tuple, own[4:]),
                    )  # fmt: skip
                    # Two processes may have run the same trial: the first one counts.
                    found.setdefault(trial.number, trial)
        # Up to the first gap: the search continues with the first missing trial.
        trials: list[Trial] = []
        while len(trials) in found:
            trials.append(found[len(trials)])
        return trials

    def add(self, algorithm: str, trial: Trial) -> None:
        """Keep a trial that ended.

        Args:
            algorithm: whose.
            trial: which.

        Raises:
            DrflError: the file cannot be written to.
        """
        optuna = needed()
        counts = trial.undefined, trial.clients, trial.set_back
        own = [trial.number, trial.table, trial.scores, trial.stopped, *counts]
        # In one transaction: a killed process leaves no trial without its score.
        frozen = optuna.trial.create_trial(
            value=trial.score,
            params=trial.point,
            distributions=dict(trial.places),
            user_attrs={_TRIAL: own},
        )
        try:
            self._studies[algorithm].add_trial(frozen)
        except optuna.exceptions.StorageInternalError as error:
            cause = error.__cause__ or error
            raise DrflError(
                f"cannot write {self.path} ({cause}): run it again when it can be written to",
                code="cannot-write",
                field=str(self.path),
            ) from None

    @contextmanager
    def _readable(self) -> Iterator[None]:
        from sqlalchemy.exc import SQLAlchemyError

        optuna = needed()
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, optuna.exceptions.OptunaError, RuntimeError) as error:
            cause = getattr(error, "orig", None) or error.__cause__ or error
            raise InputError(
                f"cannot use {self.path} ({cause}): delete it, or give another --out",
                code="file-unreadable",
                field=str(self.path),
            ) from None


class Ended(NamedTuple):
    """A trial that ended, and how far the search is.

    Args:
        algorithm: whose.
        trial: which.
        best: the best score of the algorithm so far.
        finished: trials of all algorithms that ended so far, those of earlier runs included.
        total: trials altogether.
        share: of the cost of what was to be run, in [0, 1].
    """

    algorithm: str
    trial: Trial
    best: float
    finished: int
    total: int
    share: float

    def told(self, column: Column) -> str:
        """The trial in a line.

        Args:
            column: how scores are shown.
        """
        broken = sorted({how for how in self.trial.stopped if how in BROKEN})
        fate = f", {' and '.join(broken)} at some seeds" if broken else ""
        fate += f", {SET_BACK}: {listed(self.trial.set_back, 'run')}" if self.trial.set_back else ""
        score, best = (f"{column.text(value)} {column.unit}".rstrip() for value in (self.trial.score, self.best))
        name = label_of(self.algorithm)
        return f"{name} trial {self.trial.number}: {column.name} {score}{self.trial.note} (best {best}){fate}"


@dataclass
class _Running:
    """A trial under way: its point and the records of its seeds so far."""

    point: SearchPoint
    cells: list[Cell]
    records: dict[str, Record] = field(default_factory=dict)


MakePool = Callable[[], CellPool]


def run(
    search: Search,
    folder: Path,
    *,
    pool: MakePool,
    ended: Callable[[Ended], None] = lambda end: None,
    watch: StopSignal | None = None,
) -> dict[str, list[Trial]]:
    """Run what is missing of the trials.

    Args:
        search: what is to be found out.
        folder: where trials and records are kept.
        pool: makes what runs the cells; called where there is something to run.
        ended: told of each trial that ended now.
        watch: stops it.

    Returns:
        The trials by algorithm, in order.

    Raises:
        InputError: what is in the folder is of another search, or a run cannot start.
        DrflError: a worker died, or the folder cannot be written to.
        StoppedError: a signal asked to stop; what has ended is kept.
    """
    with TrialStore(folder, smaller=search.criterion.smaller) as store:
        trials = {a: store.open(a, search.fingerprint(a))[: search.trials] for a in search.subjects}
        if any(len(own) < search.trials for own in trials.values()):
            # Start processes only if something is missing: that takes seconds.
            with pool() as at_work:
                _Loop(search, store, at_work, folder / CELLS, trials, ended, watch or StopSignal()).run()
    return trials


class _Loop:
    """The search under way. One thread alone asks, tells and writes; only runs are elsewhere."""

    def __init__(
        self,
        search: Search,
        store: TrialStore,
        pool: CellPool,
        folder: Path,
        trials: dict[str, list[Trial]],
        ended: Callable[[Ended], None],
        watch: StopSignal,
    ) -> None:
        self._search, self._store, self._pool, self._folder = search, store, pool, folder
        self._trials, self._ended, self._watch = trials, ended, watch
        self._running: dict[str, _Running] = {}
        self._futures: dict[Future[Record], tuple[str, Cell]] = {}
        missing = {a: search.trials - len(own) for a, own in trials.items()}
        # The cost of the first trial stands for all: they have the same number of rounds.
        self._cost = {a: sum(c.cost for c in search.cells(a, search.following(a, ()).table)) for a in search.subjects}
        self._whole = sum(self._cost[a] * missing[a] for a in search.subjects)
        self._spent = 0.0

    def run(self) -> None:
        for algorithm in self._search.subjects:
            self._go_on(algorithm)
        for future in as_ended(self._futures, self._watch):
            algorithm, cell = self._futures.pop(future)
            self._running[algorithm].records[cell.key] = future.result()
            self._go_on(algorithm)

    def _go_on(self, algorithm: str) -> None:
        """Begin the algorithm's next trial, or end the present one if all its seeds have; and so on."""
        while True:
            running = self._running.get(algorithm)
            if running is None:
                if len(self._trials[algorithm]) == self._search.trials:
                    return
                # Depends only on earlier trials, which are all stored.
                point = self._search.following(algorithm, self._trials[algorithm])
                running = self._running[algorithm] = _Running(point, self._search.cells(algorithm, point.table))
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
            elif len(running.records) == len(running.cells):
                records = [running.records[cell.key] for cell in running.cells]
                tested = [pair for pair in map(self._search.criterion.undefined, records) if pair[1]]
                mine = self._trials[algorithm]
                trial = Trial(
                    number=len(mine),
                    point=running.point.values,
                    table=running.point.table,
                    scores=tuple(self._search.criterion.of(record) for record in records),
                    stopped=tuple(map(self._search.criterion.end, records)),
                    places=running.point.places,
                    undefined=tuple(undefined for undefined, _ in tested),
                    clients=tuple(clients for _, clients in tested),
                    set_back=tuple(
                        f"seed {seed} ({count})"
                        for seed, count in zip(self._search.seeds, map(set_back, records), strict=True)
                        if count
                    ),
                )
                self._store.add(algorithm, trial)
                mine.append(trial)
                del self._running[algorithm]
                self._spent += self._cost[algorithm]
                total = self._search.trials * len(self._trials)
                finished = sum(map(len, self._trials.values()))
                best = self._search.best(mine).score
                self._ended(Ended(algorithm, trial, best, finished, total, self._spent / self._whole))
            else:
                return
