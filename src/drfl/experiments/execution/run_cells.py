"""Run cells with an executor and store their records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NamedTuple, Self

from drfl.data import Dataset
from drfl.engine.ray_cluster import Cluster
from drfl.experiments.config.data_settings import LATEST, DataKey, load_latest
from drfl.experiments.execution import cells, training_cells
from drfl.experiments.execution.cells import Cell
from drfl.experiments.execution.executor import Executor, Shared, Workers, executor_of, iterate_completed
from drfl.experiments.execution.records import Record
from drfl.experiments.run.runner import StopSignal

Run = Callable[[Cell, Path | None], Record]
"""Runs a cell, given the cell and the folder of the data sets' files."""


class CellPool:
    """Runs cells with an executor and stores their records.

    Leaving the block with an error drops cells that have not begun and stops running ones. No record is left
    incomplete.

    Args:
        executor: The object that its functions get is a :data:`Run`.
        data_dir: The folder of the data sets' files; None = the usual places.
        shared: Whether cells are runs of configurations, whose data sets are loaded here once for all workers.
    """

    def __init__(self, executor: Executor, data_dir: Path | None = None, *, shared: bool = False) -> None:
        self._executor, self._data_dir, self._shared = executor, data_dir, shared
        self._data: dict[DataKey, _SharedData] = {}
        self._lock = threading.Lock()  # futures end in another thread than the one that submits cells

    def submit(self, cell: Cell, folder: Path) -> Future[Record]:
        """Run a cell in a worker, and store its record in the folder before the future returns it.

        If the worker is lost, for example because the system ran out of memory, the future fails with an error of drfl.
        """
        settings = data = None
        if self._shared and cell.kind == "training":  # others have no data
            settings = training_cells.config_from_job(cell.job, self._data_dir)
        if settings is None:
            inner = self._executor.submit(_work, cell, self._data_dir)
        else:
            with self._lock:
                if settings.key not in self._data:
                    # Free data sets that no cell uses only now, not when a cell ends: the next cell may need the same.
                    for key in [key for key, shared_data in self._data.items() if not shared_data.cells]:
                        self._data.pop(key).shared.close()
                    self._data[settings.key] = _SharedData(self._executor.share(load_latest(settings)))
                data = self._data[settings.key]
                data.cells += 1
            inner = self._executor.submit(_work, cell, self._data_dir, settings.key, data.shared)
        outer: Future[Record] = Future()

        def ended(done: Future[Record]) -> None:
            if data is not None:
                with self._lock:
                    data.cells -= 1
            try:
                # The record as it will be read, so that new and stored results are identical.
                outer.set_result(cells.write(folder, cell, done.result()))
            except BaseException as error:  # raised again by the future's result()
                outer.set_exception(error)

        inner.add_done_callback(ended)
        return outer

    def __enter__(self) -> Self:
        """Return the pool."""
        self._executor.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers, at once if there is an error."""
        self._executor.__exit__(kind, error, trace)
        with self._lock:  # cancelled futures may end meanwhile
            for data in self._data.values():
                data.shared.close()
            self._data.clear()


class _SharedData:
    """A data set that workers can fetch, and the number of unfinished cells that use it."""

    def __init__(self, shared: Shared[Dataset]) -> None:
        self.shared, self.cells = shared, 0


def _work(
    run: Run,
    watch: StopSignal,
    cell: Cell,
    data_dir: Path | None,
    key: DataKey | None = None,
    data: Shared[Dataset] | None = None,
) -> Record:
    if key is not None and data is not None:
        LATEST.get(key, data.get)
    return run(cell, data_dir)


def make_pool(
    workers: Workers,
    run: Run,
    data_dir: Path | None = None,
    modules: Collection[ModuleType] = (),
    *,
    shared: bool = False,
) -> CellPool:
    """Return a pool for these workers; see :func:`drfl.experiments.execution.executor.executor_of`."""
    return CellPool(executor_of(workers, run, modules), data_dir, shared=shared)


class CompletedCell(NamedTuple):
    """A cell that ended.

    Args:
        cell: The cell.
        record: Its record.
        was_stored: Whether the record was stored before.
        finished: The number of cells that have ended, those with stored records included.
        total: The number of all cells.
        share: The finished share of the cost of the cells that had to run, in [0, 1].
    """

    cell: Cell
    record: Record
    was_stored: bool
    finished: int
    total: int
    share: float

    @property
    def line(self) -> str:
        """How the cell ended; empty if its record was stored before."""
        job = self.cell.job
        end = f"{job.get('algorithm')}, seed {job.get('seed')}: {self.record.get('stopped')}"
        return "" if self.was_stored else end


def run_all_cells(
    wanted: Iterable[Cell],
    folder: Path,
    run: Run,
    *,
    workers: Workers,
    data_dir: Path | None = None,
    watch: StopSignal | None = None,
) -> Iterator[CompletedCell]:
    """Yield cells as they end: first those with stored records, which are not run again, then the others.

    Cells start in the given order. A cell that occurs twice runs once.

    Raises:
        InputError: If a job cannot start.
        DrflError: If a worker died.
        StoppedError: If a signal asked to stop.
    """
    # Several tables and figures may use the same run.
    distinct = {cell.key: cell for cell in wanted}
    stored = {key: record for key, cell in distinct.items() if (record := cells.read(folder, cell)) is not None}
    for finished, (key, record) in enumerate(stored.items(), 1):
        yield CompletedCell(distinct[key], record, True, finished, len(distinct), 0.0)
    missing = [cell for key, cell in distinct.items() if key not in stored]
    if not missing:
        return
    total, whole, spent, finished = len(distinct), sum(cell.cost for cell in missing), 0.0, len(stored)
    # Do not start more processes than there are cells: each takes seconds to start.
    count = workers if isinstance(workers, Cluster) else min(workers, len(missing))
    with make_pool(count, run, data_dir, shared=True) as pool:
        futures = {pool.submit(cell, folder): cell for cell in missing}
        for future in iterate_completed(futures, watch or StopSignal()):
            cell, record = futures.pop(future), future.result()
            spent, finished = spent + cell.cost, finished + 1
            yield CompletedCell(cell, record, False, finished, total, spent / whole)
