"""Cells in parallel processes, each on one thread, so that a result does not depend on how many there are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NamedTuple, Protocol, Self, TypeVar

import cloudpickle

from drfl.core import checks
from drfl.core.errors import InputError, StoppedError
from drfl.data import Dataset
from drfl.engine.ray_cluster import LOCAL, Cluster
from drfl.experiments.config.data_settings import DataKey, loaded
from drfl.experiments.execution import cells, training_cells
from drfl.experiments.execution.cells import Cell, Record
from drfl.experiments.execution.shared_tensors import SharedTensors
from drfl.experiments.execution.worker_processes import StopFlag, WorkerProcesses
from drfl.experiments.run.runner import StopSignal

T = TypeVar("T")

Run = Callable[[Cell, Path | None], Record]
"""Runs a cell, given where the data sets' files lie."""

Workers = int | Cluster
"""So many processes on this machine, or those of a Ray cluster."""


def pickled(
    what: object, own: Collection[ModuleType] = (), dumps: Callable[[object], bytes] = cloudpickle.dumps
) -> bytes:
    """An object as worker processes get it, by cloudpickle, so that what a notebook defines may be in it.

    Args:
        what: the object.
        own: the user's modules, which the workers get whole, as they may not find them.
        dumps: pickles; that of :class:`drfl.experiments.execution.shared_tensors.SharedTensors` for workers of this
            machine.

    Raises:
        InputError: it cannot be sent to another process.
    """
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        return dumps(what)
    except Exception as error:
        why = " ".join(str(error).split())
        raise InputError(
            f"what is run cannot be sent to another process ({why}): leave jobs out", code="not-picklable", field="jobs"
        ) from error
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def workers_of(jobs: int | str) -> Workers:
    """What ``jobs`` of a Python call stands for.

    Raises:
        InputError: it is neither a number of processes nor "ray".
    """
    if isinstance(jobs, str):
        if jobs != "ray":
            raise InputError(
                f"jobs='{jobs}' must be a number of processes, or 'ray'", code="invalid-value", field="jobs"
            )
        return Cluster()
    checks.whole("jobs", jobs)
    return jobs


def workers_by_options(jobs: int | None, ray: str | None, default: int) -> Workers:
    """What ``--jobs`` and ``--ray`` stand for.

    Raises:
        InputError: both were given, for a cluster that is not begun here.
    """
    if ray is None:
        return jobs or default
    if jobs is not None and ray != LOCAL:
        raise InputError(
            f"--jobs is of this machine, and --ray {ray} uses all CPUs of a cluster: leave --jobs out",
            code="conflicting-options",
            field="jobs",
        )
    return Cluster(ray, jobs)


class Submitter(Protocol):
    """Runs cells and keeps their records."""

    def submit(self, cell: Cell, folder: Path) -> Future[Record]:
        """Have a cell run; its record is kept in the folder before the future has it."""
        ...


def pool_of(
    workers: Workers, run: Run, data_dir: Path | None = None, own: Collection[ModuleType] = (), *, shared: bool = False
) -> AbstractContextManager[Submitter]:
    """A :class:`Pool`, or on a cluster a :class:`drfl.experiments.execution.ray_pool.RayPool`, whose arguments these
    are.
    """
    if isinstance(workers, Cluster):
        from drfl.experiments.execution.ray_pool import RayPool

        return RayPool(workers, run, data_dir, own, shared=shared)
    return Pool(workers, run, data_dir, own, shared=shared)


class Pool:
    """Worker processes that run cells and keep their records, see :class:`WorkerProcesses`.

    Leaving the block with an error drops what was not begun and stops what was: records are written atomically.

    Args:
        workers: how many processes, at least 1.
        run: what runs a cell; see :func:`pickled`.
        data_dir: where the data sets' files lie; None = the usual places.
        own: the user's modules behind it, see :func:`pickled`.
        shared: whether cells are runs of configurations: their data sets are loaded here, once, and all workers read
            them from the same memory.

    Raises:
        InputError: ``run`` cannot be sent to another process.
    """

    def __init__(
        self,
        workers: int,
        run: Run,
        data_dir: Path | None = None,
        own: Collection[ModuleType] = (),
        *,
        shared: bool = False,
    ) -> None:
        self._data_dir, self._shared, self._tensors = data_dir, shared, SharedTensors()
        self._data: dict[DataKey, _Data] = {}
        self._lock = threading.Lock()  # futures end in another thread than they are begun in
        self._processes = WorkerProcesses(workers, _enter, pickled(run, own, self._tensors.dumps))

    def submit(self, cell: Cell, folder: Path) -> Future[Record]:
        """Have a cell run; its record is kept in the folder before the future has it.

        A damaged worker, e.g. one that the system killed for its memory, fails the future with an error of drfl's own.
        """
        wanted = training_cells.data_of(cell, self._data_dir) if self._shared else None
        if wanted is None:
            return self._processes.submit(_work, cell, folder, self._data_dir)
        key = wanted.key
        with self._lock:
            if key not in self._data:
                self._data[key] = _Data(loaded(wanted))
            data = self._data[key]
            data.cells += 1
        future = self._processes.submit(_work, cell, folder, self._data_dir, (key, data.payload))

        def ended(_: object) -> None:  # drop data that no cell needs any more
            with self._lock:
                data.cells -= 1
                if not data.cells:
                    self._data.pop(key).tensors.close()

        future.add_done_callback(ended)
        return future

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers, at once if by an error."""
        self._processes.__exit__(kind, error, trace)
        with self._lock:  # cancelled futures end while this is done
            # Data of cells that never ended are still open.
            for tensors in (self._tensors, *(data.tensors for data in self._data.values())):
                tensors.close()


class _Data:
    """A data set as workers get it, and the number of cells on it that have not ended."""

    def __init__(self, data: Dataset) -> None:
        self.tensors, self.cells = SharedTensors(), 0
        self.payload = pickled(data, dumps=self.tensors.dumps)


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


LOOK = 0.2
"""Seconds between two looks at whether a signal asked to stop."""


def as_ended(futures: Collection[Future[T]], watch: StopSignal) -> Iterator[Future[T]]:
    """Futures as they end; more may be added to the collection meanwhile.

    Raises:
        StoppedError: a signal asked to stop. What has ended is kept.
    """
    while futures:
        # Wait on the current set every time: callers may add futures meanwhile.
        done = wait(futures, LOOK, FIRST_COMPLETED).done
        if watch.stop:
            raise StoppedError("interrupted: what is finished is kept, and the same command continues it", watch.code)
        yield from done


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


class _CellWorker:
    """What a worker process has."""

    run: Run
    failed: str = ""


def _enter(payload: bytes, stop: StopFlag) -> None:
    try:
        _CellWorker.run = staticmethod(cloudpickle.loads(payload))
    except Exception as error:  # an error here would look like a process that was killed
        _CellWorker.failed = f"{type(error).__name__}: {' '.join(str(error).split())}"


def _work(cell: Cell, folder: Path, data_dir: Path | None, data: tuple[DataKey, bytes] | None = None) -> Record:
    if _CellWorker.failed:
        raise InputError(
            f"what is run cannot be made in another process ({_CellWorker.failed}): leave jobs out",
            code="not-picklable",
            field="jobs",
        )
    if data is not None:
        key, payload = data
        loaded.given(key, lambda: cloudpickle.loads(payload))
    return _kept(_CellWorker.run, cell, folder, data_dir)


def _kept(run: Run, cell: Cell, folder: Path, data_dir: Path | None) -> Record:
    record = run(cell, data_dir)
    cells.write(folder, cell, record)
    # Return the record as it is read back, so that fresh and stored results are identical.
    return cells.read(folder, cell) or record


class InProcess:
    """In place of a :class:`Pool`, runs cells in this process when they are submitted.

    Args:
        run: what runs a cell.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def submit(self, cell: Cell, folder: Path) -> Future[Record]:
        """Run a cell; an error is raised here."""
        future: Future[Record] = Future()
        future.set_result(_kept(self._run, cell, folder, None))
        return future

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to end."""
