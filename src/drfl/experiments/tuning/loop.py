"""All algorithms' searches side by side: trial n of one is begun when its trial n − 1 has ended."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from drfl.experiments.parameters import Value
from drfl.experiments.reproduce import cells
from drfl.experiments.reproduce.cells import Cell, Record
from drfl.experiments.reproduce.pool import Pool, result
from drfl.experiments.tuning import criterion
from drfl.experiments.tuning.search import Search
from drfl.experiments.tuning.store import Store
from drfl.experiments.tuning.trial import Trial

CELLS = ".cells"
"""The folder of the runs' records within that of the results."""


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


@dataclass
class _Running:
    """A trial under way: its place and the records of its seeds so far."""

    point: dict[str, float]
    table: dict[str, Value]
    cells: list[Cell]
    records: dict[str, Record] = field(default_factory=dict)


def run(
    search: Search, folder: Path, *, workers: int, data_dir: Path | None, ended: Callable[[Ended], None]
) -> dict[str, list[Trial]]:
    """Run what is missing of the trials.

    Args:
        search: what is to be found out.
        folder: where trials and records are kept.
        workers: processes.
        data_dir: where the data set's files lie.
        ended: told of each trial that ended now.

    Returns:
        The trials by algorithm, in order.

    Raises:
        InputError: what is in the folder is of another search, or a run cannot start.
        DrflError: a worker died, or the folder cannot be written to.
    """
    with Store(folder) as store:
        trials = {a: store.open(a, search.fingerprint(a))[: search.trials] for a in search.algorithms}
        if any(len(own) < search.trials for own in trials.values()):
            with Pool(workers, data_dir) as pool:
                _Loop(search, store, pool, folder / CELLS, trials, ended).run()
    return trials


class _Loop:
    """The search under way. One thread alone asks, tells and writes; only runs are elsewhere."""

    def __init__(
        self,
        search: Search,
        store: Store,
        pool: Pool,
        folder: Path,
        trials: dict[str, list[Trial]],
        ended: Callable[[Ended], None],
    ) -> None:
        self._search, self._store, self._pool, self._folder = search, store, pool, folder
        self._trials, self._ended = trials, ended
        self._running: dict[str, _Running] = {}
        self._futures: dict[Future[Record], tuple[str, Cell]] = {}
        missing = {a: search.trials - len(own) for a, own in trials.items()}
        self._cost = {a: sum(c.cost for c in search.cells(a, search.first(a)[1])) for a in search.algorithms}
        self._whole = sum(self._cost[a] * missing[a] for a in search.algorithms)
        self._spent = 0.0

    def run(self) -> None:
        for algorithm in self._search.algorithms:
            self._go_on(algorithm)
        while self._futures:
            done, _ = wait(self._futures, return_when=FIRST_COMPLETED)
            for future in done:
                algorithm, cell = self._futures.pop(future)
                self._running[algorithm].records[cell.key] = result(future)
                self._go_on(algorithm)

    def _go_on(self, algorithm: str) -> None:
        """Begin the algorithm's next trial, or end the present one if all its seeds have; and so on."""
        while True:
            running = self._running.get(algorithm)
            if running is None:
                if len(self._trials[algorithm]) == self._search.trials:
                    return
                self._begin(algorithm)
            elif len(running.records) == len(running.cells):
                self._end(algorithm, running)
            else:
                return

    def _begin(self, algorithm: str) -> None:
        point, table = self._search.following(algorithm, self._trials[algorithm])
        running = self._running[algorithm] = _Running(point, table, self._search.cells(algorithm, table))
        for cell in running.cells:
            record = cells.read(self._folder, cell)
            if record is not None:
                running.records[cell.key] = record
            else:
                self._futures[self._pool.submit(cell, self._folder)] = algorithm, cell

    def _end(self, algorithm: str, running: _Running) -> None:
        records = [running.records[cell.key] for cell in running.cells]
        mine = self._trials[algorithm]
        trial = Trial(
            number=len(mine),
            point=running.point,
            table=running.table,
            scores=tuple(criterion.score(record, self._search.metric) for record in records),
            stopped=tuple(str(record["stopped"]) for record in records),
        )
        self._store.add(algorithm, trial, self._search.space(algorithm))
        mine.append(trial)
        del self._running[algorithm]
        self._spent += self._cost[algorithm]
        total = self._search.trials * len(self._trials)
        finished = sum(map(len, self._trials.values()))
        best = max(own.score for own in mine)
        self._ended(Ended(algorithm, trial, best, finished, total, self._spent / self._whole))
