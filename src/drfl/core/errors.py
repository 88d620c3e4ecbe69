"""Errors and warnings of drfl. Each message is one line that states the problem and the remedy.

Each error or warning has a ``code``, which identifies the kind of problem, and a ``field``, which is the option, column
or file concerned. Programs and tests should rely on these, because the wording may change.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from drfl.core.unicode_form import difference, is_printed_alike


def printable(text: object, limit: int = 10_000) -> str:
    """Convert a text to one printable line: replace unprintable characters by spaces and truncate long text.

    Unprintable are control characters (such as ESC and newline), characters that change the direction of writing or
    have no width, and lone surrogates.

    Args:
        text: Any object; it is converted with ``str``.
        limit: Maximum number of characters.
    """
    # Control characters could move the cursor or recolour a terminal, and a newline could fake a log line.
    line = "".join(c if c.isprintable() else " " for c in str(text))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def first_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # A long line ends after a whole word.
    text = lines[0] if len(lines[0]) <= 200 else f"{lines[0][:200].rpartition(' ')[0] or lines[0][:200]} …"
    return f"{type(error).__name__}: {text}"


class DrflError(Exception):
    """Base class of drfl's errors. The command prints the message as one line, without a traceback.

    Args:
        message: One line of text. It often quotes user input, so unprintable characters become spaces.
        code: Kind of problem in lower case with hyphens, such as "out-of-range".
        field: Option, key, column or file that the problem concerns; None if it concerns several or none.
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
    """An input is unknown, invalid or missing. The command exits with code 2."""

    code = "input"


class NonFiniteError(DrflError, ValueError):
    """A vector that must be finite holds NaN or infinity."""

    code = "not-finite"


class StoppedError(DrflError):
    """The user stopped the command. It exits with code 130 after Ctrl-C and 143 after SIGTERM.

    Args:
        message: One line of text.
        exit_code: Exit code of the command.
    """

    code = "interrupted"

    def __init__(self, message: object = "interrupted", exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class DivergedError(DrflError, ArithmeticError):
    """Training produced NaN or infinite values. The command exits with code 1."""

    code = "diverged"


class Notice(str):
    """A message for the user with a code and a field, like those of errors.

    Args:
        text: The message.
        code: Kind of notice in lower case with hyphens, such as "few-test-rows".
        field: Column, option or file that the notice concerns; None if it concerns several or none.
    """

    code: str
    field: str | None

    def __new__(cls, text: str, code: str = "notice", field: str | None = None) -> Notice:
        """Create a str with two attributes."""
        notice = super().__new__(cls, text)
        notice.code, notice.field = code, field
        return notice

    def within(self, place: str) -> Notice:
        """Return the same notice, prefixed with its origin: "FedAvg-seed0: …"."""
        return Notice(f"{place}: {self}", self.code, self.field)


class DrflWarning(UserWarning):
    """Base class of drfl's Python warnings.

    Args:
        notice: The message; its code and field become those of the warning.
    """

    code = "warning"

    def __init__(self, notice: str) -> None:
        super().__init__(printable(notice))
        self.code = notice.code if isinstance(notice, Notice) else type(self).code
        self.field = notice.field if isinstance(notice, Notice) else None


class DataWarning(DrflWarning):
    """The data do not determine the worst client reliably; see :func:`drfl.data.checks.data_warnings`."""

    code = "data"


class RunWarning(DrflWarning):
    """A run did not finish, its model was reset late or is an earlier one, or its loss ended above the start."""

    code = "interrupted"


MAX_LISTED = 3
"""Number of names that a message lists before it only counts the rest."""


_is_complete: ContextVar[bool] = ContextVar("is_complete", default=False)


@contextmanager
def complete_listings() -> Iterator[None]:
    """Let :func:`listing` list all texts in the block, for commands that show all problems of the data at once."""
    token = _is_complete.set(True)
    try:
        yield
    finally:
        _is_complete.reset(token)


def lists_all() -> bool:
    """Return whether this is a block of :func:`complete_listings`."""
    return _is_complete.get()


def listing(texts: Sequence[str], what: str, limit: int | None = None) -> str:
    """List the first texts and count the rest: "A, B, C and 7 more clients".

    Without a limit, the first three are listed, and all in :func:`complete_listings`.
    """
    limit = limit or (len(texts) if _is_complete.get() else MAX_LISTED)
    rest, plural = len(texts) - limit, "es" if what.endswith("s") else "s"
    return ", ".join(texts[:limit]) + (f" and {rest} more {what}{plural * (rest > 1)}" if rest > 0 else "")


def suggestion(name: str, known: Iterable[str]) -> str:
    """Ask whether the nearest known name was meant; empty if none is near."""
    known = list(known)
    alike = [known_name for known_name in known if is_printed_alike(name, known_name)]
    if alike:
        return f"It differs from '{alike[0]}' only in {difference(name, alike[0])}."
    # Case is ignored, so that 'drdm' finds 'DRDM'.
    by_lower = {known_name.lower(): known_name for known_name in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f"Did you mean '{by_lower[near[0]]}'?" if near else ""


MOST_NAMES = 50
"""Known names that an error lists; a run may have thousands of clients."""

WRITTEN_BY_USERS = ("algorithm", "method or algorithm", "model", "loss", "metric", "ambiguity set")
"""The kinds of objects that a user can name as ``FILE.py:NAME``."""


def unknown(
    kind: str,
    name: object,
    known: Iterable[str],
    field: str | None = None,
    *,
    place: str = "",
    synonyms: Mapping[str, str] | None = None,
) -> InputError:
    """Create an error for an unknown name that suggests the nearest known one.

    Args:
        kind: Kind of object that the name refers to, such as ``"algorithm"``.
        name: The unknown name, or an object of another type that a user gave in place of one.
        known: The known names.
        field: Option or key that contains the name; None = the kind.
        place: Where the name was looked up, such as ``"in a.csv"``.
        synonyms: Names in lower case that people use elsewhere → the known name.
    """
    names = list(known)
    hint, shown = (suggestion(name, names), f"'{name}'") if isinstance(name, str) else ("", f"{name!r:.60}")
    if synonyms and str(name).lower() in synonyms:
        hint = f"Did you mean '{synonyms[str(name).lower()]}'?"
    what = f"unknown {kind} {shown}{' ' if place else ''}{place}"
    message = f"{what}. {hint}{' ' if hint else ''}Choose from {listing(names, 'name', MOST_NAMES)}"
    if kind in WRITTEN_BY_USERS and isinstance(name, str) and name.endswith(".py"):
        message = f"{what}. To use an object in this file, write {name}:NAME"
    return InputError(message, code="unknown-name", field=kind if field is None else field)
