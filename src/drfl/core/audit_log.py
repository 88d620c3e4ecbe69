"""Append-only audit logs of a server and its sites. A changed, added or removed line is detectable."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from drfl.core.audit_signatures import SigningKey, fingerprint, is_signed
from drfl.core.errors import DrflError
from drfl.core.files import read_bytes

FORMAT = 1
"""Version of the record format. drfl neither continues nor compares logs of another version."""

BLOCK = 2**16
"""Bytes per read when a log is read backwards from its end."""

FIRST = "0" * 64
"""Digest of the previous line in the first line, which has none."""

SIGNATURE = b', "signature": "'
"""Text before the signature in a signed line. The digest of a line covers the record without the signature."""

CLOCK = "clock"
"""Field of a line with the time of the clock, if that was before the time of the previous line."""

Value = str | int | bool | None | list[str]
Record = dict[str, Value]
Role = Literal["server", "site"]

_HEAD = re.compile(r"([1-9][0-9]{0,14}) ([0-9a-f]{64}) (-|[0-9a-f]{16}) (-|[0-9a-f]{64,300})")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")

_ALWAYS = {"n", "at", "event", "by", "previous"}
_REPLY = {"site", "request", "digest", "head"}
_BOTH: dict[str, set[str]] = {"opened": {"format", "role", "name", "key"}, "key": {"key"}}
EVENTS: dict[Role, dict[str, set[str]]] = {
    "site": {
        **_BOTH,
        "identified": {"site", "run", "digest", "server"},
        "asked": {"site", "run", "what", "digest", "server"},
        "sent": {"site", "run", "what", "digest", "request"},
        "refused": {"site", "run", "what", "request", "reason"},
        "closed": {"site", "run", "server"},
    },
    "server": {
        **_BOTH,
        "started": {"run", "sites"},
        "joined": {"site", "name", "rows", "classes", "data", "digest", "head"},
        "asked": {"site", "what", "stream", "digest"},
        "received": _REPLY,
        "lacking": _REPLY,
        "unusable": {*_REPLY, "reason"},
        "failed": {"site", "request", "reason"},
        "silent": {"site", "request", "reason"},
        "lost": {"site", "request", "reason"},
        "rejected": {"site", "round", "what", "reason"},
        "used": {"round", "what", "stream", "sites"},
        "closing": {"run", "outcome"},
        "parted": {"site", "head"},
        "finished": {"run", "outcome"},
    },
}
"""Events by the role of the log's owner, with the fields of each beyond those that every line has."""

_NUMBERS = {"classes", "format", "n", "request", "round", "rows"}
_HEADS = {"head", "server"}
_LISTS = {"sites"}
_OPTIONAL = {"by", "classes", "digest", "head", "key", "request", "server", "stream"}


class Head(NamedTuple):
    """The last line of a log at some time. Because lines are chained, it identifies all lines before it as well.

    Args:
        n: Number of the line.
        digest: SHA-256 of the line without its signature.
        by: Fingerprint of the key that signed the line; "" if the log is unsigned.
        signature: Signature of number and digest; "" if the log is unsigned.
    """

    n: int
    digest: str
    by: str = ""
    signature: str = ""

    def __str__(self) -> str:
        return f"{self.n} {self.digest} {self.by or '-'} {self.signature or '-'}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Parse the text that ``str`` returns.

        Raises:
            ValueError: If the text does not have that form.
        """
        match = _HEAD.fullmatch(text)
        if match is None:
            raise ValueError("it is not the head of an audit log")
        n, digest, by, signature = match.groups()
        return cls(int(n), digest, by.strip("-"), signature.strip("-"))

    def is_signed_by(self, public: str) -> bool:
        """Return whether the owner of a public key signed this head."""
        # The signature does not cover ``by``.
        return self.by == fingerprint(public) and is_signed(_signed(self.n, self.digest), self.signature, public)


@dataclass(frozen=True)
class AuditLog:
    """A file of JSON lines, each with its number, the time, the event and the SHA-256 of the previous line.

    The first line contains the format, the owner and its public key. Several processes may write to the file. A line is
    on the disk before :meth:`add` returns.

    The owner could rewrite the whole log. Copies of its heads reveal that: every message between a server and its sites
    carries the head of the sender's log, and the recipient records it.

    Args:
        path: The file; the first record creates it.
        role: Role of the owner.
        name: Name of the owner.
        key: Key that signs every line; None = the log is unsigned.
        previous_key: Key that has signed the log so far. It signs the record that introduces ``key``.
    """

    path: Path
    role: Role
    name: str
    key: SigningKey | None = None
    previous_key: SigningKey | None = None

    def add(self, event: str, **fields: Value) -> Head:
        """Append a record.

        Args:
            event: One of :data:`EVENTS`.
            fields: Fields of the event.

        Returns:
            The new head of the log, which is this record.

        Raises:
            DrflError: If the file cannot be written to, or is not this owner's log.
        """
        # An unknown field must fail here. Once written, it would make the log fail its audit.
        always: Record = dict.fromkeys(_ALWAYS - {"n", "by"}, "")
        problem = wrong_field(self.role, {**always, **fields, "n": 1, "by": None, "event": event})
        if problem:
            raise self._error(f"cannot write '{event}' to the audit log {self.path}: {problem}")
        try:
            with self.path.open("a+b") as file:
                # Several processes may write to one log, because each request to a site has a separate process.
                fcntl.flock(file, fcntl.LOCK_EX)
                size = file.seek(0, os.SEEK_END)
                last = next(_lines_from_the_end(file, unfinished := []), None)
                # A process killed while writing may have left part of a line.
                if unfinished and unfinished[0]:
                    file.truncate(size - len(unfinished[0]))
                if last is None:
                    public = None if self.key is None else self.key.public
                    header: Record = {"format": FORMAT, "role": self.role, "name": self.name, "key": public}
                    head, time = self._write(file, None, "", "opened", header, self.key), _now()
                else:
                    head, time = self._continue(file, last)
                head = self._write(file, head, time, event, fields, self.key)
                # The record must be on the disk before the message is sent: a crash must not leave a message without
                # its record.
                file.flush()
                os.fsync(file.fileno())
                return head
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, DrflError):
                raise
            raise self._error(
                f"cannot write to the audit log {self.path} ({error}). Check that the file is complete."
            ) from None

    def head(self) -> Head | None:
        """Read the current head of the log; None if the log has no line.

        Raises:
            DrflError: If the log cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                last = next(_lines_from_the_end(file), None)
            return None if last is None else _parsed(last)[1]
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from None

    def since(self, time: str) -> Iterator[Record]:
        """Yield the records since a time, latest first, without checking the chain.

        Only the necessary part of the file is read.

        Args:
            time: ISO text in UTC, such as "2026-11-24".

        Raises:
            DrflError: If the log cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                for line in _lines_from_the_end(file):
                    # The chain is not verified here, because callers only count records; `read` verifies it.
                    record: Record = json.loads(line)
                    if str(record["at"]) < time:
                        return
                    yield record
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._unreadable(error) from None

    def _continue(self, file: BinaryIO, last: bytes) -> tuple[Head, str]:
        """Check that the log belongs to this owner; return its head and the time of its last record."""
        file.seek(0)
        first, _ = _parsed(file.readline().removesuffix(b"\n"))
        if first.get("event") != "opened" or first.get("format") != FORMAT:
            raise self._error(
                f"the audit log {self.path} does not have format {FORMAT}. Move it away to begin a new one.",
                "log-format",
            )
        if (first.get("role"), first.get("name")) != (self.role, self.name):
            raise self._error(
                f"the audit log {self.path} belongs to the {first.get('role')} '{first.get('name')}', not "
                f"to the {self.role} '{self.name}'. Use a separate file for each.",
                "log-of-another",
            )
        # The number and digest of the last line are enough to continue, so the lines between are not read.
        record, head = _parsed(last)
        time, by = str(record["at"]), "" if self.key is None else fingerprint(self.key.public)
        if bool(head.by) != bool(by):
            raise self._error(
                f"the audit log {self.path} has {'' if head.by else 'not '}been signed so far. "
                + ("Set 'key' to the key that signs it." if head.by else "Move it away to begin a new, signed log."),
                "log-unsigned" if by else "log-signed",
            )
        # Without this check, the key would vouch for a line that another party added.
        if self.key is not None and head.by == by and not head.is_signed_by(self.key.public):
            raise self._error(f"the last line of the audit log {self.path} was changed: its signature is wrong")
        if self.key is not None and head.by != by:
            # The old key vouches for the new one if it is available; otherwise the new key signs its own introduction.
            previous = self.previous_key
            signer = previous if previous is not None and fingerprint(previous.public) == head.by else self.key
            head = self._write(file, head, time, "key", {"key": self.key.public}, signer)
        return head, time

    def _write(
        self, file: BinaryIO, head: Head | None, time: str, event: str, fields: Mapping[str, Value],
        key: SigningKey | None,
    ) -> Head:  # fmt: skip
        """Write the record that follows a head, with a time no earlier than ``time``."""
        n, previous = (1, FIRST) if head is None else (head.n + 1, head.digest)
        by = None if key is None else fingerprint(key.public)
        # Times must not decrease even if the clock was set back, because decreasing times are a sign of forgery.
        now = _now()
        clock = {CLOCK: now} if now < time else {}
        record = {"n": n, "at": max(now, time), **clock, "event": event, **fields, "by": by, "previous": previous}
        line = _body(record)
        digest, signature = _digest(line), ""
        if key is not None:
            signature = key.sign(_signed(n, digest))
            line = line[:-1] + SIGNATURE + signature.encode() + b'"}'
        file.write(line + b"\n")
        return Head(n, digest, by or "", signature)

    def _unreadable(self, error: Exception) -> DrflError:
        return self._error(f"cannot read the audit log {self.path} ({error}). Check that the file is complete.")

    def _error(self, text: str, code: str = "audit-log") -> DrflError:
        return DrflError(text, code=code, field=str(self.path))


class BrokenLogError(DrflError):
    """The file is not an audit log, or its chain of lines is broken."""

    code = "broken-chain"


class LogContent(NamedTuple):
    """A log with an intact chain of lines.

    Args:
        path: File of the log.
        records: The records in order; the first is "opened".
        heads: The head of the log after each record.
    """

    path: Path
    records: list[Record]
    heads: list[Head]

    @property
    def role(self) -> Role:
        """Role of the owner."""
        return "server" if self.records[0]["role"] == "server" else "site"

    @property
    def name(self) -> str:
        """Name of the owner, from the first line."""
        return str(self.records[0]["name"])


def read(path: Path) -> LogContent:
    """Read a log and check its chain, ignoring an incomplete last line.

    Raises:
        InputError: If the file cannot be read.
        BrokenLogError: If the log is empty, is not of this format, or has a line that does not follow from the previous
            one.
    """
    text = read_bytes(path, limit=None)
    records: list[Record] = []
    heads: list[Head] = []
    # Text after the last newline is a line that a killed process did not finish.
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        try:
            record, head = _parsed(line)
        except (ValueError, RecursionError) as error:
            raise _broken(path, number, f"it is not a record ({error})") from None
        if number == 1 and (record["event"], record.get("format")) != ("opened", FORMAT):
            raise _broken(path, number, f"it does not begin an audit log of format {FORMAT}", "log-format")
        if number == 1 and record.get("role") not in EVENTS:
            raise _broken(path, number, "it begins neither a server's log nor a site's", "bad-record")
        if record["n"] != number or record["previous"] != (heads[-1].digest if heads else FIRST):
            raise _broken(
                path,
                number,
                "it does not follow from the previous line. One of the two was changed, or a line between "
                "them was removed.",
            )
        records.append(record)
        heads.append(head)
    if not records:
        raise BrokenLogError(f"'{path}' is empty", code="empty-log", field=str(path))
    return LogContent(path, records, heads)


def clock_of(record: Record) -> Value:
    """Return the time of the owner's clock when it wrote a record; ``at`` may be later, see :data:`CLOCK`."""
    return record.get(CLOCK, record.get("at"))


def wrong_field(role: Role, record: Mapping[str, object]) -> str:
    """Describe the first missing, unexpected or invalid field of a record; "" if the record is valid."""
    event = str(record.get("event"))
    if event not in EVENTS[role]:
        return f"a {role} does not write the event '{event}'"
    expected, names = EVENTS[role][event] | _ALWAYS, record.keys() - {"signature", CLOCK}
    # drfl writes exactly these fields, so an additional one means that the line was changed.
    if expected != names:
        missing = ", ".join(sorted(expected - names))
        return f"it lacks {missing}" if missing else f"unexpected field {', '.join(sorted(names - expected))}"
    for name, value in record.items():
        if value is None and name in _OPTIONAL:
            continue
        if name in _NUMBERS:
            is_valid = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        elif name in _LISTS:
            is_valid = isinstance(value, list) and all(isinstance(item, str) for item in value)
        else:
            is_valid = isinstance(value, str) and (name not in _HEADS or _HEAD.fullmatch(value) is not None)
        if not is_valid:
            return f"{name} cannot be {value!r:.80}"
    return ""


def _broken(path: Path, line: int, reason: str, code: str = "broken-chain") -> BrokenLogError:
    return BrokenLogError(f"'{path}', line {line}: {reason}", code=code, field=str(path))


def _parsed(line: bytes) -> tuple[Record, Head]:
    """Parse a line into its record and the head of the log at that line.

    Raises:
        ValueError: If the line does not have the exact form in which this module writes records.
    """
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError("it is not a JSON object")
    n, by, signature = record.get("n"), record.get("by"), record.get("signature", "")
    # JSON readers that use floats do not represent longer integers exactly.
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n < 10**15:
        raise ValueError("it has no number")
    for time in (record.get("at"), clock_of(record)):
        if not isinstance(time, str) or not _TIME.fullmatch(time):
            raise ValueError("it has no time")
        # The pattern alone would accept 31 February; fromisoformat raises ValueError.
        datetime.fromisoformat(time)
    if not isinstance(record.get("event"), str) or not isinstance(record.get("previous"), str):
        raise ValueError("it has no event, or no digest of the previous line")
    if not isinstance(by, str | None) or not isinstance(signature, str):
        raise ValueError("its signature is not a string")
    plain = {name: value for name, value in record.items() if name != "signature"}
    body = _body(plain)
    # A line has exactly one valid form. Otherwise two readers could see different records in it, for example if a name
    # appears twice.
    if line != (body[:-1] + SIGNATURE + signature.encode() + b'"}' if "signature" in record else body):
        raise ValueError("its format is not that of a line that drfl writes")
    head = Head(n, _digest(body), by or "", signature)
    if _HEAD.fullmatch(str(head)) is None:
        raise ValueError("its signature has the wrong form")
    return record, head


def _body(record: Mapping[str, object]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode()


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _signed(n: int, digest: str) -> bytes:
    # The purpose is part of the signed text, because the same key also authenticates the node to the SuperLink.
    return f"drfl audit log {FORMAT}, line {n}, {digest}".encode()


def _lines_from_the_end(file: BinaryIO, unfinished: list[bytes] | None = None) -> Iterator[bytes]:
    """Yield the complete lines of a file, last first; append an unterminated last line to ``unfinished``."""
    end, rest, is_last = file.seek(0, os.SEEK_END), b"", True
    # Read blocks backwards from the end: a log grows for years, and every message needs its last line.
    while end > 0:
        start = max(0, end - BLOCK)
        file.seek(start)
        *whole, tail = (file.read(end - start) + rest).split(b"\n")[::-1]
        end, rest = start, tail
        for line in whole:
            if is_last:
                is_last = False
                if unfinished is not None:
                    unfinished.append(line)
            else:
                yield line
    if rest and not is_last:
        yield rest
    elif is_last and unfinished is not None:
        unfinished.append(rest)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
