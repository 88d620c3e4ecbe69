"""The results of conformance checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from torch import Tensor

from drfl.core.errors import DrflError, unknown


class CheckError(AssertionError):
    """A failed check; the message is a sentence about the failure."""


class NotApplicable(Exception):  # noqa: N818 - nothing went wrong
    """A check does not apply to this subject; the message gives the reason."""


class Note(NamedTuple):
    """A remark of one check.

    Args:
        check: Name of the check.
        sentence: The failure, or why the check does not apply.
    """

    check: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.check}: {self.sentence}"


class Report(NamedTuple):
    """The outcome of all checks.

    Args:
        subject: The subject of the checks.
        passed: Names of the checks that it passes.
        not_applicable: Checks that do not apply, with the reason.
        waived: Checks that were skipped at the author's request, with the reason.
        failed: Checks that it fails, with a sentence each.
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

    def raise_failures(self) -> Report:
        """Return the report; raise a :class:`ConformanceError` if a check failed."""
        if self.failed:
            raise ConformanceError(self)
        return self


class ConformanceError(AssertionError):
    """A subject fails some checks; the message lists every failed check, and ``report`` contains everything.

    Args:
        report: The outcome.
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


def brief(v: Tensor) -> str:
    """Format a vector for a sentence, with three digits per entry."""
    return "(" + ", ".join(f"{value:.3g}" for value in v.tolist()) + ")"


def verdict(check: Callable[[T], None], subject: T) -> CheckError | NotApplicable | None:
    """Run one check; return None if the subject passes. Any exception that the subject raises is a failure."""
    try:
        check(subject)
    except (CheckError, NotApplicable) as outcome:
        return outcome
    except (DrflError, Exception) as error:
        return CheckError(f"raised {type(error).__name__}: {str(error).strip() or 'no message'}")
    return None


def examine(
    name: str, subject: T, checks: Iterable[Callable[[T], None]], waive: Mapping[str, str] | None = None
) -> Report:
    """Run all checks, even if some of them fail.

    Raises:
        InputError: If a waived check does not exist.
    """
    checks, waive = tuple(checks), dict(waive or {})
    names = [check.__name__ for check in checks]
    for waived in waive:
        if waived not in names:
            raise unknown("check", waived, names)
    outcomes = {check.__name__: verdict(check, subject) for check in checks if check.__name__ not in waive}
    return Report(
        name,
        tuple(check for check, outcome in outcomes.items() if outcome is None),
        tuple(Note(check, str(outcome)) for check, outcome in outcomes.items() if isinstance(outcome, NotApplicable)),
        tuple(Note(check, reason) for check, reason in waive.items()),
        tuple(Note(check, str(outcome)) for check, outcome in outcomes.items() if isinstance(outcome, CheckError)),
    )
