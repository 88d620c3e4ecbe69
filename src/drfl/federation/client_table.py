"""A vector for every client, in memory or in a file, of which only the rows that change are written."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from drfl.core.errors import InputError


class RowFile:
    """Rows of one length and type in a temporary file; a slot is used again once its row is no longer held.

    The file has no name (it is unlinked when it is opened), so the system frees it when the process ends, however it
    ends. It is written and read by calls, not mapped into memory: a full disk is an error here, not a signal.

    Args:
        folder: Where the file lies.
        like: (d,) its length and type are those of the rows.

    Raises:
        InputError: If there is no such folder, it cannot be written to, or ``like`` is not on the CPU.
    """

    def __init__(self, folder: str, like: Tensor) -> None:
        if like.device.type != "cpu":
            raise InputError(
                f"table_dir needs models on the CPU, not on {like.device}: remove it there",
                code="unsupported-combination",
                field="table_dir",
            )
        if not Path(folder).is_dir():
            raise InputError(
                f"table_dir '{folder}' is not a folder: make it, or give another",
                code="not-a-folder",
                field="table_dir",
            )
        # Only type and device are kept, as `like` itself would keep a model in memory.
        self.folder, self._like = folder, like.detach()[:0].clone()
        self._d, self._size = like.numel(), like.numel() * like.element_size()
        self._free: list[int] = []
        self.slots = 0
        try:
            self._fd, name = tempfile.mkstemp(prefix="drfl-", dir=folder)
            os.unlink(name)
        except OSError as error:
            raise InputError(
                f"table_dir '{folder}' cannot be written to: {error.strerror or error}",
                code="cannot-write",
                field="table_dir",
            ) from error
        # The file no longer has a name, so closing it frees its space.
        weakref.finalize(self, os.close, self._fd)

    def hold(self, row: Tensor) -> Slot:
        """Write a row (d,); it stays as long as the slot is held.

        Raises:
            InputError: If the disk is full or fails.
        """
        if self._free:
            slot = Slot(self, self._free.pop())
        else:
            slot = Slot(self, self.slots)
            self.slots += 1
        data, at = _bytes(row.contiguous()), slot.number * self._size
        try:
            while data:  # a call may write less than it is given
                written = os.pwrite(self._fd, data, at)
                data, at = data[written:], at + written
        except OSError as error:
            reason = error.strerror or error
            raise InputError(
                f"table_dir '{self.folder}' took {self.slots} rows, then: {reason}",
                code="cannot-write",
                field="table_dir",
            ) from error
        return slot

    def read(self, slot: Slot, into: Tensor) -> None:
        """Copy the row of a slot into a contiguous vector (d,) of the rows' type.

        Raises:
            InputError: If the disk fails.
        """
        data, at = _bytes(into), slot.number * self._size
        try:
            while data:
                got = os.preadv(self._fd, [data], at)
                if not got:
                    raise OSError("it ended too early")
                data, at = data[got:], at + got
        except OSError as error:
            raise InputError(
                f"a row cannot be read from table_dir '{self.folder}': {error}",
                code="file-unreadable",
                field="table_dir",
            ) from error

    def empty(self, *shape: int) -> Tensor:
        """Memory for rows."""
        return self._like.new_empty(*shape)

    def release(self, number: int) -> None:
        """The slot may be used again."""
        self._free.append(number)


class Slot:
    """A row's place in the file, given back when nobody holds it."""

    __slots__ = ("__weakref__", "file", "number")

    def __init__(self, file: RowFile, number: int) -> None:
        self.file, self.number = file, number
        # At exit the whole file is freed, so its slots need not be released one by one.
        weakref.finalize(self, file.release, number).atexit = False


def _bytes(row: Tensor) -> memoryview:
    return row.view(torch.uint8).numpy().data


BLOCK = 512
"""Clients whose references lie together; an update copies the references of the blocks that it touches."""

MIXED = 2**18
"""Numbers gathered at a time to be mixed."""

Row = Tensor | Slot
"""A row in memory of its own, or its place in a file. Neither is ever changed."""

Update = Callable[[Row | None, Tensor], Tensor]
"""(old row, or None where it was never written; given row (d,)) → new row (d,) in memory of its own."""


class ClientTable:
    """A table (N, d) with a row a client, zero until it is written. It never changes: an update gives a new table.

    The new table shares all rows that were not written with the old one, which stays valid. An update of k rows costs
    O(k·d) numbers and O(k + N/512) references. Rows that no table holds any more are freed at once.

    Make one with :meth:`zeros` or :meth:`of`.

    Args:
        n: N.
        like: (d,) its length, type and device are those of the rows.
        blocks: The written rows by client, in blocks of ``BLOCK`` clients.
        file: Where rows lie; None = in memory.
        clients: (k,) int64, whose rows are written, ascending; None = find out when it matters.
    """

    def __init__(
        self,
        n: int,
        like: Tensor,
        blocks: tuple[Mapping[int, Row], ...],
        file: RowFile | None,
        clients: Tensor | None = None,
    ) -> None:
        self.n, self._like, self._blocks, self._file, self._clients = n, like, blocks, file, clients

    @classmethod
    def zeros(cls, n: int, like: Tensor, folder: str | None = None) -> ClientTable:
        """A table of n rows in which nothing is written yet.

        Args:
            n: N.
            like: (d,) its length, type and device are those of the rows.
            folder: Where to keep rows in a temporary file instead of in memory; on the CPU only.

        Raises:
            InputError: If the folder is not there or cannot be written to, or ``like`` is not on the CPU.
        """
        file = None if folder is None else RowFile(folder, like)
        empty: Mapping[int, Row] = {}  # shared by all blocks, and never changed
        # An expanded number gives the table d, type and device without the memory of a vector.
        return cls(n, like.new_empty(1).expand(like.numel()), (empty,) * -(-n // BLOCK), file)

    @classmethod
    def of(cls, n: int, clients: Tensor, rows: Tensor, folder: str | None = None) -> ClientTable:
        """A table of n rows in which those of ``clients`` (k,) are ``rows`` (k, d): what was saved.

        Raises:
            InputError: If as :meth:`zeros`.
            ValueError: If as :meth:`put`.
        """
        like = rows.new_empty(1).expand(rows.shape[1])
        return cls.zeros(n, like, folder).put(clients, rows)

    @property
    def shape(self) -> torch.Size:
        """(N, d)."""
        return torch.Size((self.n, self._like.numel()))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the rows."""
        return self._like.dtype

    @property
    def device(self) -> torch.device:
        """Where rows are given out and taken."""
        return self._like.device

    @property
    def folder(self) -> str | None:
        """Where the file of the rows lies; None = they are in memory."""
        return None if self._file is None else self._file.folder

    @property
    def clients(self) -> Tensor:
        """Whose rows were written, (k,) int64, ascending."""
        if self._clients is None:
            self._clients = torch.tensor(
                [client for block in self._blocks for client in sorted(block)], dtype=torch.int64
            )
        return self._clients.clone()  # a checkpoint takes no two tensors that share memory, as two tables' may

    def __getitem__(self, clients: Tensor) -> Tensor:
        """The rows of ``clients`` (k,), a new tensor (k, d).

        Raises:
            ValueError: If there is no such client.
        """
        rows = self._like.new_zeros(len(clients), self._like.numel())
        # Unwritten rows remain 0.
        for client, into in zip(self._checked(clients), rows, strict=True):
            row = self._row(client)
            if row is not None:
                self._read(row, into)
        return rows

    def put(self, clients: Tensor, rows: Iterable[Tensor]) -> ClientTable:
        """The table with these rows in place of those of ``clients``.

        Args:
            clients: (k,) distinct.
            rows: (k, d), or k vectors (d,) one after the other, which need not exist all at once.

        Raises:
            ValueError: If a client appears twice or is none of the table's, or the rows do not fit.
            InputError: If the file of the rows cannot grow.
        """
        return self._with(clients, rows, lambda _, row: row.detach().clone())

    def add(self, clients: Tensor, change: Iterable[Tensor], alpha: float = 1.0) -> ClientTable:
        """The table with alpha·change added to the rows of ``clients``; arguments and errors as :meth:`put`."""
        zero = self._like.new_zeros(())

        def moved(row: Row | None, by: Tensor) -> Tensor:
            if row is None:
                return zero.add(by.detach(), alpha=alpha)
            if isinstance(row, Tensor):
                return row.add(by.detach(), alpha=alpha)
            copy = row.file.empty(self._like.numel())
            row.file.read(row, copy)
            return copy.add_(by.detach(), alpha=alpha)

        return self._with(clients, change, moved)

    def mix(self, weights: Tensor) -> Tensor:
        """Σ_i weights_i · row_i, (d,) in the rows' type; reads every written row whose weight is not 0.

        Args:
            weights: (N,).
        """
        if weights.shape != (self.n,):
            raise ValueError(f"the table has {self.n} rows, the weights have shape {tuple(weights.shape)}")
        d, shares = self._like.numel(), weights.detach().to(self._like)
        mixed = self._like.new_zeros(d)
        # Rows of weight 0 are not read: with a file, reading takes most of the time.
        wanted = self.clients[(weights[self.clients.to(weights.device)] != 0).cpu()].tolist()
        # A few rows are copied at a time, never the whole table.
        size = min(BLOCK, max(1, MIXED // max(d, 1)))
        for start in range(0, len(wanted), size):
            clients = wanted[start : start + size]
            mixed += shares[clients] @ self._gathered([row for row in map(self._row, clients) if row is not None])
        return mixed

    def sums(self, clients: Tensor, weights: Tensor) -> Tensor:
        """Σ_j weights_kj · row of clients_j for each k, (K, d), all in float64; rows that were never written are 0.

        Args:
            clients: (j,) distinct.
            weights: (K, j) float64.

        Raises:
            ValueError: If there is no such client.
        """
        d = self._like.numel()
        total = self._like.new_zeros(len(weights), d, dtype=torch.float64)
        held = [(j, self._row(client)) for j, client in enumerate(self._checked(clients))]
        wanted = [(j, row) for j, row in held if row is not None]
        size = min(BLOCK, max(1, MIXED // max(d, 1)))
        for start in range(0, len(wanted), size):
            at, rows = zip(*wanted[start : start + size], strict=True)
            total += weights[:, list(at)].to(self.device) @ self._gathered(rows).double()
        return total

    def dense(self) -> Tensor:
        """The whole table as a tensor (N, d): for small N."""
        return self[torch.arange(self.n)]

    def __repr__(self) -> str:
        """Its size and how much of it is written."""
        n, d = self.shape
        return f"Table({n} × {d}, {self.dtype}, {sum(map(len, self._blocks))} rows written)"

    def _with(self, clients: Tensor, rows: Iterable[Tensor], new: Update) -> ClientTable:
        """The table with ``new(old row, given row)`` at these clients."""
        numbers = self._checked(clients)
        if len(set(numbers)) < len(numbers):
            raise ValueError("a client appears twice in one update")
        touched: dict[int, dict[int, Row]] = {}
        for client, row in zip(numbers, rows, strict=True):
            if row.shape != self._like.shape or row.dtype != self.dtype or row.device != self.device:
                kind = f"{row.dtype} of shape {tuple(row.shape)} on {row.device}"
                raise ValueError(f"a row of {self} cannot be {kind}")
            block = client // BLOCK
            if block not in touched:
                # Each block is copied once, as the old table keeps its own.
                touched[block] = dict(self._blocks[block])
            value = new(touched[block].get(client), row)
            touched[block][client] = value if self._file is None else self._file.hold(value)
        blocks = list(self._blocks)
        for block, written in touched.items():
            blocks[block] = written
        # A known list of written clients is updated: collecting it again would walk through all rows.
        known, first = self._clients, sorted(client for client in numbers if self._row(client) is None)
        if known is not None and first:
            known = torch.from_numpy(np.insert(known.numpy(), known.numpy().searchsorted(first), first))
        return ClientTable(self.n, self._like, tuple(blocks), self._file, known)

    def _checked(self, clients: Tensor) -> list[int]:
        numbers = clients.tolist()
        if numbers and (min(numbers) < 0 or max(numbers) >= self.n):
            raise ValueError(f"clients {min(numbers)} to {max(numbers)} are not all among the table's {self.n}")
        return numbers

    def _row(self, client: int) -> Row | None:
        return self._blocks[client // BLOCK].get(client)

    def _gathered(self, rows: Sequence[Row]) -> Tensor:
        """Rows side by side, (k, d), to be read only: a single one that lies in memory is not copied."""
        if self._file is None:
            held = [row for row in rows if isinstance(row, Tensor)]
            return held[0][None] if len(held) == 1 else torch.stack(held)
        into = self._like.new_empty(len(rows), self._like.numel())
        for row, place in zip(rows, into, strict=True):
            self._read(row, place)
        return into

    def _read(self, row: Row, into: Tensor) -> None:
        if isinstance(row, Tensor):
            into.copy_(row)
        else:
            row.file.read(row, into)
