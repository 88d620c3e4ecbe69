"""Append-only logs of what a server and its sites did, which show it where a line was changed, added or taken out."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from drfl.errors import DrflError, InputError
from drfl.files import parse_json, read_bytes

BLOCK = 2**16
"""Bytes read at a time from a log's end."""

FIRST = "0" * 64
"""What stands for the line before the first."""

Value = str | int | float | bool | None
Record = dict[str, Value]


@dataclass(frozen=True)
class AuditLog:
    """A file of JSON lines, each with its number, the time, what happened, and the SHA-256 of the line before it.

    Several processes may write to it. A line is on the disk before :meth:`add` returns.

    Whoever can write to the file can write all of it anew: only what others hold keeps it honest, the counterpart's
    log, which has the same vectors' digests, and the digest of the last line, noted elsewhere.

    Args:
        path: of the file; it is made with its first line.
    """

    path: Path

    def add(self, event: str, **what: Value) -> None:
        """Append a line.

        Args:
            event: what happened.
            what: more about it.

        Raises:
            DrflError: the file cannot be written to.
        """
        try:
            with self.path.open("a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                last = _last_line(file)
                number = 1 if last is None else int(json.loads(last)["n"]) + 1
                before = FIRST if last is None else _digest(last)
                record = {"n": number, "at": _now(), "event": event, **what, "previous": before}
                file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DrflError(f"cannot write to the audit log {self.path} ({error}): see that it is whole") from None

    def since(self, time: str) -> Iterator[Record]:
        """The records from a time on, as ISO text in UTC such as "2026-11-24", the latest first.

        Only as much of the file is read as that takes, and its chain is not checked.
        """
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for line in _lines_from_the_end(file):
                record: Record = json.loads(line)
                if str(record["at"]) < time:
                    return
                yield record


class Audited(NamedTuple):
    """A log whose lines follow from each other.

    Args:
        records: in order.
        head: digest of the last line, which names all of them.
    """

    records: list[Record]
    head: str


def read(path: Path) -> Audited:
    """Read a log and check its chain. A last line without an end, of a process that was killed, does not count.

    Raises:
        InputError: it cannot be read, or a line does not follow from the one before; names it.
    """
    text = read_bytes(path, limit=None)
    records: list[Record] = []
    before = FIRST
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        try:
            record = cast("Record", parse_json(line, path))
            sound = isinstance(record, dict) and {"at", "event"} <= record.keys() and record["n"] == number
        except (ValueError, KeyError):
            record, sound = {}, False
        if not sound or record.get("previous") != before:
            raise InputError(
                f"'{path}', line {number}: it does not follow from the line before: this line or that one was changed, "
                "or one between them was taken out"
            )
        records.append(record)
        before = _digest(line)
    return Audited(records, before)


def disagreements(server: Sequence[Record], site: Sequence[Record], name: str) -> Iterator[str]:
    """What the server's log and that of a site say differently of the vectors that the site sent, a line each.

    Args:
        server: records of the server's log.
        site: records of the site's.
        name: of the site, as the server calls it.
    """
    received = Counter(str(r.get("digest")) for r in server if r["event"] == "received" and r.get("site") == name)
    sent = Counter(str(r.get("digest")) for r in site if r["event"] == "sent")
    for digest in received:
        if received[digest] > sent[digest]:
            yield f"{name}: the server has received {digest}, which the site has not sent"
    # Not the other way round: a reply that came too late is nowhere received.


def _last_line(file: BinaryIO) -> bytes | None:
    """The last whole line of an open file; what a killed process left of another one is cut off."""
    size = file.seek(0, os.SEEK_END)
    lines = _lines_from_the_end(file, unfinished := [])
    last = next(lines, None)
    if unfinished and unfinished[0]:
        file.truncate(size - len(unfinished[0]))
    return last


def _lines_from_the_end(file: BinaryIO, unfinished: list[bytes] | None = None) -> Iterator[bytes]:
    """The whole lines of a file, the last first; what stands behind the last end of a line goes to ``unfinished``."""
    at, rest, first = file.seek(0, os.SEEK_END), b"", True
    while at > 0:
        start = max(0, at - BLOCK)
        file.seek(start)
        *whole, tail = (file.read(at - start) + rest).split(b"\n")[::-1]
        at, rest = start, tail
        for line in whole:
            if first:
                first = False
                if unfinished is not None:
                    unfinished.append(line)
            else:
                yield line
    if rest and not first:
        yield rest
    elif first and unfinished is not None:
        unfinished.append(rest)


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
