"""Worker processes that run one call at a time and communicate only through pipes.

`concurrent.futures.ProcessPoolExecutor` shares queues whose locks are named semaphores of the system. They stay in
/dev/shm if a whole process group is killed. A pipe disappears with its processes.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from concurrent.futures import Future
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import ModuleType, TracebackType
from typing import Generic, NamedTuple, TypeVar

import cloudpickle

from drfl.core.errors import DrflError, InputError
from drfl.core.user_code import block_folder, blocked_folders
from drfl.experiments.execution.executor import THREADS, Executor, pickle_for_workers
from drfl.experiments.execution.shared_tensors import SharedTensors
from drfl.experiments.run.runner import StopSignal

T = TypeVar("T")

SIGNALS = {signal.SIGINT, signal.SIGTERM}


class LostWorkerError(DrflError):
    """A worker process died, for example because the system ran out of memory and killed it.

    Args:
        has_started: Whether the process had loaded the main module. A new process imports it, which fails for a script
            that is not a file, and for one that starts processes itself when it is imported.
    """

    code = "worker-lost"

    def __init__(self, has_started: bool = True) -> None:
        self._has_started = has_started
        super().__init__(
            "a worker process was killed, perhaps for lack of memory. Use fewer `jobs`. With `out`, finished runs are "
            "stored."
            if has_started
            else "a worker process could not start. With `jobs`, call drfl in a script file, below "
            "`if __name__ == '__main__':`, or remove `jobs`."
        )

    def __reduce__(self) -> tuple[type[LostWorkerError], tuple[bool]]:
        """Let pickle make the exception with its own arguments."""
        return type(self), (self._has_started,)


class _Call(NamedTuple):
    """A call for a worker, and the future of its answer."""

    future: Future
    function: Callable[..., object]
    arguments: tuple[object, ...]


class StopFlag(StopSignal):
    """Tells a worker's calls to stop if the parent process asks for it or is gone."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe = pipe

    @property
    def stop(self) -> bool:
        """Whether to stop."""
        return self._pipe.poll()  # the parent closes its end to ask; it never sends anything


class MappedObject(Generic[T]):
    """An object whose large tensors all workers on this machine map into memory.

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
        """Send the payload alone: the files stay with the process that shares the object."""
        return MappedObject, (self._payload,)


class Processes(Executor):
    """Processes on this machine, each with one thread, that make calls in the order of submission.

    They ignore signals from the terminal, because the process that makes them decides when they stop. They die with
    that process, however it ends.

    All processes map one copy of the large tensors of ``what``.
    """

    def __init__(self, count: int, what: object, modules: Collection[ModuleType] = ()) -> None:
        self._tensors = SharedTensors()
        # Do not fork: this process has threads, and a fork copies the locks that they hold at that moment.
        context = multiprocessing.get_context("spawn")
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        stop_pipe, self._stop = context.Pipe(duplex=False)
        self._lost, self._has_started = False, True
        self._processes, self._threads, pipes = [], [], []
        before = {name: os.environ.get(name) for name in THREADS}
        os.environ.update(dict.fromkeys(THREADS, "1"))  # workers read them when they load their libraries
        # The first process would start the tracker, which would unblock the signals that are blocked next.
        resource_tracker.ensure_running()
        # Without this, an interrupt before the `with` block would leave workers for which Python waits at its exit.
        atexit.register(self.kill)
        # Workers inherit the mask, so that no signal ends them before they ignore signals.
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            try:
                for _ in range(count):
                    parent_end, worker_end = context.Pipe()
                    process = context.Process(target=_work, args=(worker_end, stop_pipe))
                    process.start()
                    worker_end.close()
                    self._processes.append(process)
                    pipes.append(parent_end)
            finally:
                stop_pipe.close()
                for name, value in before.items():
                    if value is None:
                        os.environ.pop(name, None)
                    else:
                        os.environ[name] = value
                # Last, because an interrupt that arrived meanwhile is raised here.
                signal.pthread_sigmask(signal.SIG_SETMASK, masked)
            # Pickle while the workers load their libraries. Do not pass this as an argument of the process:
            # multiprocessing writes arguments before the process reads them, and would wait forever if they exceeded
            # the pipe's buffer and the process died first.
            self._first = pickle_for_workers((what, blocked_folders()), modules, self._tensors.dumps)
        except BaseException:
            self.kill()
            raise
        for pipe, process in zip(pipes, self._processes, strict=True):
            thread = threading.Thread(target=self._serve, args=(pipe, process), daemon=True)
            thread.start()
            self._threads.append(thread)

    def submit(self, function: Callable[..., T], *arguments: object) -> Future[T]:
        """See :class:`drfl.experiments.execution.executor.Executor`.

        If a worker dies, its call and all calls that have not begun fail with :class:`LostWorkerError`.
        """
        future: Future[T] = Future()
        self._calls.put(_Call(future, function, arguments))
        return future

    def share(self, thing: T) -> MappedObject[T]:
        """See :class:`drfl.experiments.execution.executor.Executor`."""
        tensors = SharedTensors()
        return MappedObject(pickle_for_workers(thing, dumps=tensors.dumps), tensors)

    def ask_to_stop(self) -> None:
        """Set the flag that all workers see."""
        self._stop.close()

    def kill(self) -> None:
        """Kill the workers."""
        for process in self._processes:
            process.kill()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers."""
        # A generator that is closed early has not failed: its caller has what it needs.
        if kind is not None and not issubclass(kind, GeneratorExit):
            self.kill()
        while True:  # cancel calls that have not begun
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
        atexit.unregister(self.kill)
        self.ask_to_stop()
        self._tensors.close()

    def _serve(self, pipe: Connection, process: BaseProcess) -> None:
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
                        raise EOFError
                    pipe.send((call.function, call.arguments))
                    good, answer = pipe.recv()
                # The process died, perhaps for lack of memory. Later calls fail, too.
                except (EOFError, OSError):
                    process.join(1)  # its pipe closes shortly before it ends
                    # Python exits with 1 if the process fails before it makes calls. The system kills with a signal.
                    self._has_started = self._has_started and process.exitcode != 1
                    self._lost, good, answer = True, False, LostWorkerError(self._has_started)
                except Exception as error:
                    good, answer = False, error
                if good:
                    call.future.set_result(answer)
                else:
                    call.future.set_exception(answer)


def _work(pipe: Connection, asked: Connection) -> None:
    """Answer calls until the parent closes the pipe."""
    _answer_calls(pipe, asked)
    # Skip the end of the interpreter: unloading the libraries takes most of a second, for which the parent waits.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _answer_calls(pipe: Connection, asked: Connection) -> None:
    # Ctrl-C reaches all processes of a terminal, but the parent alone decides whether runs may finish.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    parent = multiprocessing.parent_process()

    def leave_with_parent(sentinel: int) -> None:
        wait([sentinel])
        # Exit at once: a worker must not outlive its parent.
        os._exit(1)

    if parent is not None:
        threading.Thread(target=leave_with_parent, args=(parent.sentinel,), daemon=True).start()
    import torch

    # Another number of threads would change the order of sums, and results would depend on the number of workers.
    torch.set_num_threads(1)
    try:
        payload = pipe.recv_bytes()
    except EOFError:
        return
    watch = StopFlag(asked)
    shared_object, failed = None, None
    try:
        shared_object, folders = cloudpickle.loads(payload)
        for folder in folders:
            block_folder(folder)
    except Exception as error:
        # Every call returns this error. If it were raised here, it would look like a crash of the process.
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        failed = InputError(
            f"cannot build the runs in another process ({why}): remove `jobs`", code="not-picklable", field="jobs"
        )
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        answer: tuple[bool, object] = False, failed
        if failed is None:
            try:
                answer = True, function(shared_object, watch, *arguments)
            except BaseException as error:
                if not isinstance(error, DrflError):  # a bug: pickle would drop the traceback of this process
                    error.add_note("".join(traceback.format_exception(error)))
                answer = False, error
        try:
            pipe.send(answer)
        except OSError:  # the parent is gone
            return
        except Exception as error:  # the answer cannot be pickled
            pipe.send((False, DrflError(f"{type(error).__name__}: {error}", code="not-picklable")))
