"""Calls on a Ray cluster, each on one CPU and one thread."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

import cloudpickle

from drfl.core.errors import DrflError, InputError
from drfl.engine.ray_cluster import LOST, RETRIES, Cluster
from drfl.experiments.execution.executor import THREADS, Executor, pickle_for_workers
from drfl.experiments.run.runner import StopSignal

if TYPE_CHECKING:
    from ray import ObjectRef

T = TypeVar("T")


class StoredObject(Generic[T]):
    """An object in Ray's object store, which each machine of the cluster fetches once."""

    def __init__(self, ref: ObjectRef) -> None:
        # The list keeps Ray from fetching the object at every call.
        self._ref = [ref]

    def get(self) -> T:
        """See :class:`drfl.experiments.execution.executor.Shared`."""
        import ray

        return ray.get(self._ref[0])

    def close(self) -> None:
        """Do nothing: the store drops the object with its last reference."""


class RayExecutor(Executor):
    """Calls on the CPUs of a cluster; see :class:`drfl.experiments.execution.executor.Executor`.

    If a worker or machine is lost, its call is repeated up to :data:`drfl.engine.ray_cluster.RETRIES` times. A call
    that raises an error is not repeated.

    Each worker fetches ``what`` once.
    """

    def __init__(self, cluster: Cluster, what: object, modules: Collection[ModuleType] = ()) -> None:
        payload = pickle_for_workers(what, modules)
        self._ray = cluster.connected()
        self._what = self._ray.put(payload)
        environment = {"env_vars": dict.fromkeys(THREADS, "1")}
        self._call = self._ray.remote(num_cpus=1, max_retries=RETRIES, runtime_env=environment)(_call_in_worker)
        self._open: dict[ObjectRef, None] = {}

    def submit(self, function: Callable[..., T], *arguments: object) -> Future[T]:
        """See :class:`drfl.experiments.execution.executor.Executor`."""
        ref, future = self._call.remote(function, [self._what], *arguments), Future[T]()
        self._open[ref] = None

        def ended(_: object) -> None:
            self._open.pop(ref, None)
            # An exception here would be lost in Ray's thread, so hand it to the caller of the future's result().
            try:
                future.set_result(self._ray.get(ref))
            except self._ray.exceptions.RayTaskError as error:
                future.set_exception(error.cause)
            except self._ray.exceptions.RayError as error:
                remedy = "finished runs are stored; run the command again with more memory per CPU"
                text = f"{LOST} ({type(error).__name__}): {remedy}"
                future.set_exception(DrflError(text, code="worker-lost", field="ray"))
            except BaseException as error:
                future.set_exception(error)

        ref.future().add_done_callback(ended)
        return future

    def share(self, thing: T) -> StoredObject[T]:
        """See :class:`drfl.experiments.execution.executor.Executor`."""
        return StoredObject(self._ray.put(thing))

    def ask_to_stop(self) -> None:
        """End running calls and drop the others: a call on another machine cannot see a flag."""
        for ref in [*self._open]:
            self._ray.cancel(ref, force=True)
        self._open.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the calls that are still running."""
        self.ask_to_stop()


class _Worker:
    """The object that a worker process has fetched."""

    ref: ObjectRef | None = None
    what: object = None


def _call_in_worker(function: Callable[..., object], what: list[ObjectRef], *arguments: object) -> object:
    import ray
    import torch

    # Use one thread, as in local worker processes. More would change the rounding of sums.
    torch.set_num_threads(1)
    # The list keeps Ray from fetching the object at every call.
    (ref,) = what
    # Unpickle once per worker, not once per call.
    if ref != _Worker.ref:
        try:
            _Worker.what, _Worker.ref = cloudpickle.loads(ray.get(ref)), ref
        except Exception as error:
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise InputError(
                f"cannot build the runs on a Ray worker ({why}): install the same packages there",
                code="not-picklable",
                field="ray",
            ) from None
    return function(_Worker.what, StopSignal(), *arguments)
