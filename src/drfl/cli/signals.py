"""Handling of SIGINT (Ctrl-C) and SIGTERM: exit code 130 or 143, one line, no traceback, and no lost results.

The command imports this module before all others; before that, a signal ends Python in its default way. Import only
modules that load quickly here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Signalled(KeyboardInterrupt):
    """One of the signals as an exception. Outside these handlers Ctrl-C raises a plain KeyboardInterrupt."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def code_of(error: KeyboardInterrupt) -> int:
    """Return the exit code of a command that ends with this exception."""
    return 128 + (error.number if isinstance(error, Signalled) else signal.SIGINT)


def end_at_once() -> CallOnSignal:
    """Let a signal end the process at once within this context: for parsing and imports, which need no clean-up.

    An exception is not enough. If it is raised while torch is imported, a destructor or a module that catches all
    exceptions may swallow it, and the command would continue with a half-loaded torch.
    """

    def leave(number: int) -> None:
        os.write(2, b"drfl: interrupted\n")
        os._exit(128 + number)  # skip Python's shutdown, which would wait for threads of a half-loaded torch

    return CallOnSignal(leave)


@contextmanager
def raise_on_signal() -> Iterator[None]:
    """Let a signal raise :class:`Signalled` within this context, so that files are cleaned up.

    Raises:
        StoppedError: If a signal arrives. (typer would turn a KeyboardInterrupt into an exit without a message.)
    """
    try:
        with CallOnSignal(raise_signal):
            yield
    except KeyboardInterrupt as error:
        from drfl.core.errors import StoppedError

        raise StoppedError(exit_code=code_of(error)) from None


def ignore() -> None:
    """Ignore signals until the process ends, so that its exit code is that of the finished work.

    On exit Python resets other handlers to the system's, but leaves ignored signals ignored.
    """
    for number in NUMBERS:
        if isinstance(signal.getsignal(number), CallOnSignal):
            signal.signal(number, signal.SIG_IGN)


def raise_signal(number: int) -> None:
    """Raise a signal as an exception.

    Raises:
        Signalled: Always.
    """
    raise Signalled(number)


class CallOnSignal:
    """A context in which the signals call a function.

    A signal that is ignored, as under nohup, or that the calling program handles, stays so. Only the main thread can
    set handlers.
    """

    def __init__(self, act: Callable[[int], None]) -> None:
        self._act = act
        self._before: dict[int, object] = {}

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self._act(number)

    def set(self) -> None:
        """Set the handlers, permanently unless the context is left."""
        for number in NUMBERS:
            current = signal.getsignal(number)
            if current in (signal.SIG_DFL, signal.default_int_handler) or isinstance(current, CallOnSignal):
                try:
                    self._before[number] = signal.signal(number, self)
                except ValueError:  # not the main thread
                    return

    def __enter__(self) -> None:
        """Set the handlers."""
        self.set()

    def __exit__(self, *error: object) -> None:
        """Restore the handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType] - from getsignal
        self._before.clear()
