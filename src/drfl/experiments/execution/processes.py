"""Worker processes that run calls one at a time, over pipes alone.

`concurrent.futures.ProcessPoolExecutor` shares queues, whose locks are named semaphores of the system: they stay in
/dev/shm when a whole process group is killed. A pipe is gone with its processes.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Collection
from concurrent.futures import Future
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from types import ModuleType, TracebackType
from typing import Generic, NamedTuple, Self, TypeVar

import cloudpickle

from drfl.core.errors import DrflError, InputError
from drfl.core.user_code import keep_out, kept_out
from drfl.experiments.execution.executor import THREADS, pickled
from drfl.experiments.execution.shared_tensors import SharedTensors
from drfl.experiments.run.runner import StopSignal

T = TypeVar("T")

SIGNALS = {signal.SIGINT, signal.SIGTERM}


class LostWorkerError(DrflError):
    """A worker process died, for example because the system killed it for its memory."""

    code = "worker-lost"

    def __init__(self) -> None:
        why = "a worker process was killed, perhaps for its memory"
        super().__init__(f"{why}: what was finished is kept; run it again with fewer --jobs")

    def __reduce__(self) -> tuple[type[LostWorkerError], tuple[()]]:
        """An exception is made again from its arguments."""
        return type(self), ()


class _Call(NamedTuple):
    """What a worker is to do, and the future of its answer."""

    future: Future
    function: Callable[..., object]
    arguments: tuple[object, ...]


class StopFlag(StopSignal):
    """Whether the process that made a worker asks its calls to stop; also if that process is gone."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe = pipe

    @property
    def stop(self) -> bool:
        """Whether to stop."""
        return self._pipe.poll()  # its other end is closed to ask; nothing is ever sent


class MappedObject(Generic[T]):
    """An object whose large tensors all workers of this machine map into memory.

    Args:
        payload: The pickled object.
        tensors: The files of its large tensors; None in a worker, which does not own them.
    """

    def __init__(self, payload: bytes, tensors: SharedTensors | None = None) -> None:
        self._payload, self._tensors = payload, tensors

    def get(self) -> T:
        """See :class:`drfl.experiments.execution.executor.Shared`."""
        return cloudpickle.loads(self._payload)

    def close(self) -> None:
        """See :class:`drfl.experiments.execution.executor.Shared`."""
        if self._tensors is not None:
            self._tensors.close()

    def __reduce__(self) -> tuple[type[MappedObject[T]], tuple[bytes]]:
        """The files stay with the process that shares the object."""
        return MappedObject, (self._payload,)


class Processes:
    """Processes of this machine, each on one thread, that make calls in the order in which they are submitted.

    See :class:`drfl.experiments.execution.executor.Executor`. Processes ignore SIGINT and SIGTERM, which often go to
    the whole group: the process that made them decides what to do. They die with that process, however it ends.

    Args:
        count: The number of processes.
        what: The object of the calls. All processes map one copy of its large tensors.
        own: The user's modules behind it.

    Raises:
        InputError: The object cannot be sent to another process.
    """

    def __init__(self, count: int, what: object, own: Collection[ModuleType] = ()) -> None:
        self._tensors = SharedTensors()
        context = multiprocessing.get_context("spawn")
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        asked, self._stop = context.Pipe(duplex=False)
        # Not among a process's own arguments: what these hold beyond a pipe's buffer is written before the process
        # reads, and if it dies first multiprocessing waits for ever.
        self._first = pickled((what, kept_out()), own, self._tensors.dumps)
        self._lost = False
        self._processes, self._threads = [], []
        before = {name: os.environ.get(name) for name in THREADS}
        os.environ.update(dict.fromkeys(THREADS, "1"))  # read when a worker loads its libraries
        # Started with the first process, the tracker would unblock the signals that are blocked next.
        resource_tracker.ensure_running()
        # A worker inherits the mask, so that no signal ends it before it ignores them.
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            for _ in range(count):
                here, there = context.Pipe()
                process = context.Process(target=_work, args=(there, asked))
                process.start()
                there.close()
                thread = threading.Thread(target=self._serve, args=(here,), daemon=True)
                thread.start()
                self._processes.append(process)
                self._threads.append(thread)
        except BaseException:
            self.kill()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
            asked.close()
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def submit(self, function: Callable[..., T], *arguments: object) -> Future[T]:
        """See :class:`drfl.experiments.execution.executor.Executor`.

        A worker that died fails the future, and all that were not begun, with :class:`LostWorkerError`.
        """
        future: Future[T] = Future()
        self._calls.put(_Call(future, function, arguments))
        return future

    def share(self, thing: T) -> MappedObject[T]:
        """See :class:`drfl.experiments.execution.executor.Executor`."""
        tensors = SharedTensors()
        return MappedObject(pickled(thing, dumps=tensors.dumps), tensors)

    def ask_to_stop(self) -> None:
        """Set the workers' flags."""
        self._stop.close()

    def kill(self) -> None:
        """End the workers now."""
        for process in self._processes:
            process.kill()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers."""
        if kind is not None and not issubclass(kind, GeneratorExit):
            self.kill()
        while True:  # calls that were not begun
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                break
            if call is not None:
                call.future.cancel()
        # One end marker per thread; each thread finishes its current call first.
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()
        for process in self._processes:
            process.join()
        self.ask_to_stop()
        self._tensors.close()

    def _serve(self, pipe: Connection) -> None:
        """Pass calls to one worker, in a thread of its own."""
        with pipe:
            try:
                pipe.send_bytes(self._first)
            except OSError:
                self._lost = True
            while (call := self._calls.get()) is not None:
                # The call was cancelled while queued.
                if not call.future.set_running_or_notify_cancel():
                    continue
                try:
                    if self._lost:
                        raise LostWorkerError
                    pipe.send((call.function, call.arguments))
                    good, answer = pipe.recv()
                # The process died, perhaps for lack of memory. Later calls fail too.
                except (EOFError, OSError):
                    self._lost, good, answer = True, False, LostWorkerError()
                except Exception as error:
                    good, answer = False, error
                if good:
                    call.future.set_result(answer)
                else:
                    call.future.set_exception(answer)


def _work(pipe: Connection, asked: Connection) -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_with, args=(parent.sentinel,), daemon=True).start()
    import torch

    torch.set_num_threads(1)
    try:
        payload = pipe.recv_bytes()
    except EOFError:
        return
    watch = StopFlag(asked)
    what, failed = _unpickled(payload)
    while True:
        try:
            function, given = pipe.recv()
        except EOFError:
            return
        answer = False, failed
        if failed is None:
            answer = _answer(function, what, watch, given)
        try:
            pipe.send(answer)
        except OSError:  # nobody listens any more
            return
        except Exception as error:  # it cannot be pickled
            pipe.send((False, DrflError(f"{type(error).__name__}: {error}", code="not-picklable")))


def _answer(
    function: Callable[..., object], what: object, watch: StopFlag, given: tuple[object, ...]
) -> tuple[bool, object]:
    """Whether a call succeeds, and what it gives or raises."""
    try:
        return True, function(what, watch, *given)
    except BaseException as error:
        if not isinstance(error, DrflError):  # a bug: the traceback of the other process does not travel with it
            error.add_note("".join(traceback.format_exception(error)))
        return False, error


def _unpickled(payload: bytes) -> tuple[object, InputError | None]:
    """The object of the calls, or the error that every call raises: here it would look like a killed process."""
    try:
        what, folders = cloudpickle.loads(payload)
        for folder in folders:
            keep_out(folder)
    except Exception as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return None, InputError(
            f"what is run cannot be made in another process ({why}): leave jobs out", code="not-picklable", field="jobs"
        )
    return what, None


def _leave_with(sentinel: int) -> None:
    wait([sentinel])
    # Exit at once: a worker must not outlive its parent.
    os._exit(1)
