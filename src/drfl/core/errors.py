"""The errors and warnings that drfl raises on purpose: one line that states the problem and the remedy.

Each carries a ``code``, which names the kind of problem, and a ``field``, the option, column or file that it concerns.
Programs and tests go by these: the wording may change.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def printable(text: object, limit: int = 10_000) -> str:
    """One line: the text with a space for every character that a terminal would obey, and cut if it is very long.

    These are control characters with ESC and newlines among them, those that change the direction of writing or have
    no width, and lone surrogates.

    Args:
        text: anything; its string is taken.
        limit: the most characters.
    """
    # Control characters could move the cursor or recolour a terminal, and a newline could fake a line of a log.
    line = "".join(c if c.isprintable() else " " for c in str(text))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def first_line(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


class DrflError(Exception):
    """Base of every error that drfl raises on purpose. The command prints it as one line, without a traceback.

    Args:
        message: The line. It often quotes what the user gave, so unprintable characters become spaces.
        code: The kind of problem in lower case with hyphens, such as "out-of-range".
        field: The option, key, column or file that the problem is about; None if there is no single one.
    """

    code = "error"
    field: str | None = None

    def __init__(self, message: object = "", *, code: str | None = None, field: str | None = None) -> None:
        super().__init__(printable(message))
        if code is not None:
            self.code = code
        if field is not None:
            self.field = printable(field)


class InputError(DrflError, ValueError):
    """Something the user gave is unknown, impossible or missing. The command exits with code 2."""

    code = "input"


class NonFiniteError(DrflError, ValueError):
    """A vector that must be finite holds NaN or infinity."""

    code = "not-finite"


class StoppedError(DrflError):
    """The user stopped the command. It exits with code 130 after Ctrl-C and 143 after SIGTERM.

    Args:
        message: The line.
        exit_code: Of the command.
    """

    code = "interrupted"

    def __init__(self, message: object = "interrupted", exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class DivergedError(DrflError, ArithmeticError):
    """Training left the finite numbers. The command exits with code 1."""

    code = "diverged"


class Notice(str):
    """A sentence for the user that carries a code and a field, as an error does.

    Args:
        text: The sentence.
        code: The kind of notice in lower case with hyphens, such as "few-test-rows".
        field: The column, option or file that it is about; None if there is no single one.
    """

    code: str
    field: str | None

    def __new__(cls, text: str, code: str = "notice", field: str | None = None) -> Notice:
        """A str with two attributes."""
        notice = super().__new__(cls, text)
        notice.code, notice.field = code, field
        return notice

    def within(self, place: str) -> Notice:
        """The same notice, with the place that it comes from in front: "FedAvg-seed0: …"."""
        return Notice(f"{place}: {self}", self.code, self.field)


class DrflWarning(UserWarning):
    """Base of the warnings that drfl gives in Python.

    Args:
        notice: The sentence; its code and field become those of the warning.
    """

    code = "warning"

    def __init__(self, notice: str) -> None:
        super().__init__(printable(notice))
        self.code = notice.code if isinstance(notice, Notice) else type(self).code
        self.field = notice.field if isinstance(notice, Notice) else None


class DataWarning(DrflWarning):
    """The clients' data leave it uncertain who the worst client is; see :func:`drfl.data.checks.data_warnings`."""

    code = "data"


class RunWarning(DrflWarning):
    """A run did not reach its end, or fewer than half of its rounds count."""

    code = "interrupted"


SHOWN = 3
"""How many names a message lists; it counts the rest."""


def listed(texts: Sequence[str], what: str) -> str:
    """The first of them, and how many more: "A, B, C and 7 more clients"."""
    rest = len(texts) - SHOWN
    return ", ".join(texts[:SHOWN]) + (f" and {rest} more {what}{'s' * (rest > 1)}" if rest > 0 else "")


def unknown(kind: str, name: str, known: Iterable[str], field: str | None = None) -> InputError:
    """An error for a name that is not in a list, with the nearest name that is.

    Args:
        kind: what the name stands for, e.g. ``"algorithm"``.
        name: what the user wrote.
        known: the names that exist.
        field: the option or key that has the name; None = the kind.
    """
    names = list(known)
    # Case is ignored, so that 'drdm' finds 'DRDM'.
    by_lower = {known_name.lower(): known_name for known_name in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    hint = f"did you mean '{by_lower[near[0]]}'? " if near else ""
    message = f"unknown {kind} '{name}': {hint}known are {', '.join(names)}"
    return InputError(message, code="unknown-name", field=kind if field is None else field)
