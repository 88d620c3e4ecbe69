"""The errors that drfl raises on purpose: each is one line that names the thing and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DrflError(Exception):
    """Base of every error that drfl raises on purpose. The command prints it as one line, without a traceback.

    Args:
        message: the line. It often quotes what the user gave: what a terminal would not print becomes a space.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__("".join(c if c.isprintable() else " " for c in str(message)))


class InputError(DrflError, ValueError):
    """Something the user gave is unknown, impossible or missing. The command exits with code 2."""


class NonFiniteError(DrflError, ValueError):
    """A vector that must be finite holds NaN or infinity."""


class StoppedError(DrflError):
    """The user stopped before there was anything to keep. The command exits with code 130."""


class DivergedError(DrflError, ArithmeticError):
    """Training left the finite numbers. The command exits with code 1."""


class DataWarning(UserWarning):
    """The clients' data leave it uncertain who the worst client is; see :func:`drfl.data.checks.data_warnings`."""


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An error for a name that is not in a list, with the nearest name that is.

    Args:
        kind: what the name stands for, e.g. ``"algorithm"``.
        name: what the user wrote.
        known: the names that exist.
    """
    names = list(known)
    by_lower = {known_name.lower(): known_name for known_name in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    hint = f"did you mean '{by_lower[near[0]]}'? " if near else ""
    return InputError(f"unknown {kind} '{name}': {hint}known are {', '.join(names)}")
