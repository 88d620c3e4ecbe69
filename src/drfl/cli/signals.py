"""Ctrl-C and SIGTERM where no run is under way: a line, exit code 130 or 143, and no traceback."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from drfl.errors import StoppedError

INTERRUPTED = 130
"""The exit code after Ctrl-C."""


@contextmanager
def at_once() -> Iterator[None]:
    """Within it Ctrl-C ends the process where it stands. For parsing and imports, which leave nothing to tidy up.

    A KeyboardInterrupt would not do: what is raised while torch is imported is lost now and then, in a destructor or a
    module that goes without what it could not import, and the command would go on with half a torch.
    """
    # Whoever has a handler of their own, or ignores the signal as nohup does, keeps it; threads cannot set one.
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if default and threading.current_thread() is threading.main_thread():
        with _handled(_leave):
            yield
    else:
        yield


@contextmanager
def as_stopped() -> Iterator[None]:
    """Within it, and within :func:`at_once`, Ctrl-C is a KeyboardInterrupt again, so that files are tidied up.

    Raises:
        StoppedError: the user pressed Ctrl-C. (typer would make of the KeyboardInterrupt an exit without a word.)
    """
    try:
        if signal.getsignal(signal.SIGINT) is _leave and threading.current_thread() is threading.main_thread():
            with _handled(signal.default_int_handler):
                yield
        else:
            yield
    except KeyboardInterrupt:
        raise StoppedError("interrupted") from None


@contextmanager
def tidied() -> Iterator[None]:
    """Within it SIGTERM ends the process with exit code 143, and not before what it started is ended too."""
    if threading.current_thread() is threading.main_thread():
        with _handled(lambda signum, frame: sys.exit(128 + signum), signal.SIGTERM):
            yield
    else:
        yield


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], object], which: int = signal.SIGINT) -> Iterator[None]:
    before = signal.signal(which, handler)
    try:
        yield
    finally:
        signal.signal(which, before)


def _leave(signum: int, frame: FrameType | None) -> None:
    os.write(2, b"drfl: interrupted\n")
    os._exit(INTERRUPTED)
