"""Which replies counted in each round: written down as a run goes, and played again.

A run on real sites depends on who answered in time, which no seed decides. With the list of those who did, a simulation
on the same data ends with the same model and λ.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.algorithm import Info, Step
from drfl.errors import InputError
from drfl.federation import Federation
from drfl.history import csv_text
from drfl.key import Key
from drfl.request import R, Request, answers
from drfl.wrapped import Carried, S, WrappedAlgorithm, WrappedFederation, Wrapper

COLUMNS = ("round", "request", "kind", "clients")


class Counted(NamedTuple):
    """The replies to one request that an algorithm used.

    Args:
        kind: of the request: "train", "losses" or "gradients".
        clients: whose replies, in the order in which the algorithm had them.
    """

    kind: str
    clients: tuple[int, ...]


class Noted(WrappedFederation):
    """A federation that tells whose replies it hands on.

    Args:
        fed: the federation inside.
        note: is told after each request.
    """

    def __init__(self, fed: Federation, note: Callable[[Counted], None]) -> None:
        super().__init__(fed)
        self.note = note

    def exchange(self, request: Request[R]) -> R:
        """Put a request, and tell who answered."""
        reply = request.put(self.fed)
        self.note(Counted(request.kind, tuple(reply.clients.tolist())))
        return reply


@dataclass(frozen=True)
class Recorded(WrappedAlgorithm[S]):
    """An algorithm that tells which replies it used. It belongs inside all other wrappers, which may reject some.

    Args:
        algorithm: the algorithm inside.
        note: is told after each request.
    """

    note: Callable[[Counted], None]

    def round(self, state: S, fed: Federation, key: Key) -> tuple[S, Info]:
        """One round of the algorithm inside."""
        return self.algorithm.round(state, Noted(fed, self.note), key)


class Position(NamedTuple):
    """How far a list has been played.

    Args:
        next: () int64, the place of the request that comes next.
    """

    next: Tensor


class Only(WrappedFederation):
    """A federation in which only those answer whom a list names.

    Args:
        fed: the federation inside.
        record: the list.
        place: of the next request in it.
    """

    def __init__(self, fed: Federation, record: Sequence[Counted], place: int) -> None:
        super().__init__(fed)
        self.record, self.place = record, place

    def exchange(self, request: Request[R]) -> R:
        """Put a request to those of its cohort whose replies counted.

        Raises:
            InputError: the list is of another run.
        """
        if self.place >= len(self.record):
            raise InputError(f"the list of replies ends after {len(self.record)} requests, and the run goes on")
        kind, clients = self.record[self.place]
        if kind != request.kind or not set(clients) <= set(request.cohort.tolist()):
            raise InputError(
                f"the list of replies is of another run: request {self.place + 1} is '{request.kind}' to clients "
                f"{request.cohort.tolist()}, and the list has '{kind}' from {list(clients)}"
            )
        self.place += 1
        request = request.only(torch.isin(request.cohort, torch.tensor(clients, dtype=torch.int64)))
        if not clients:
            return request.nobody()
        reply = request.put(self.fed)
        order = {client: row for row, client in enumerate(reply.clients.tolist())}
        return answers(reply, torch.tensor([order[client] for client in clients if client in order]))


@dataclass(frozen=True)
class Replayed(Wrapper[S]):
    """An algorithm that gets just those replies that counted in another run. It belongs inside all other wrappers.

    Args:
        algorithm: the algorithm inside.
        record: the other run's list, from its first round on; see :func:`read_record`.

    Raises:
        InputError: (in a round) the list is of another run.
    """

    record: tuple[Counted, ...]

    def init(self, fed: Federation) -> Carried[S, Position]:
        """The state of the algorithm inside, at the start of the list."""
        return Carried(self.algorithm.init(fed), Position(torch.zeros((), dtype=torch.int64)))

    def round(self, state: Carried[S, Position], fed: Federation, key: Key) -> tuple[Carried[S, Position], Info]:
        """One round of the algorithm inside."""
        only = Only(fed, self.record, int(state.memory.next))
        inner, info = self.algorithm.round(state.inner, only, key)
        return Carried(inner, Position(torch.tensor(only.place))), info


class Record:
    """Collects which replies counted, and writes them to a file when a round ends: a callback of a run.

    Rows of rounds that were done when the program ended are in the file, so that a run that goes on loses none.
    """

    def __init__(self) -> None:
        self._file: Path | None = None
        self._pending: list[Counted] = []

    def add(self, counted: Counted) -> None:
        """Take note of a request's replies in the present round."""
        self._pending.append(counted)

    def open(self, file: Path, since: int) -> None:
        """Write to this file from round ``since`` + 1 on; what it holds of later rounds goes.

        Raises:
            InputError: it cannot be read or written.
        """
        done = [row for row in _rows(file) if int(row["round"]) <= since] if since and file.exists() else []
        self._file = file
        try:
            file.write_text(csv_text(COLUMNS, (row.values() for row in done)), encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write {file}: {error.strerror}") from None

    def __call__(self, step: Step) -> None:
        """Write the rows of a round that has ended."""
        rows = [
            (step.round, place, one.kind, " ".join(map(str, one.clients)))
            for place, one in enumerate(self._pending, start=1)
        ]
        self._pending.clear()
        if self._file is not None and rows:
            with self._file.open("a", encoding="utf-8", newline="") as out:
                csv.writer(out, lineterminator="\n").writerows(rows)
                out.flush()
                os.fsync(out.fileno())  # a checkpoint that follows must not be ahead of it


def read_record(file: Path) -> tuple[Counted, ...]:
    """The list that a run left, request by request.

    Raises:
        InputError: it is missing or damaged.
    """
    try:
        return tuple(Counted(row["kind"], tuple(map(int, row["clients"].split()))) for row in _rows(file))
    except ValueError:
        raise InputError(f"'{file}' is no list of replies: clients are not numbers") from None


def _rows(file: Path) -> list[dict[str, str]]:
    try:
        with file.open(encoding="utf-8", newline="") as text:
            rows = list(csv.DictReader(text))
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"cannot read the list of replies '{file}': {error}") from None
    for row in rows:
        if tuple(row) != COLUMNS or None in row.values() or not row["round"].isdecimal():
            raise InputError(f"'{file}' is no list of replies: it needs the columns {', '.join(COLUMNS)}")
    return rows
