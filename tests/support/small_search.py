"""A search that takes a second, and a pool without processes."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

from drfl.experiments.execution import cells
from drfl.experiments.execution.cells import Cell
from drfl.experiments.execution.records import Record
from drfl.experiments.execution.run_cells import Run
from drfl.experiments.execution.training_cells import run_cell
from drfl.experiments.tuning import run_searches
from drfl.experiments.tuning.configured import prepare
from drfl.experiments.tuning.job import TunedMethod, TuningJob
from drfl.experiments.tuning.run_searches import EndedTrial
from drfl.experiments.tuning.search import Search
from drfl.experiments.tuning.suggestion import Trial

VALUES = {
    "dataset": "digits",
    "engine": "loop",
    "clients": 4,
    "cohort": 3,
    "steps": 2,
    "batch": 8,
    "rounds": 2,
    "validation": 0.2,
}


def small_search(
    algorithms: tuple[str, ...] = ("FedAvg", "DRFA"),
    *,
    trials: int = 3,
    repeats: int = 2,
    criterion: str = "worst",
    relative: bool = False,
    tables: dict | None = None,
    **changes: object,
) -> Search:
    """Return a search of two algorithms on digits; the job may have other values."""
    methods = {name: TunedMethod(name, table) for name, table in (tables or {}).items()}
    job = TuningJob("small", {**VALUES, **changes}, methods)
    return prepare(
        job, algorithms, trials=trials, repeats=repeats, criterion=criterion, data_dir=None, relative=relative
    )


class Here:
    """A pool that runs each cell in this process when it is submitted, and counts them.

    Args:
        limit: number of cells after which the pool fails, as if the process had been killed.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit, self.ran = limit, list[Cell]()

    def __call__(
        self, workers: int = 1, run: Run = run_cell, data_dir: Path | None = None, *, shared: bool = False
    ) -> Here:
        """Return itself in place of a new pool."""
        return self

    def __enter__(self) -> Here:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""

    def submit(self, cell: Cell, folder: Path) -> Future[Record]:
        """Run the cell."""
        if len(self.ran) == self.limit:
            raise Killed
        self.ran.append(cell)
        future: Future[Record] = Future()
        future.set_result(cells.write(folder, cell, run_cell(cell, None)))
        return future


class Killed(BaseException):
    """The simulated end of the process."""


def tuned(search: Search, folder: Path, pool: Here | None = None, ended=None) -> dict[str, list[Trial]]:
    """Run a search in this process, and return its trials."""
    told: list[EndedTrial] = []
    return run_searches.run(search, folder, pool=pool or Here(), ended=ended or told.append)
