"""A process at a site that loads PyTorch and Flower once and forks for every message.

    python -m drfl.flower.fork_server FOLDER

Flower starts the program ``flwr-clientapp`` for every message and spends most of the time on loading PyTorch and
Flower. This process loads them once. Then it writes a program with the same name to the folder, which must be on the
PATH of the SuperNode. That program sends its arguments to this process, which forks: see
:mod:`drfl.flower.fork_client`.

A child contains only the loaded modules, and no data, model or state. Flower's own program is used until everything is
loaded, and after this process has ended. This process and its children end when the process that started it ends.
"""

from __future__ import annotations

import errno
import importlib
import importlib.metadata
import os
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from drfl.flower import fork_client
from drfl.flower.fork_client import DONE, PROGRAM, SOCKET_NAME

PRELOADED_MODULES = ("torch", "flwr.supernode.runtime.run_clientapp", "drfl.flower.client_app", "httpcore")
"""``httpcore`` because httpx imports it only for its first connection, which is in a child."""
CHECK_INTERVAL = 0.5
"""Seconds between two checks whether the process that started this one still runs."""
CALL_TIMEOUT = 5.0
"""Timeout in seconds for a caller to send its arguments."""
GRACE = 10.0
"""Seconds in which a child may clean up after the SuperNode has ended; Flower itself allows 5."""
MOST_BYTES = 65536
"""Maximum number of bytes of a caller's arguments."""


def load_program() -> Callable[[], object]:
    """Import all that Flower's program needs, and return the program as a function."""
    for name in PRELOADED_MODULES:
        importlib.import_module(name)
    (entry_point,) = importlib.metadata.entry_points(group="console_scripts", name=PROGRAM)
    return entry_point.load()


@contextmanager
def open_socket(folder: Path) -> Iterator[socket.socket]:
    """Open a socket in a folder that only this user can enter, and write the program that connects to it.

    Raises:
        OSError: If the socket cannot be opened, or another process uses it.
    """
    # The folder is private, because any process that reaches the socket can run code as this user.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)  # it may exist with wider permissions; this fails if it belongs to another user
    server, previous_folder = os.getpid(), Path.cwd()
    listener, shim = socket.socket(socket.AF_UNIX), folder.resolve() / PROGRAM
    try:
        # The path of a socket is limited to about a hundred characters, so bind it by its name inside the folder.
        os.chdir(folder)
        # A process that was killed leaves its socket behind; that of a living process must stay.
        with suppress(ConnectionRefusedError, FileNotFoundError), socket.socket(socket.AF_UNIX) as other:
            other.connect(SOCKET_NAME)
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        with suppress(FileNotFoundError):
            os.unlink(SOCKET_NAME)
        listener.bind(SOCKET_NAME)
    finally:
        os.chdir(previous_folder)
    listener.listen()
    # The timeout lets `accept_calls` check `keep_running` when no call comes.
    listener.settimeout(CHECK_INTERVAL)
    # -I and -S: the program needs only the standard library, and starts in a fraction of the time without the rest.
    call = shlex.join([sys.executable, "-IS", str(Path(fork_client.__file__)), str(shim.parent)])
    new = shim.with_suffix(".new")
    new.write_text(f'#!/bin/sh\nexec {call} "$@"\n')
    new.chmod(0o700)
    # Publish the program last and atomically: the SuperNode finds it from now on, and the socket already listens.
    os.replace(new, shim)
    try:
        yield listener
    finally:
        listener.close()
        # A child leaves this block too, and must not remove the files that its parent uses.
        if os.getpid() == server:
            shim.unlink(missing_ok=True)
            (shim.parent / SOCKET_NAME).unlink(missing_ok=True)


def accept_calls(
    listener: socket.socket, keep_running: Callable[[], bool]
) -> Iterator[tuple[socket.socket, list[str]]]:
    """Yield connections with their arguments until ``keep_running`` returns False."""
    while keep_running():
        try:
            caller, _ = listener.accept()
        except TimeoutError:
            continue
        with caller, suppress(OSError):
            # A caller that hangs must not block the others.
            caller.settimeout(CALL_TIMEOUT)
            with caller.makefile("rb") as stream:
                data = stream.read(MOST_BYTES)
            # Every argument ends with a zero byte: without one at the end the call is incomplete.
            if data.endswith(b"\0"):
                yield caller, [os.fsdecode(part) for part in data[:-1].split(b"\0")]


def fork_per_call(folder: Path, keep_running: Callable[[], bool]) -> list[str] | None:
    """Fork for every call until ``keep_running`` returns False.

    Returns:
        In a child the arguments of its call; None in this process.

    Raises:
        OSError: If there can be no socket in the folder.
    """
    with open_socket(folder) as listener:
        for caller, arguments in accept_calls(listener, keep_running):
            with suppress(OSError):  # no memory for a child, or the caller has ended
                # A child has only the thread that forked. That is safe, because this process only imports modules, and
                # no other thread works in it.
                if os.fork() == 0:
                    return arguments
                # Answer after the fork: if it fails, the caller gets no answer and runs Flower's own program.
                caller.sendall(DONE)
    return None


def end_with(server: int) -> None:
    """End this child when the process ``server``, which forked it, has ended."""
    while os.getppid() == server:
        time.sleep(CHECK_INTERVAL)
    # Flower's own check for a killed SuperNode signals the thread that checks. The main thread does not wake up if it
    # waits for a thread that retries a request, and these retries never end.
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(GRACE)
    os._exit(1)


def main() -> None:
    """Load all modules, wait for calls, and run Flower's program in a child for each call."""
    # When the SuperNode ends, this process gets another parent and then ends too.
    parent, server = os.getppid(), os.getpid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the SuperNode, after which this process ends
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel then removes children that have ended
    run = load_program()
    try:
        arguments = fork_per_call(Path(sys.argv[1]), lambda: os.getppid() == parent)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            sys.exit(f"drfl: another process forks for the requests in {sys.argv[1]}. Stop it first")
        sys.exit(
            f"drfl: cannot open a socket in {sys.argv[1]} ({error.strerror}). Every request will load PyTorch again"
        )
    if arguments is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # With SIG_IGN the child could not get the exit status of its child processes.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        threading.Thread(target=end_with, args=(server,), daemon=True).start()
        sys.argv = [PROGRAM, *arguments]
        run()


if __name__ == "__main__":
    main()
