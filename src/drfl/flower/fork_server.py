"""A process at a site that loads PyTorch and Flower once, and forks for every message.

    python -m drfl.flower.fork_server FOLDER

Flower starts the program ``flwr-clientapp`` for every message, and most of its time goes into loading PyTorch and
Flower. This process loads them once. Then it puts a program of that name into the folder, which is to be on the PATH of
the SuperNode; it passes its arguments on to this process, which forks, see :mod:`drfl.flower.fork_client`.

A child is as fresh as a program that was just started: it holds what was loaded, and no data, model or state. Until all
is loaded, and after this process has ended, Flower's own program is used. It ends with the process that started it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from drfl.flower import fork_client
from drfl.flower.fork_client import DONE, DOOR, PROGRAM

LOADED = ("torch", "flwr.supernode.runtime.run_clientapp", "drfl.flower.client_app")
LOOK = 0.5
"""Seconds between two checks whether the process that started this one still runs."""
PATIENCE = 5.0
"""Seconds that a caller may take to send its arguments."""
LONGEST = 65536
"""Bytes of a caller's arguments at most."""


def program() -> Callable[[], object]:
    """Flower's program as a function, with all that it will need loaded."""
    for name in LOADED:
        importlib.import_module(name)
    (found,) = importlib.metadata.entry_points(group="console_scripts", name=PROGRAM)
    return found.load()


@contextmanager
def opened(folder: Path) -> Iterator[socket.socket]:
    """A socket in a folder that only this user can enter, and the program that leads to it.

    Raises:
        OSError: there can be none.
    """
    # The folder is private, as any process that reaches the socket can run code as this user.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    mine, back = os.getpid(), Path.cwd()
    door, shim = socket.socket(socket.AF_UNIX), folder.resolve() / PROGRAM
    try:
        # The path of a socket is limited to about a hundred characters, and that of the folder is not: bind in it.
        os.chdir(folder)
        with suppress(FileNotFoundError):
            # Left by a process that was killed.
            os.unlink(DOOR)
        door.bind(DOOR)
    finally:
        os.chdir(back)
    door.listen()
    # The timeout lets `calls` check `wanted` when no call comes.
    door.settimeout(LOOK)
    # -I and -S: it needs the standard library alone, and starts in a fraction of the time without the rest.
    call = shlex.join([sys.executable, "-IS", str(Path(fork_client.__file__)), str(shim.parent)])
    new = shim.with_suffix(".new")
    new.write_text(f'#!/bin/sh\nexec {call} "$@"\n')
    new.chmod(0o700)
    # Last, and whole: from now on the SuperNode finds it, and the socket already listens.
    os.replace(new, shim)
    try:
        yield door
    finally:
        door.close()
        # A child leaves this block, too, and must not remove what its parent serves.
        if os.getpid() == mine:
            shim.unlink(missing_ok=True)
            (shim.parent / DOOR).unlink(missing_ok=True)


def calls(door: socket.socket, wanted: Callable[[], bool]) -> Iterator[tuple[socket.socket, list[str]]]:
    """Connections and their arguments, until this process is no longer wanted."""
    while wanted():
        try:
            caller, _ = door.accept()
        except TimeoutError:
            continue
        with caller, suppress(OSError):
            # A caller that hangs must not block the others.
            caller.settimeout(PATIENCE)
            with caller.makefile("rb") as whole:
                told = whole.read(LONGEST)
            # Arguments are separated by zero bytes: without one at the end the call was cut short.
            if told.endswith(b"\0"):
                yield caller, [os.fsdecode(part) for part in told[:-1].split(b"\0")]


def forked(folder: Path, wanted: Callable[[], bool]) -> list[str] | None:
    """The arguments of a call, in a child that is to do it; None in this process, when it is no longer wanted.

    Raises:
        OSError: there can be no socket in the folder.
    """
    with opened(folder) as door:
        for caller, arguments in calls(door, wanted):
            with suppress(OSError):  # no memory for a child, or the caller has gone
                # A child has the forking thread alone. Nothing but imports runs in this process, so no other one is at
                # work.
                if os.fork() == 0:
                    return arguments
                # Only now: where the fork failed the caller gets no answer, and runs Flower's own program.
                caller.sendall(DONE)
    return None


def main() -> None:
    """Load, wait and fork."""
    # When the SuperNode ends, this process gets another parent; it then ends too.
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the SuperNode, and this process follows it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel then removes children that have ended
    run = program()
    try:
        arguments = forked(Path(sys.argv[1]), lambda: os.getppid() == parent)
    except OSError as error:
        sys.exit(f"drfl: no socket in {sys.argv[1]} ({error.strerror}): every request will load PyTorch again")
    if arguments is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Else the child could not learn how a process of its own has ended.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sys.argv = [PROGRAM, *arguments]
        run()


if __name__ == "__main__":
    main()
