"""Which replies counted in each round: recorded during a run, and replayed.

A run on real sites depends on who answered in time, which no seed decides. With the list of those who did, a simulation
on the same data ends with the same model and λ.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from drfl.core.atomic_files import atomic_write
from drfl.core.errors import DrflError, InputError
from drfl.core.files import read_bytes
from drfl.core.key import Key
from drfl.federation.algorithm import Info
from drfl.federation.federation import Federation, WrappedFederation
from drfl.federation.requests import R, Request, answers
from drfl.resilience.wrappers import S, WrappedAlgorithm
from drfl.training.history import csv_text
from drfl.training.run_state import RunState

COLUMNS = ("round", "kind", "key", "clients")


class UsedReplies(NamedTuple):
    """The replies to one request that an algorithm used.

    Args:
        round: of the run that the request belongs to.
        kind: of the request: "train", "losses" or "gradients".
        key: names the request's key, which no two requests of a kind share in a run.
        clients: whose replies, in the order in which the algorithm had them.
    """

    round: int
    kind: str
    key: str
    clients: tuple[int, ...]


def name_of(key: Key) -> str:
    """16 hexadecimal digits that name a key."""
    return hashlib.blake2b(repr((key.seed, key.path)).encode(), digest_size=8).hexdigest()


class RecordingFederation(WrappedFederation):
    """A federation that reports whose replies it passes on.

    Args:
        fed: the federation inside.
        note: called after each request.
    """

    def __init__(self, fed: Federation, note: Callable[[UsedReplies], None]) -> None:
        super().__init__(fed)
        self.note = note

    def ask(self, request: Request[R]) -> R:
        """Send a request, and report who answered."""
        reply = self.fed.ask(request)
        round = request.key.round or 0
        self.note(UsedReplies(round, request.kind, name_of(request.key), tuple(reply.clients.tolist())))
        return reply


@dataclass(frozen=True)
class Recorded(WrappedAlgorithm[S]):
    """An algorithm that reports which replies it used. It belongs inside all other wrappers, which may reject some.

    Args:
        algorithm: the algorithm inside.
        note: called after each request.
    """

    note: Callable[[UsedReplies], None]

    def round(self, state: S, fed: Federation, key: Key) -> tuple[S, Info]:
        """One round of the algorithm inside."""
        return self.algorithm.round(state, RecordingFederation(fed, self.note), key)


class ReplayingFederation(WrappedFederation):
    """A federation in which only those answer whom a list names.

    Args:
        fed: the federation inside.
        record: clients by kind and key of a request.
    """

    def __init__(self, fed: Federation, record: Mapping[tuple[str, str], tuple[int, ...]]) -> None:
        super().__init__(fed)
        self.record = record

    def ask(self, request: Request[R]) -> R:
        """Send a request to those of its cohort whose replies counted.

        Raises:
            InputError: the list is of another run.
        """
        clients = self.record.get((request.kind, name_of(request.key)))
        if clients is None or not set(clients) <= set(request.cohort.tolist()):
            raise InputError(
                f"the list of replies is of another run: it has no request '{request.kind}' to clients "
                f"{request.cohort.tolist()} at this place; give the run's own algorithm, parameters and seed",
                code="other-run",
                field="replies",
            )
        request = request.only(torch.isin(request.cohort, torch.tensor(clients, dtype=torch.int64)))
        if not clients:
            return request.nobody()
        reply = self.fed.ask(request)
        order = {client: row for row, client in enumerate(reply.clients.tolist())}
        # In the recorded order, in which the algorithm summed them then: another would round differently.
        return answers(reply, torch.tensor([order[client] for client in clients if client in order]))


@dataclass(frozen=True)
class Replayed(WrappedAlgorithm[S]):
    """An algorithm that gets just those replies that counted in another run. It belongs inside all other wrappers.

    Args:
        algorithm: the algorithm inside.
        record: the other run's list; see :func:`read_replies`.

    Raises:
        InputError: the list has two entries for one request; or (in a round) it is of another run.
    """

    record: tuple[UsedReplies, ...]

    def __post_init__(self) -> None:
        if len({(one.kind, one.key) for one in self.record}) < len(self.record):
            raise InputError(
                "the list of replies has a request twice: give the list of one run alone",
                code="given-twice",
                field="replies",
            )

    def round(self, state: S, fed: Federation, key: Key) -> tuple[S, Info]:
        """One round of the algorithm inside."""
        return self.algorithm.round(
            state, ReplayingFederation(fed, {(one.kind, one.key): one.clients for one in self.record}), key
        )


class ReplyLog:
    """Collects which replies counted, and writes them to a file when a round ends: a callback of a run.

    Checkpoints cover the file by its length and digest, see :meth:`extent`. A resumed run begins it with the rows that
    its checkpoint covers: later rows, and one that was half written when the program ended, are dropped.
    """

    def __init__(self) -> None:
        self._file: Path | None = None
        self._pending: list[UsedReplies] = []
        # Updated at every write, so that a checkpoint need not read the file.
        self._size, self._digest = 0, hashlib.sha256()

    def add(self, counted: UsedReplies) -> None:
        """Take note of a request's replies in the present round."""
        self._pending.append(counted)

    def open(self, file: Path, rows: bytes = b"") -> None:
        """Write to this file from now on.

        Args:
            file: what it holds is replaced.
            rows: what it begins with, see :attr:`drfl.training.checkpoint.ResumePoint.replies`; empty = nothing yet.

        Raises:
            InputError: it cannot be written, or the rows are not those of a list of replies.
        """
        _parse(rows, file)
        # Replace the file: a resumed run drops rows beyond its checkpoint.
        content = rows or csv_text(COLUMNS, ()).encode()
        try:
            with atomic_write(file) as out:
                out.write(content)
        except OSError as error:
            raise InputError(f"cannot write {file}: {error.strerror}", code="cannot-write", field=str(file)) from None
        self._file, self._size, self._digest = file, len(content), hashlib.sha256(content)

    def extent(self) -> tuple[int, str]:
        """How many bytes the file has, and their SHA-256 in hexadecimal digits."""
        return self._size, self._digest.hexdigest()

    def __call__(self, progress: RunState) -> None:
        """Write the rows of a round that has ended.

        Raises:
            DrflError: the disk is full or fails. The rows that the last checkpoint covers are whole.
        """
        done = [one for one in self._pending if one.round <= progress.round]
        # A federation that bundles plays the next round before this callback hears of this one.
        self._pending = [one for one in self._pending if one.round > progress.round]
        if self._file is None or not done:
            return
        text = io.StringIO()
        rows = [(one.round, one.kind, one.key, " ".join(map(str, one.clients))) for one in done]
        csv.writer(text, lineterminator="\n").writerows(rows)
        content = text.getvalue().encode()
        try:
            with self._file.open("ab") as out:
                out.write(content)
                out.flush()
                # On the disk before a checkpoint of this round is: a resumed run must find the rows of all its rounds.
                os.fsync(out.fileno())
        except OSError as error:
            raise DrflError(
                f"cannot write round {progress.round} to {self._file} ({error.strerror}): make room and resume",
                code="cannot-write",
                field=str(self._file),
            ) from None
        self._size += len(content)
        self._digest.update(content)


def read_replies(file: Path) -> tuple[UsedReplies, ...]:
    """The list that a run left, request by request.

    Raises:
        InputError: it is missing or damaged.
    """
    try:
        return tuple(
            UsedReplies(int(row["round"]), row["kind"], row["key"], tuple(map(int, row["clients"].split())))
            for row in _parse(read_bytes(file, limit=None, follow=False), file)
        )
    except ValueError:
        raise InputError(
            f"'{file}' is no list of replies: clients are not numbers", code="damaged-file", field=str(file)
        ) from None


def _parse(data: bytes, file: Path) -> list[dict[str, str]]:
    try:
        rows = list(csv.DictReader(io.StringIO(data.decode(), newline="")))
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read the list of replies '{file}': {error}", code="damaged-file", field=str(file)
        ) from None
    for row in rows:
        # DictReader pads short rows with None, and puts surplus fields under the key None.
        if tuple(row) != COLUMNS or None in row.values() or not row["round"].isdecimal():
            raise InputError(
                f"'{file}' is no list of replies: it needs the columns {', '.join(COLUMNS)}",
                code="missing-column",
                field=str(file),
            )
    return rows
