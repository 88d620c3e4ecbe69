"""What SIGINT (Ctrl-C) and SIGTERM do to a command: exit code 130 or 143, one line, no traceback, nothing lost.

The command imports this module before all others, and a signal that comes earlier ends Python its own way. So import
only what is quickly loaded here.
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
    """One of the signals, raised as an exception; Ctrl-C alone is a plain KeyboardInterrupt elsewhere.

    Args:
        number: The signal's.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def code_of(error: KeyboardInterrupt) -> int:
    """The exit code of a command that ends with this."""
    return 128 + (error.number if isinstance(error, Signalled) else signal.SIGINT)


def at_once() -> _Handled:
    """Within it a signal ends the process at once. For parsing, imports and loading, which leave nothing to tidy up.

    An exception would not do: one that is raised while torch is imported is lost now and then, in a destructor or a
    module that catches everything, and the command would run on with half a torch.
    """

    def leave(number: int) -> None:
        os.write(2, b"drfl: interrupted\n")
        os._exit(128 + number)  # skip Python's shutdown: it would wait for threads of a half-loaded torch

    return _Handled(leave)


@contextmanager
def as_stopped() -> Iterator[None]:
    """Within it a signal is a :class:`Signalled`, so that files are tidied up.

    Raises:
        StoppedError: the signal came. (typer would turn a KeyboardInterrupt into an exit without a message.)
    """
    try:
        with _Handled(raised):
            yield
    except KeyboardInterrupt as error:
        from drfl.core.errors import StoppedError

        raise StoppedError(exit_code=code_of(error)) from None


def ignore() -> None:
    """Let signals do nothing from now on. For the end of the process, whose exit code is that of the finished work.

    Python sets other handlers back to the system's before it has ended, but leaves signals ignored.
    """
    for number in NUMBERS:
        if isinstance(signal.getsignal(number), _Handled):
            signal.signal(number, signal.SIG_IGN)


def deferred(act: Callable[[int], None]) -> _Handled:
    """Within it a signal calls a function with its number."""
    return _Handled(act)


def raised(number: int) -> None:
    """Raise a signal as an exception.

    Raises:
        Signalled: always.
    """
    raise Signalled(number)


class _Handled:
    """Within it the signals call a function with their number.

    A signal that is ignored, as nohup does, or has a handler of the calling program keeps that; threads cannot set one.
    """

    def __init__(self, act: Callable[[int], None]) -> None:
        self._act = act
        self._before: dict[int, object] = {}

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self._act(number)

    def set(self) -> None:
        """Set the handlers, for good if they are not set back."""
        for number in NUMBERS:
            now = signal.getsignal(number)
            if now in (signal.SIG_DFL, signal.default_int_handler) or isinstance(now, _Handled):
                try:
                    self._before[number] = signal.signal(number, self)
                except ValueError:  # not the main thread
                    return

    def __enter__(self) -> None:
        """Set the handlers."""
        self.set()

    def __exit__(self, *error: object) -> None:
        """Set the handlers back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType] - what getsignal gave
        self._before.clear()
