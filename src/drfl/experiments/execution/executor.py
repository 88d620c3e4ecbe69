"""Calls of functions in other processes, on this machine or on a Ray cluster, behind one interface."""

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
"""What says how many threads a worker's libraries have: one, so that no result depends on the number of workers."""

Workers = int | Cluster
"""The number of processes on this machine, or the cluster whose CPUs are used."""


class Shared(Protocol[T_co]):
    """An object that workers read when a call needs it, and that is sent to each of them at most once."""

    def get(self) -> T_co:
        """The object; called in a worker."""
        ...

    def close(self) -> None:
        """Give up what it occupies; called where it was shared, when no call needs it any more."""
        ...


class Executor(Protocol):
    """Calls functions in workers, which all have one object, as ``function(object, watch, *arguments)``.

    Functions are those of modules that workers can import. ``watch`` says whether to stop. Leaving the block waits for
    calls under way; leaving it with an error ends them.
    """

    def submit(self, function: Callable[..., T], *arguments: object) -> Future[T]:
        """Have a worker call a function. A lost worker fails the future with an error of drfl."""
        ...

    def share(self, thing: T) -> Shared[T]:
        """An object that can be an argument of calls without being sent with each of them."""
        ...

    def ask_to_stop(self) -> None:
        """Set the watch of calls that look at it, and end those that cannot."""
        ...

    def __enter__(self) -> Self:
        """Itself."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers."""
        ...


class Here:
    """Makes calls in this process when they are submitted; an error is raised there.

    Args:
        what: The object of the calls.
    """

    def __init__(self, what: object) -> None:
        self._what = what

    def submit(self, function: Callable[..., T], *arguments: object) -> Future[T]:
        """See :class:`Executor`."""
        future: Future[T] = Future()
        future.set_result(function(self._what, StopSignal(), *arguments))
        return future

    def share(self, thing: T) -> Shared[T]:
        """See :class:`Executor`."""
        return _Itself(thing)

    def ask_to_stop(self) -> None:
        """Nothing is under way."""

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to end."""


class _Itself(Generic[T]):
    def __init__(self, thing: T) -> None:
        self._thing = thing

    def get(self) -> T:
        return self._thing

    def close(self) -> None:
        pass


def executor_of(workers: Workers, what: object, own: Collection[ModuleType] = ()) -> Executor:
    """The executor of these workers.

    Args:
        workers: Where calls are made.
        what: The object of the calls.
        own: The user's modules behind it, see :func:`pickled`.

    Raises:
        InputError: The object cannot be sent to another process, or the cluster does not answer.
    """
    if isinstance(workers, Cluster):
        from drfl.experiments.execution.ray_executor import RayExecutor

        return RayExecutor(workers, what, own)
    from drfl.experiments.execution.processes import Processes

    return Processes(workers, what, own)


def pickled(
    what: object, own: Collection[ModuleType] = (), dumps: Callable[[object], bytes] = cloudpickle.dumps
) -> bytes:
    """Pickle an object for workers, by cloudpickle, so that it may be of a class that a notebook defines.

    Args:
        what: The object.
        own: The user's modules: workers may be unable to import them, so they are sent too.
        dumps: Pickles; that of :class:`drfl.experiments.execution.shared_tensors.SharedTensors` for workers of this
            machine.

    Raises:
        InputError: The object cannot be sent to another process.
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
    """The workers that ``jobs`` of a Python call stands for.

    Raises:
        InputError: It is neither a number of processes nor "ray".
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
    """The workers that ``--jobs`` and ``--ray`` stand for.

    Raises:
        InputError: Both are given, for a cluster that drfl does not start.
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


LOOK = 0.2
"""Seconds between two looks at whether a signal asked to stop."""


def as_ended(futures: Collection[Future[T]], watch: StopSignal) -> Iterator[Future[T]]:
    """Futures as they end; more may be added to the collection meanwhile.

    Raises:
        StoppedError: A signal asked to stop. What has ended is kept.
    """
    while futures:
        # Wait on the current set every time: callers may add futures meanwhile.
        done = wait(futures, LOOK, FIRST_COMPLETED).done
        if watch.stop:
            raise StoppedError("interrupted: what is finished is kept, and the same command continues it", watch.code)
        yield from done
