"""What a battery of checks finds, and how it says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from drfl.core.errors import DrflError, unknown


class CheckError(AssertionError):
    """One check's finding, in a sentence."""


class NotApplicable(Exception):  # noqa: N818 - nothing went wrong
    """A check has nothing to say about this subject; the message tells why."""


class Note(NamedTuple):
    """What one check has to say.

    Args:
        check: the check's name.
        sentence: the failure, or why the check does not apply.
    """

    check: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.check}: {self.sentence}"


class Report(NamedTuple):
    """The outcome of a battery.

    Args:
        subject: what was examined.
        passed: names of the checks that it passes.
        not_applicable: checks that say nothing about it, with the reason.
        waived: checks left out at the author's word, with his reason.
        failed: checks that reject it, a sentence each.
    """

    subject: str
    passed: tuple[str, ...]
    not_applicable: tuple[Note, ...]
    waived: tuple[Note, ...] = ()
    failed: tuple[Note, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.subject}: {len(self.passed)} checks passed, {len(self.failed)} failed"]
        lines += [f"  FAILED {note}" for note in self.failed]
        lines += [f"  passed {name}" for name in self.passed]
        lines += [f"  not applicable: {note}" for note in self.not_applicable]
        lines += [f"  waived: {note}" for note in self.waived]
        return "\n".join(lines)


class ConformanceError(AssertionError):
    """A battery rejects its subject; the message lists every failed check, ``report`` holds everything.

    Args:
        report: the outcome.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        failures = "\n".join(f"  {note}" for note in report.failed)
        super().__init__(f"{report.subject} fails {len(report.failed)} checks:\n{failures}")


T = TypeVar("T")


def require(condition: bool, sentence: str) -> None:
    """Raise :class:`CheckError` unless the condition holds; unlike ``assert`` it also works under ``python -O``."""
    if not condition:
        raise CheckError(sentence)


def verdict(check: Callable[[T], None], subject: T) -> CheckError | NotApplicable | None:
    """What one check says: None where the subject passes. Any error that the subject raises is a failure."""
    try:
        check(subject)
    except (CheckError, NotApplicable) as said:
        return said
    except (DrflError, Exception) as error:
        return CheckError(f"raised {type(error).__name__}: {str(error).strip() or 'no message'}")
    return None


def examine(
    name: str, subject: T, checks: Iterable[Callable[[T], None]], waive: Mapping[str, str] | None = None
) -> Report:
    """Run all checks, whatever some of them find.

    Args:
        name: of the subject, for the report.
        subject: what the checks take.
        checks: functions that raise :class:`CheckError` or :class:`NotApplicable`.
        waive: names of checks to leave out, with the reason.

    Raises:
        InputError: a waived check does not exist.
    """
    checks, waive = tuple(checks), dict(waive or {})
    names = [check.__name__ for check in checks]
    for waived in waive:
        if waived not in names:
            raise unknown("check", waived, names)
    said = {check.__name__: verdict(check, subject) for check in checks if check.__name__ not in waive}
    return Report(
        name,
        tuple(check for check, word in said.items() if word is None),
        tuple(Note(check, str(word)) for check, word in said.items() if isinstance(word, NotApplicable)),
        tuple(Note(check, reason) for check, reason in waive.items()),
        tuple(Note(check, str(word)) for check, word in said.items() if isinstance(word, CheckError)),
    )
