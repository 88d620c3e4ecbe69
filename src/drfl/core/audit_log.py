"""Append-only logs of what a server and its sites did. A changed, added or removed line shows."""

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
"""Of the records; a log of another format is not continued and not compared."""

BLOCK = 2**16
"""Bytes read at a time from a log's end."""

FIRST = "0" * 64
"""The digest that the first line names as that of the line before."""

SIGNATURE = b', "signature": "'
"""What follows the signed part of a line: its digest is that of the record without the signature."""

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
"""The events of a log by the role of its owner, and the fields of each beside those that every line has."""

_NUMBERS = {"classes", "format", "n", "request", "round", "rows"}
_HEADS = {"head", "server"}
_LISTS = {"sites"}
_OPTIONAL = {"by", "classes", "digest", "head", "key", "request", "server", "stream"}


class Head(NamedTuple):
    """The last line of a log at some time: it names all lines up to it.

    Args:
        n: Number of the line.
        digest: Of the line without its signature.
        by: Fingerprint of the key that signed it; "" if the log is unsigned.
        signature: Of number and digest; "" if the log is unsigned.
    """

    n: int
    digest: str
    by: str = ""
    signature: str = ""

    def __str__(self) -> str:
        return f"{self.n} {self.digest} {self.by or '-'} {self.signature or '-'}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read the text that ``str`` gives.

        Raises:
            ValueError: It is another text.
        """
        found = _HEAD.fullmatch(text)
        if found is None:
            raise ValueError("it is not the head of an audit log")
        n, digest, by, signature = found.groups()
        return cls(int(n), digest, by.strip("-"), signature.strip("-"))

    def is_signed_by(self, public: str) -> bool:
        """Whether the owner of a public key signed this head."""
        return is_signed(_signed(self.n, self.digest), self.signature, public)


@dataclass(frozen=True)
class AuditLog:
    """A file of JSON lines. Each has its number, the time, the event, and the SHA-256 of the line before it.

    The first line names the format, the owner and its public key. Several processes may write to the file. A line is on
    the disk before :meth:`add` returns.

    The owner can rewrite all of it. The copies of its heads that others keep show that: every message between a server
    and its sites carries the head of the sender's log.

    Args:
        path: The file; the first record creates it.
        role: Whose log it is.
        name: The owner's name.
        key: Key that signs every line; None = the log is unsigned.
        previous_key: The key before, which introduces ``key`` in a log that it has signed so far.
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
            fields: Its fields.

        Returns:
            The head of the log, which this record now is.

        Raises:
            DrflError: The file cannot be written to, or is not this owner's log.
        """
        # An unknown field fails here. Once written, it would make the log fail its audit.
        always: Record = dict.fromkeys(_ALWAYS - {"n", "by"}, "")
        wrong = wrong_field(self.role, {**always, **fields, "n": 1, "by": None, "event": event})
        if wrong:
            raise self._error(f"'{event}' cannot be written to the audit log {self.path}: {wrong}")
        try:
            with self.path.open("a+b") as file:
                # Several processes may write to one log, as each request to a site has a process of its own.
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
                f"cannot write to the audit log {self.path} ({error}): check that the file is complete"
            ) from None

    def head(self) -> Head | None:
        """The head of the log as it is now; None if it has no line.

        Raises:
            DrflError: It cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                last = next(_lines_from_the_end(file), None)
            return None if last is None else _parsed(last)[1]
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise self._error(
                f"cannot read the audit log {self.path} ({error}): check that the file is complete"
            ) from None

    def since(self, time: str) -> Iterator[Record]:
        """The records from a time on, as ISO text in UTC such as "2026-11-24", the latest first.

        Only as much of the file is read as that takes, and its chain is not checked.
        """
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for line in _lines_from_the_end(file):
                # The chain is not verified here, as callers only count records; `read` verifies it.
                record: Record = json.loads(line)
                if str(record["at"]) < time:
                    return
                yield record

    def _continue(self, file: BinaryIO, last: bytes) -> tuple[Head, str]:
        """The head and the time that the next record follows, once this is known to be the owner's own log."""
        file.seek(0)
        first, _ = _parsed(file.readline().removesuffix(b"\n"))
        if first.get("event") != "opened" or first.get("format") != FORMAT:
            raise self._error(
                f"the audit log {self.path} does not have format {FORMAT}: move it away to begin a new one",
                "log-format",
            )
        if (first.get("role"), first.get("name")) != (self.role, self.name):
            raise self._error(
                f"the audit log {self.path} belongs to the {first.get('role')} '{first.get('name')}', not "
                f"to the {self.role} '{self.name}': use one file for each",
                "log-of-another",
            )
        # The last line gives the next one's number and digest, so the lines between are not read.
        record, head = _parsed(last)
        time, own = str(record["at"]), "" if self.key is None else fingerprint(self.key.public)
        if bool(head.by) != bool(own):
            raise self._error(
                f"the audit log {self.path} is {'' if head.by else 'not '}signed so far: "
                + ("set 'key' to the key that signs it" if head.by else "move it away, and a new signed one begins"),
                "log-unsigned" if own else "log-signed",
            )
        # Else this key would vouch for a line that somebody else has added.
        if self.key is not None and head.by == own and not head.is_signed_by(self.key.public):
            raise self._error(f"the last line of the audit log {self.path} was changed: its signature is wrong")
        if self.key is not None and head.by != own:
            # The old key vouches for the new one if it is at hand; otherwise the new key signs itself.
            before = self.previous_key
            signer = before if before is not None and fingerprint(before.public) == head.by else self.key
            head = self._write(file, head, time, "key", {"key": self.key.public}, signer)
        return head, time

    def _write(
        self, file: BinaryIO, head: Head | None, time: str, event: str, fields: Mapping[str, Value],
        key: SigningKey | None,
    ) -> Head:  # fmt: skip
        """Write a record after that of a head; its time is not before that of the record before."""
        n, before = (1, FIRST) if head is None else (head.n + 1, head.digest)
        by = None if key is None else fingerprint(key.public)
        # A clock that was set back must not make a log go back, as that is what a forged log does.
        record = {"n": n, "at": max(_now(), time), "event": event, **fields, "by": by, "previous": before}
        line = _body(record)
        digest, signature = _digest(line), ""
        if key is not None:
            signature = key.sign(_signed(n, digest))
            line = line[:-1] + SIGNATURE + signature.encode() + b'"}'
        file.write(line + b"\n")
        return Head(n, digest, by or "", signature)

    def _error(self, text: str, code: str = "audit-log") -> DrflError:
        return DrflError(text, code=code, field=str(self.path))


class BrokenLogError(DrflError):
    """A file that is no audit log, or whose lines do not follow from each other."""

    code = "broken-chain"


class Audited(NamedTuple):
    """A log whose lines follow from each other.

    Args:
        path: Its file.
        records: The records in order, the first of which is "opened".
        heads: The head that each record was when it was written.
    """

    path: Path
    records: list[Record]
    heads: list[Head]

    @property
    def role(self) -> Role:
        """Whose log it is."""
        return "server" if self.records[0]["role"] == "server" else "site"

    @property
    def name(self) -> str:
        """Its owner's name, by its first line."""
        return str(self.records[0]["name"])


def read(path: Path) -> Audited:
    """Read a log and check its chain. An incomplete last line, of a process that was killed, does not count.

    Raises:
        InputError: It cannot be read.
        BrokenLogError: It is empty or no log of this format, or a line does not follow from the one before it.
    """
    text = read_bytes(path, limit=None)
    records: list[Record] = []
    heads: list[Head] = []
    # The part after the last newline is a line that a killed process did not finish.
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        try:
            record, head = _parsed(line)
        except (ValueError, RecursionError) as error:
            raise _broken(path, number, f"it is not a record ({error})") from None
        if number == 1 and (record["event"], record.get("format")) != ("opened", FORMAT):
            raise _broken(path, number, f"it does not begin an audit log of format {FORMAT}", "log-format")
        if number == 1 and record.get("role") not in EVENTS:
            raise _broken(path, number, "it begins the log of neither a server nor a site", "bad-record")
        if record["n"] != number or record["previous"] != (heads[-1].digest if heads else FIRST):
            raise _broken(
                path,
                number,
                "it does not follow from the previous line: one of the two was changed, or a line "
                "between them was removed",
            )
        records.append(record)
        heads.append(head)
    if not records:
        raise BrokenLogError(f"'{path}' is empty", code="empty-log", field=str(path))
    return Audited(path, records, heads)


def wrong_field(role: Role, record: Mapping[str, object]) -> str:
    """What a record has that its event must not have, or lacks; "" if it is as it should be."""
    event = str(record.get("event"))
    if event not in EVENTS[role]:
        return f"no {role} writes the event '{event}'"
    expected, found = EVENTS[role][event] | _ALWAYS, record.keys() - {"signature"}
    # drfl writes exactly these fields, so an additional one means that the line was changed.
    if expected != found:
        missing = ", ".join(sorted(expected - found))
        return f"it lacks {missing}" if missing else f"it has another field, {', '.join(sorted(found - expected))}"
    for name, value in record.items():
        if value is None and name in _OPTIONAL:
            continue
        if name in _NUMBERS:
            sound = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        elif name in _LISTS:
            sound = isinstance(value, list) and all(isinstance(one, str) for one in value)
        else:
            sound = isinstance(value, str) and (name not in _HEADS or _HEAD.fullmatch(value) is not None)
        if not sound:
            return f"{name} cannot be {value!r:.80}"
    return ""


def _broken(path: Path, line: int, reason: str, code: str = "broken-chain") -> BrokenLogError:
    return BrokenLogError(f"'{path}', line {line}: {reason}", code=code, field=str(path))


def _parsed(line: bytes) -> tuple[Record, Head]:
    """The record of a line, and the head that it is.

    Raises:
        ValueError: It is no record in the form in which this module writes them.
    """
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError("it is not a JSON object")
    n, at, by, signature = record.get("n"), record.get("at"), record.get("by"), record.get("signature", "")
    # JSON readers that use floats do not represent longer integers exactly.
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n < 10**15:
        raise ValueError("it has no number")
    if not isinstance(at, str) or not _TIME.fullmatch(at):
        raise ValueError("it has no time")
    # The pattern alone would accept a 31st of February.
    datetime.fromisoformat(at)
    if not isinstance(record.get("event"), str) or not isinstance(record.get("previous"), str):
        raise ValueError("it has no event, or no digest of the previous line")
    if not isinstance(by, str | None) or not isinstance(signature, str):
        raise ValueError("its signature is not a string")
    plain = {name: value for name, value in record.items() if name != "signature"}
    body = _body(plain)
    # A line has one form only: else two readers could see different records in it, as with a name that appears twice.
    if line != (body[:-1] + SIGNATURE + signature.encode() + b'"}' if "signature" in record else body):
        raise ValueError("it does not have the form in which drfl writes lines")
    head = Head(n, _digest(body), by or "", signature)
    if _HEAD.fullmatch(str(head)) is None:
        raise ValueError("its signature has the wrong form")
    return record, head


def _body(record: Mapping[str, object]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode()


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _signed(n: int, digest: str) -> bytes:
    """What a signature is of. The purpose is named, as the same key proves to the SuperLink who a node is."""
    return f"drfl audit log {FORMAT}, line {n}, {digest}".encode()


def _lines_from_the_end(file: BinaryIO, unfinished: list[bytes] | None = None) -> Iterator[bytes]:
    """The whole lines of a file, the last first; what stands behind the last end of a line goes to ``unfinished``."""
    at, rest, first = file.seek(0, os.SEEK_END), b"", True
    # Reading is in blocks from the end: a log grows for years, and every message needs its last line.
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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
