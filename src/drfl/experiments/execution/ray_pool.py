"""Cells on a Ray cluster, each on one CPU and one thread; their records are kept here, as those of processes are."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import cloudpickle

from drfl.core.errors import DrflError, InputError
from drfl.engine.ray_cluster import LOST, RETRIES, Cluster
from drfl.experiments.config.data_settings import DataKey, loaded
from drfl.experiments.execution import cells, training_cells
from drfl.experiments.execution.cells import Cell, Record
from drfl.experiments.execution.pool import Run, pickled
from drfl.experiments.execution.worker_processes import THREADS

if TYPE_CHECKING:
    from ray import ObjectRef

T = TypeVar("T")


class Tasks:
    """Calls of one function on a cluster's workers, each of which gets one object once.

    A call whose worker or machine is lost is made again, :data:`RETRIES` times; one that raises is not.

    Args:
        cluster: where.
        what: the object.
        function: gets the object and a call's arguments; of a module that workers can import.
        own: the user's modules behind the object, see :func:`drfl.experiments.execution.pool.pickled`.

    Raises:
        InputError: the object cannot be sent, or there is no such cluster.
    """

    def __init__(
        self, cluster: Cluster, what: object, function: Callable[..., object], own: Collection[ModuleType] = ()
    ) -> None:
        payload = pickled(what, own)
        self._ray, self._function = cluster.connected(), function
        self._what = self.put(payload)
        environment = {"env_vars": dict.fromkeys(THREADS, "1")}
        self._call = self._ray.remote(num_cpus=1, max_retries=RETRIES, runtime_env=environment)(_called)
        self._open: dict[ObjectRef, None] = {}

    def put(self, what: object) -> ObjectRef:
        """What workers fetch once each, from the object store."""
        return self._ray.put(what)

    def begin(self, *arguments: object) -> ObjectRef:
        """Make a call."""
        ref = self._call.remote(self._function, [self._what], *arguments)
        self._open[ref] = None
        return ref

    def ended(self, seconds: float) -> list[ObjectRef]:
        """Calls that have ended and were not asked for yet, after so long at the most."""
        return self._ray.wait([*self._open], timeout=seconds)[0]

    def result(self, ref: ObjectRef) -> object:
        """What a call gave.

        Raises:
            Exception: what it raised.
            DrflError: its worker was lost again and again.
        """
        self._open.pop(ref, None)
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            kept = "what was finished is kept; run it again with more memory a CPU"
            raise DrflError(f"{LOST} ({type(error).__name__}): {kept}", code="worker-lost", field="ray") from None

    def stop(self) -> None:
        """End the calls that are under way, and drop those that are not."""
        for ref in self._open:
            # A run on another machine cannot see the stop flag.
            self._ray.cancel(ref, force=True)
        self._open.clear()


class RayPool:
    """Cells on a cluster, in place of a :class:`drfl.experiments.execution.pool.Pool`.

    Args:
        cluster: where.
        run: what runs a cell.
        data_dir: where the data sets' files lie, on this machine; None = the usual places.
        own: the user's modules behind ``run``.
        shared: whether cells are runs of configurations: their data sets are loaded here, once, and workers get them
            from the object store.

    Raises:
        InputError: ``run`` cannot be sent, or there is no such cluster.
    """

    def __init__(
        self,
        cluster: Cluster,
        run: Run,
        data_dir: Path | None = None,
        own: Collection[ModuleType] = (),
        *,
        shared: bool = False,
    ) -> None:
        self._tasks, self._data_dir, self._shared = Tasks(cluster, run, _run, own), data_dir, shared
        self._data: dict[DataKey, ObjectRef] = {}

    def submit(self, cell: Cell, folder: Path) -> Future[Record]:
        """Have a cell run; its record is kept in the folder before the future has it."""
        wanted = training_cells.data_of(cell, self._data_dir) if self._shared else None
        key = None if wanted is None else wanted.key
        if wanted is not None and wanted.key not in self._data:
            # Upload the data once for all cells.
            self._data[wanted.key] = self._tasks.put(loaded(wanted))
        data = [] if key is None else [self._data[key]]
        ref, future = self._tasks.begin(cell, self._data_dir, key, data), Future[Record]()

        def ended(_: object) -> None:
            try:
                record = self._tasks.result(ref)
                assert isinstance(record, dict)
                cells.write(folder, cell, record)
                future.set_result(cells.read(folder, cell) or record)
            except BaseException as error:  # whoever waits for the future is to have it
                future.set_exception(error)

        ref.future().add_done_callback(ended)
        return future

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what is under way."""
        self._tasks.stop()


class _RayCellWorker:
    """What a worker process has fetched."""

    ref: ObjectRef | None = None
    what: object = None


def _called(function: Callable[..., object], what: list[ObjectRef], *arguments: object) -> object:
    import ray
    import torch

    # One thread, as in local worker processes: more would change the rounding of sums.
    torch.set_num_threads(1)
    # The reference is inside a list: Ray would fetch a bare one at every call.
    (ref,) = what
    # Unpickle once per worker, not once per call.
    if ref != _RayCellWorker.ref:
        try:
            _RayCellWorker.what, _RayCellWorker.ref = cloudpickle.loads(ray.get(ref)), ref
        except Exception as error:
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise InputError(
                f"what is run cannot be made on a Ray worker ({why}): install it there too",
                code="not-picklable",
                field="ray",
            ) from None
    return function(_RayCellWorker.what, *arguments)


def _run(run: Run, cell: Cell, data_dir: Path | None, key: DataKey | None, data: list[ObjectRef]) -> Record:
    import ray

    if key is not None:
        loaded.given(key, lambda: ray.get(data[0]))
    return run(cell, data_dir)
