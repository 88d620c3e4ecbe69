"""What a check found out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from drfl.errors import DrflError


class Verdict(NamedTuple):
    """One thing that was looked at.

    Args:
        subject: what it is.
        ok: whether it is as it must be.
        text: what was found; for a problem also the remedy, after a semicolon.
    """

    subject: str
    ok: bool
    text: str


def ok(subject: str, text: str) -> Verdict:
    """All is well."""
    return Verdict(subject, True, text)


def bad(subject: str, text: str) -> Verdict:
    """Something is wrong; the text names the remedy."""
    return Verdict(subject, False, text)


def guarded(subject: str, look: Callable[[], Iterable[Verdict]]) -> Iterator[Verdict]:
    """The verdicts of a check; an error that it raises on purpose becomes one."""
    try:
        yield from look()
    except DrflError as error:
        yield bad(subject, str(error))
