"""Recording which replies each round used, and replaying a run with the same replies.

A deployment depends on which clients answered in time, which no seed determines. With the recorded list, a simulation
on the same data ends with the same model and λ.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from drfl.core.csv_cells import csv_text
from drfl.core.errors import DrflError, InputError
from drfl.core.files import read_bytes
from drfl.core.key import Key
from drfl.core.output_files import write_bytes
from drfl.federation.algorithm import Info
from drfl.federation.federation import Federation, WrappedFederation
from drfl.federation.requests import R, Request, select_rows
from drfl.federation.user_algorithm import play
from drfl.resilience.wrappers import S, WrappedAlgorithm
from drfl.training.run_state import RunState

COLUMNS = ("round", "kind", "key", "clients", "number")


class UsedReplies(NamedTuple):
    """The replies to one request that an algorithm used.

    Args:
        round: Round of the request.
        kind: Kind of the request: "train", "losses" or "gradients".
        key: Name of the request's key.
        clients: Clients whose replies were used, in the order in which the algorithm received them.
        number: 1, 2, … for a round's requests of the same kind and key, as if each client is sent a model of its own.
    """

    round: int
    kind: str
    key: str
    clients: tuple[int, ...]
    number: int = 1


def name_of(key: Key) -> str:
    """Return 16 hexadecimal digits that identify a key."""
    return hashlib.blake2b(repr((key.seed, key.path)).encode(), digest_size=8).hexdigest()


class RecordingFederation(WrappedFederation):
    """A federation that reports whose replies it passes on.

    Args:
        fed: The wrapped federation.
        note: Called after each request.
    """

    def __init__(self, fed: Federation, note: Callable[[UsedReplies], None]) -> None:
        super().__init__(fed)
        self.note, self._count = note, Counter[tuple[str, str]]()

    def ask(self, request: Request[R]) -> R:
        """Send a request and report which clients answered."""
        reply = self.fed.ask(request)
        round, kind, key = request.key.round or 0, request.kind, name_of(request.key)
        self._count[kind, key] += 1
        self.note(UsedReplies(round, kind, key, tuple(reply.clients.tolist()), self._count[kind, key]))
        return reply


@dataclass(frozen=True)
class Recorded(WrappedAlgorithm[S]):
    """Reports which replies an algorithm used; place it inside all other wrappers, because they may reject replies.

    Args:
        algorithm: The wrapped algorithm.
        note: Called after each request.
    """

    note: Callable[[UsedReplies], None]

    def round(self, state: S, fed: Federation, key: Key) -> tuple[S, Info]:
        """Run one round of the wrapped algorithm."""
        return play(self.algorithm, state, RecordingFederation(fed, self.note), key)


class ReplayingFederation(WrappedFederation):
    """A federation in which only the clients in a recorded list answer; for one round.

    Args:
        fed: The wrapped federation.
        record: Clients by kind, key and number of a request.
    """

    def __init__(self, fed: Federation, record: Mapping[tuple[str, str, int], tuple[int, ...]]) -> None:
        super().__init__(fed)
        self.record, self._count = record, Counter[tuple[str, str]]()

    def ask(self, request: Request[R]) -> R:
        """Send a request to the clients of its cohort whose replies were used in the recorded run.

        Raises:
            InputError: If the list belongs to another run.
        """
        kind, key = request.kind, name_of(request.key)
        self._count[kind, key] += 1
        clients = self.record.get((kind, key, self._count[kind, key]))
        if clients is None or not set(clients) <= set(request.cohort.tolist()):
            raise InputError(
                f"the list of replies is from another run: it has no request '{request.kind}' to clients "
                f"{request.cohort.tolist()} here. Use the algorithm, parameters and seed of the recorded run",
                code="other-run",
                field="replies",
            )
        request = request.only(torch.isin(request.cohort, torch.tensor(clients, dtype=torch.int64)))
        if not clients:
            return request.empty_reply()
        reply = self.fed.ask(request)
        order = {client: row for row, client in enumerate(reply.clients.tolist())}
        # Use the recorded order, because another order of summation would round differently.
        return select_rows(reply, torch.tensor([order[client] for client in clients if client in order]))


@dataclass(frozen=True)
class Replayed(WrappedAlgorithm[S]):
    """Runs an algorithm on only those replies that another run used; place it inside all other wrappers.

    Args:
        algorithm: The wrapped algorithm.
        record: List of the other run, see :func:`read_replies`.

    Raises:
        InputError: If the list has two entries for one request, or (in a round) if it belongs to another run.
    """

    record: tuple[UsedReplies, ...]

    def __post_init__(self) -> None:
        if len({(entry.kind, entry.key, entry.number) for entry in self.record}) < len(self.record):
            raise InputError(
                "the list of replies contains a request twice. Use the list of a single run that repeated no round "
                "with a smaller step size",
                code="given-twice",
                field="replies",
            )

    def round(self, state: S, fed: Federation, key: Key) -> tuple[S, Info]:
        """Run one round of the wrapped algorithm."""
        record = {(entry.kind, entry.key, entry.number): entry.clients for entry in self.record}
        return play(self.algorithm, state, ReplayingFederation(fed, record), key)


class ReplyLog:
    """A run callback that collects which replies were used and writes them to a file after each round.

    Checkpoints store the file's length and digest, see :meth:`extent`. A resumed run starts the file with the rows that
    its checkpoint covers. It drops later rows, including one that was half written when the program ended.
    """

    def __init__(self) -> None:
        self._file: Path | None = None
        self._pending: list[UsedReplies] = []
        # These are updated at every write, so that a checkpoint does not need to read the file.
        self._size, self._digest = 0, hashlib.sha256()

    def add(self, counted: UsedReplies) -> None:
        """Add a request's replies to those of the current round."""
        self._pending.append(counted)

    def open(self, file: Path, rows: bytes = b"") -> None:
        """Write to this file from now on.

        Args:
            file: File to write; its content is replaced.
            rows: Initial content, see :attr:`drfl.training.checkpoint.ResumePoint.replies`; empty = a new list.

        Raises:
            InputError: If the file cannot be written, or if ``rows`` is not a list of replies.
        """
        _parse(rows, file)
        # Replace the file, because a resumed run drops rows beyond its checkpoint.
        content = rows or csv_text(COLUMNS, ()).encode()
        write_bytes(content, file)
        self._file, self._size, self._digest = file, len(content), hashlib.sha256(content)

    def extent(self) -> tuple[int, str]:
        """Return the file's length in bytes and its SHA-256 in hexadecimal digits."""
        return self._size, self._digest.hexdigest()

    def __call__(self, progress: RunState) -> None:
        """Write the rows of a round that has ended.

        Raises:
            DrflError: If the disk is full or fails. The rows that the last checkpoint covers remain intact.
        """
        done = [entry for entry in self._pending if entry.round <= progress.round]
        # A federation that bundles requests may start the next round before this callback is called for this one.
        self._pending = [entry for entry in self._pending if entry.round > progress.round]
        if self._file is None or not done:
            return
        text = io.StringIO()
        rows = [(*entry[:3], " ".join(map(str, entry.clients)), entry.number) for entry in done]
        csv.writer(text, lineterminator="\n").writerows(rows)
        content = text.getvalue().encode()
        try:
            with self._file.open("ab") as out:
                out.write(content)
                out.flush()
                # Sync before this round's checkpoint is written: a resumed run needs the rows of all its rounds.
                os.fsync(out.fileno())
        except OSError as error:
            raise DrflError(
                f"cannot write round {progress.round} to {self._file} ({error.strerror}). Free disk space and resume",
                code="cannot-write",
                field=str(self._file),
            ) from None
        self._size += len(content)
        self._digest.update(content)


def read_replies(file: Path) -> tuple[UsedReplies, ...]:
    """Read the list of used replies that a run wrote, one entry per request.

    Raises:
        InputError: If the file is missing or damaged.
    """
    try:
        return tuple(
            UsedReplies(
                int(row["round"]), row["kind"], row["key"], tuple(map(int, row["clients"].split())), int(row["number"])
            )
            for row in _parse(read_bytes(file, limit=None, follow=False), file)
        )
    except ValueError:
        raise InputError(
            f"'{file}' is not a list of replies: columns 'clients' and 'number' must contain integers",
            code="damaged-file",
            field=str(file),
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
                f"'{file}' is not a list of replies. It needs the columns {', '.join(COLUMNS)}",
                code="missing-column",
                field=str(file),
            )
    return rows
