"""The findings of an audit, each with a code, the file and the line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal, NamedTuple

from drfl.core.audit_log import Head, LogContent
from drfl.core.errors import Notice

MOST_PER_CODE = 5
"""Number of findings with the same code that are printed for one log."""


class Finding(NamedTuple):
    """A finding of an audit.

    Args:
        kind: "ok", "note" or "problem". An audit with a problem has failed.
        text: The text, with a code; its field is the file of the log.
    """

    kind: Literal["ok", "note", "problem"]
    text: Notice


def quote(log: LogContent) -> str:
    """Return the path of a log in quotes."""
    return f"'{log.path}'"


def make_finding(
    log: LogContent, kind: Literal["ok", "note", "problem"], text: str, code: str, n: object = None
) -> Finding:
    """Make a finding about a log, or about line ``n`` of it."""
    line = "" if n is None else f", line {n}"
    return Finding(kind, Notice(f"{quote(log)}{line}: {text}", code, str(log.path)))


def limit_findings(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Limit the findings of each code to the first ones, and count the rest: one change can affect all later lines."""
    counts: Counter[str] = Counter()
    last: dict[str, Finding] = {}
    for finding in findings:
        counts[finding.text.code] += 1
        last[finding.text.code] = finding
        if counts[finding.text.code] <= MOST_PER_CODE:
            yield finding
    for code, count in counts.items():
        if count > MOST_PER_CODE:
            text = Notice(
                f"'{last[code].text.field}': {count - MOST_PER_CODE} more findings of kind {code}",
                code,
                last[code].text.field,
            )
            yield Finding(last[code].kind, text)


def line_of(noted: object) -> int | None:
    """Return the line number of a recorded head; None if it is not a head."""
    try:
        return Head.parse(str(noted)).n
    except ValueError:
        return None
