"""Cells run by an executor, their records kept one by one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NamedTuple, Self

from drfl.data import Dataset
from drfl.engine.ray_cluster import Cluster
from drfl.experiments.config.data_settings import LATEST, DataKey, loaded
from drfl.experiments.execution import cells, training_cells
from drfl.experiments.execution.cells import Cell
from drfl.experiments.execution.executor import Executor, Shared, Workers, as_ended, executor_of
from drfl.experiments.execution.records import Record
from drfl.experiments.run.runner import StopSignal

Run = Callable[[Cell, Path | None], Record]
"""Runs a cell, given where the data sets' files lie."""


class CellPool:
    """Runs cells by an executor and keeps their records.

    Leaving the block with an error drops what was not begun and stops what was: records are written atomically.

    Args:
        executor: Its object is what runs a cell, a :data:`Run`.
        data_dir: Where the data sets' files lie; None = the usual places.
        shared: Whether cells are runs of configurations: their data sets are loaded here, once, for all workers.
    """

    def __init__(self, executor: Executor, data_dir: Path | None = None, *, shared: bool = False) -> None:
        self._executor, self._data_dir, self._shared = executor, data_dir, shared
        self._data: dict[DataKey, _SharedData] = {}
        self._lock = threading.Lock()  # futures end in another thread than they are begun in

    def submit(self, cell: Cell, folder: Path) -> Future[Record]:
        """Have a cell run; its record is kept in the folder before the future has it.

        A lost worker, such as one that the system killed for its memory, fails the future with an error of drfl.
        """
        wanted, data = training_cells.data_of(cell, self._data_dir) if self._shared else None, None
        if wanted is None:
            inner = self._executor.submit(_work, cell, self._data_dir)
        else:
            with self._lock:
                if wanted.key not in self._data:
                    self._drop()
                    self._data[wanted.key] = _SharedData(self._executor.share(loaded(wanted)))
                data = self._data[wanted.key]
                data.cells += 1
            inner = self._executor.submit(_work, cell, self._data_dir, wanted.key, data.shared)
        outer: Future[Record] = Future()

        def ended(done: Future[Record]) -> None:
            if data is not None:
                with self._lock:
                    data.cells -= 1
            try:
                # The record as it will be read, so that fresh and stored results are identical.
                outer.set_result(cells.write(folder, cell, done.result()))
            except BaseException as error:  # raised where the future's result is asked for
                outer.set_exception(error)

        inner.add_done_callback(ended)
        return outer

    def _drop(self) -> None:
        """Give up data that no cell needs. The next cell may need those of the last, so call it before others come."""
        for key in [key for key, data in self._data.items() if not data.cells]:
            self._data.pop(key).shared.close()

    def __enter__(self) -> Self:
        """Itself."""
        self._executor.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers, at once if by an error."""
        self._executor.__exit__(kind, error, trace)
        with self._lock:  # cancelled futures end while this is done
            for data in self._data.values():
                data.shared.close()
            self._data.clear()


class _SharedData:
    """A data set as workers get it, and the number of cells on it that have not ended."""

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


def pool_of(
    workers: Workers, run: Run, data_dir: Path | None = None, own: Collection[ModuleType] = (), *, shared: bool = False
) -> CellPool:
    """The pool of these workers; see :func:`drfl.experiments.execution.executor.executor_of` and :class:`CellPool`."""
    return CellPool(executor_of(workers, run, own), data_dir, shared=shared)


class Done(NamedTuple):
    """A cell that ended.

    Args:
        cell: which one.
        record: what it gave.
        known: whether it had been run before.
        finished: cells that ended so far, those known included.
        total: cells altogether.
        share: of the cost of what was to be run, in [0, 1].
    """

    cell: Cell
    record: Record
    known: bool
    finished: int
    total: int
    share: float


def run_all(
    wanted: Iterable[Cell],
    folder: Path,
    run: Run,
    *,
    workers: Workers,
    data_dir: Path | None = None,
    watch: StopSignal | None = None,
) -> Iterator[Done]:
    """The cells as they end: first those whose records a folder has, which are not run again, then the others.

    Args:
        wanted: the cells, in the order in which they are begun; one that comes twice is run once.
        folder: of records.
        run: what runs a cell, of kinds that :mod:`drfl.experiments.execution.cells` names.
        workers: where they run.
        data_dir: where the data sets' files lie.
        watch: stops it.

    Raises:
        InputError: a job cannot start.
        DrflError: a worker died.
        StoppedError: a signal asked to stop.
    """
    # Tables and figures may use the same run.
    distinct = {cell.key: cell for cell in wanted}
    found = {key: record for key, cell in distinct.items() if (record := cells.read(folder, cell)) is not None}
    for finished, (key, record) in enumerate(found.items(), 1):
        yield Done(distinct[key], record, True, finished, len(distinct), 0.0)
    missing = [cell for key, cell in distinct.items() if key not in found]
    if not missing:
        return
    total, whole, spent, finished = len(distinct), sum(cell.cost for cell in missing), 0.0, len(found)
    # Start no more processes than there is work for: each takes seconds.
    count = workers if isinstance(workers, Cluster) else min(workers, len(missing))
    with pool_of(count, run, data_dir, shared=True) as pool:
        futures = {pool.submit(cell, folder): cell for cell in missing}
        for future in as_ended(futures, watch or StopSignal()):
            cell, record = futures.pop(future), future.result()
            spent, finished = spent + cell.cost, finished + 1
            yield Done(cell, record, False, finished, total, spent / whole)
