"""Call functions in other processes, on this machine or on a Ray cluster, through one interface."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from types import ModuleType, TracebackType
from typing import Generic, Protocol, Self, TypeVar

import cloudpickle

from drfl.core import checks
from drfl.core.errors import InputError, StoppedError
from drfl.engine.ray_cluster import LOCAL, Cluster
from drfl.experiments.run.runner import StopSignal

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables that limit a worker's libraries to one thread, so that results do not depend on the number of workers."""

Workers = int | Cluster
"""The number of processes on this machine, or a Ray cluster, all of whose CPUs are used."""


class Shared(Protocol[T_co]):
    """An object that each worker fetches at most once, when a call needs it."""

    def get(self) -> T_co:
        """Return the object; called in a worker."""
        ...

    def close(self) -> None:
        """Free the object's resources; called in the process that shared it, when no call needs it any more."""
        ...


class Executor(Protocol):
    """Calls functions in workers as ``function(object, watch, *arguments)``, with the same object for all calls.

    Workers must be able to import the functions' modules. ``watch`` indicates whether to stop. Leaving the block waits
    for running calls; leaving it with an error ends them.
    """

    def submit(self, function: Callable[..., T], *arguments: object) -> Future[T]:
        """Call a function in a worker. If the worker is lost, the future fails with an error of drfl."""
        ...

    def share(self, thing: T) -> Shared[T]:
        """Return an object that can be an argument of calls without being sent with each of them."""
        ...

    def ask_to_stop(self) -> None:
        """Set the watch of running calls, and end the calls that cannot see it."""
        ...

    def __enter__(self) -> Self:
        """Return the executor."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers."""
        ...


class LocalExecutor(Executor):
    """Makes calls in this process as soon as they are submitted. ``submit`` raises errors other than InputError."""

    def __init__(self, what: object) -> None:
        self._what = what

    def submit(self, function: Callable[..., T], *arguments: object) -> Future[T]:
        """See :class:`Executor`."""
        future: Future[T] = Future()
        try:
            future.set_result(function(self._what, StopSignal(), *arguments))
        except InputError as error:  # of this call alone
            future.set_exception(error)
        return future

    def share(self, thing: T) -> Shared[T]:
        """See :class:`Executor`."""
        return _Itself(thing)

    def ask_to_stop(self) -> None:
        """Do nothing: no call is running."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: there are no workers."""


class _Itself(Generic[T]):
    def __init__(self, thing: T) -> None:
        self._thing = thing

    def get(self) -> T:
        return self._thing

    def close(self) -> None:
        pass


def executor_of(workers: Workers, what: object, modules: Collection[ModuleType] = ()) -> Executor:
    """Return the executor for some workers."""
    if isinstance(workers, Cluster):
        from drfl.experiments.execution.ray_executor import RayExecutor

        return RayExecutor(workers, what, modules)
    from drfl.experiments.execution.processes import Processes

    return Processes(workers, what, modules)


def pickle_for_workers(
    what: object, modules: Collection[ModuleType] = (), dumps: Callable[[object], bytes] = cloudpickle.dumps
) -> bytes:
    """Pickle an object for workers with cloudpickle, which also handles classes defined in a notebook.

    The user's ``modules`` are sent by value, because workers may be unable to import them. For workers on this machine
    ``dumps`` is :meth:`drfl.experiments.execution.shared_tensors.SharedTensors.dumps`.
    """
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return dumps(what)
    except Exception as error:
        why = " ".join(str(error).split())
        raise InputError(
            f"cannot send the runs to another process ({why}): remove `jobs`", code="not-picklable", field="jobs"
        ) from error
    finally:
        for module in modules:
            # The registration is global in cloudpickle, so it must not outlast this call.
            cloudpickle.unregister_pickle_by_value(module)


def workers_of(jobs: int | str) -> Workers:
    """Return the workers for the argument ``jobs`` of a Python call."""
    if isinstance(jobs, str):
        if jobs != "ray":
            raise InputError(
                f"`jobs` must be a number of processes or 'ray', got '{jobs}'", code="invalid-value", field="jobs"
            )
        return Cluster()
    checks.integer("jobs", jobs)
    return jobs


def workers_of_options(jobs: int | None, ray: str | None, default: int) -> Workers:
    """Return the workers for the options ``--jobs`` and ``--ray``."""
    if ray is None:
        return jobs or default
    # A cluster that is already running has a fixed number of CPUs. Only one that drfl starts can be made smaller.
    if jobs is not None and ray != LOCAL:
        raise InputError(
            f"`jobs` counts processes on this machine, but `ray = '{ray}'` uses all CPUs of a cluster: remove `jobs`",
            code="conflicting-options",
            field="jobs",
        )
    return Cluster(ray, jobs)


POLL_INTERVAL = 0.2
"""Seconds between checks for a signal."""


def iterate_completed(futures: Collection[Future[T]], watch: StopSignal) -> Iterator[Future[T]]:
    """Yield futures as they end. The caller may add more to the collection meanwhile.

    Raises:
        StoppedError: If a signal asked to stop. The results of ended calls are stored.
    """
    while futures:
        # Wait on the current set every time, because callers may add futures. Wake up regularly, because a signal only
        # sets a flag.
        done = wait(futures, POLL_INTERVAL, FIRST_COMPLETED).done
        if watch.stop:
            raise StoppedError("interrupted: finished runs are stored, and the same command continues", watch.code)
        yield from done
