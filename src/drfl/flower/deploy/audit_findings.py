"""What an audit says of logs: findings with a code, the file and the line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal, NamedTuple

from drfl.core.audit_log import Audited, Head
from drfl.core.errors import Notice

MOST = 5
"""Findings of one kind about one log that are told."""


class Finding(NamedTuple):
    """What the audit says.

    Args:
        kind: "ok", "note" or "problem"; with a problem the audit has failed.
        text: The sentence, with a code, and the log's file as the field.
    """

    kind: Literal["ok", "note", "problem"]
    text: Notice


def quoted(log: Audited) -> str:
    """The file of a log, in quotes."""
    return f"'{log.path}'"


def say(log: Audited, kind: Literal["ok", "note", "problem"], text: str, code: str, n: object = None) -> Finding:
    """A finding about a log, or about one of its lines."""
    line = "" if n is None else f", line {n}"
    return Finding(kind, Notice(f"{quoted(log)}{line}: {text}", code, str(log.path)))


def few(findings: Iterator[Finding]) -> Iterator[Finding]:
    """The first findings of each code, and how many more there are: one change can spoil every later line."""
    counts: Counter[str] = Counter()
    last: dict[str, Finding] = {}
    for finding in findings:
        counts[finding.text.code] += 1
        last[finding.text.code] = finding
        if counts[finding.text.code] <= MOST:
            yield finding
    for code, count in counts.items():
        if count > MOST:
            text = Notice(
                f"'{last[code].text.field}': {count - MOST} more findings of kind {code}", code, last[code].text.field
            )
            yield Finding(last[code].kind, text)


def line_of(noted: object) -> int | None:
    """The number of the line that a noted head is; None if there is no head."""
    try:
        return Head.parse(str(noted)).n
    except ValueError:
        return None
