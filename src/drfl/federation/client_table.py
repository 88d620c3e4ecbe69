"""A table with a vector per client, in memory or in a file. An update only writes the rows that change."""

from __future__ import annotations

import logging
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from drfl.core.errors import InputError, Notice
from drfl.core.free_memory import free_memory
from drfl.core.intraop import column_slices, in_parallel
from drfl.core.mapped_files import scratch_folder


class RowFile:
    """A temporary file of rows with the same length and type. Slots of rows that are no longer used are reused.

    The file has no name, because it is unlinked after it is opened. The system therefore frees it however the process
    ends. The file is read and written by system calls instead of memory mapping, so that a full disk causes an error
    and not a signal.

    Args:
        folder: Folder of the file.
        like: Vector (d,) with the length and type of the rows.

    Raises:
        InputError: If the folder does not exist or cannot be written to, or ``like`` is not on the CPU.
    """

    def __init__(self, folder: str, like: Tensor) -> None:
        if like.device.type != "cpu":
            raise InputError(
                f"`table_dir` needs models on the CPU, but they are on {like.device}. Remove `table_dir`.",
                code="unsupported-combination",
                field="table_dir",
            )
        if not Path(folder).is_dir():
            raise InputError(
                f"`table_dir` '{folder}' is not a folder. Create it, or choose another.",
                code="not-a-folder",
                field="table_dir",
            )
        self.folder, self._size = folder, like.numel() * like.element_size()
        self._free: list[int] = []
        self.slots = 0
        try:
            self._fd, name = tempfile.mkstemp(prefix="drfl-", dir=folder)
            os.unlink(name)
        except OSError as error:
            raise InputError(
                f"cannot write to `table_dir` '{folder}': {error.strerror or error}",
                code="cannot-write",
                field="table_dir",
            ) from error
        # The file has no name, so closing it frees its space.
        weakref.finalize(self, os.close, self._fd)

    def hold(self, row: Tensor) -> Slot:
        """Write a row (d,). It remains in the file as long as the returned slot exists.

        Raises:
            InputError: If the disk is full or fails.
        """
        if self._free:
            slot = Slot(self, self._free.pop())
        else:
            slot = Slot(self, self.slots)
            self.slots += 1
        data, offset = _bytes(row.contiguous()), slot.number * self._size
        try:
            while data:  # pwrite may write only part of the data.
                written = os.pwrite(self._fd, data, offset)
                data, offset = data[written:], offset + written
        except OSError as error:
            reason = error.strerror or error
            raise InputError(
                f"cannot write to `table_dir` '{self.folder}' after {self.slots} rows: {reason}",
                code="cannot-write",
                field="table_dir",
            ) from error
        return slot

    def read(self, slot: Slot, into: Tensor) -> None:
        """Copy the row of a slot into a contiguous vector (d,) of the rows' type.

        Raises:
            InputError: If the disk fails.
        """
        data, offset = _bytes(into), slot.number * self._size
        try:
            while data:
                count = os.preadv(self._fd, [data], offset)
                if not count:
                    raise OSError("the file is too short")
                data, offset = data[count:], offset + count
        except OSError as error:
            raise InputError(
                f"cannot read a row from `table_dir` '{self.folder}': {error}",
                code="file-unreadable",
                field="table_dir",
            ) from error

    def release(self, number: int) -> None:
        """Allow a slot to be reused."""
        self._free.append(number)


class Slot:
    """The position of a row in the file. It is released when the object is garbage-collected."""

    __slots__ = ("__weakref__", "file", "number")

    def __init__(self, file: RowFile, number: int) -> None:
        self.file, self.number = file, number
        # At exit, the whole file is freed, so its slots need not be released one by one.
        weakref.finalize(self, file.release, number).atexit = False


def _bytes(row: Tensor) -> memoryview:
    return row.view(torch.uint8).numpy().data


BLOCK = 512
"""Number of clients per block of row references. An update copies the blocks that it changes."""

CHUNK = 2**18
"""Number of entries that :class:`ClientTable` computes at a time on a CPU, so that they stay in its caches."""

CHUNK_CUDA = 2**26
"""Number of entries that it copies at a time on a GPU."""

LARGE = 2**28
"""A table of at most this many bytes is in memory, however little memory is free."""

LOG = logging.getLogger("drfl.federation")

Row = Tensor | Slot
"""A row in memory or its slot in a file. Rows never change."""

Update = Callable[[Row | None, Tensor], Tensor]
"""Function of the old row (None if it was never written) and the passed row (d,) that returns a new row (d,)."""


def added_together(
    rows: Sequence[Row | None], change: Sequence[Tensor], alpha: float, origin: Tensor | None
) -> list[Tensor]:
    """Return row + alpha·(change − origin) for each row, with few operations because a GPU has to launch each of them.

    Every result has its own memory, so that a table frees each row when it is replaced.

    Args:
        rows: k old rows (d,) in memory; None = 0.
        change: k vectors (d,).
        alpha: Factor.
        origin: (d,) The same for all rows; None = 0.
    """
    if not change:
        return []
    zero, new = torch.zeros_like(change[0]), [term.detach() for term in change]
    old = [row if isinstance(row, Tensor) else zero for row in rows]
    # torch documents these functions, in spite of their names.
    subtract, add = torch._foreach_sub, torch._foreach_add  # pyright: ignore[reportPrivateImportUsage]
    differences = new if origin is None else subtract(new, [origin] * len(new))
    return list(add(old, differences, alpha=alpha))


class ClientTable:
    """An immutable table (N, d) with a row per client, which is zero until it is written.

    An update returns a new table. It shares all other rows with the old table, which remains valid. An update of k rows
    costs O(k·d) numbers and O(k + N/512) references. Rows that are not in any table are freed immediately.

    Create a table with :meth:`zeros` or :meth:`of`.

    Args:
        n: Number of clients N.
        like: Vector (d,) with the length, type and device of the rows.
        blocks: The written rows by client, in blocks of ``BLOCK`` clients.
        file: File of the rows; None = they are in memory.
        clients: Clients whose rows are written, ascending, int64 (k,); None = determine them when needed.
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
        """Create a table of zeros, without any written row.

        Args:
            n: Number of clients N.
            like: Vector (d,) with the length, type and device of the rows.
            folder: Folder for a temporary file of the rows, which requires the CPU; None = rows are in memory.

        Raises:
            InputError: If the folder does not exist or cannot be written to, or ``like`` is not on the CPU.
        """
        file = None if folder is None else RowFile(folder, like)
        empty: Mapping[int, Row] = {}  # All blocks share this mapping, which never changes.
        # An expanded single number provides d, type and device without the memory of a vector.
        return cls(n, like.new_empty(1).expand(like.numel()), (empty,) * -(-n // BLOCK), file)

    @classmethod
    def of(cls, n: int, clients: Tensor, rows: Tensor, folder: str | None = None) -> ClientTable:
        """Create a table from saved rows (k, d) of ``clients`` (k,).

        Raises:
            InputError: If :meth:`zeros` raises it.
            ValueError: If :meth:`put` raises it.
        """
        like = rows.new_empty(1).expand(rows.shape[1])
        return cls.zeros(n, like, folder).put(clients, rows)

    @property
    def shape(self) -> torch.Size:
        """Shape (N, d)."""
        return torch.Size((self.n, self._like.numel()))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the rows."""
        return self._like.dtype

    @property
    def device(self) -> torch.device:
        """Device on which rows are passed and returned."""
        return self._like.device

    @property
    def folder(self) -> str | None:
        """Folder of the file of the rows; None = they are in memory."""
        return None if self._file is None else self._file.folder

    @property
    def clients(self) -> Tensor:
        """Clients whose rows were written, ascending, int64 (k,)."""
        if self._clients is None:
            self._clients = torch.tensor(
                [client for block in self._blocks for client in sorted(block)], dtype=torch.int64
            )
        return self._clients.clone()  # Checkpoints reject tensors that share memory, and two tables may share this one.

    def __getitem__(self, clients: Tensor) -> Tensor:
        """Return the rows of ``clients`` (k,) as a new tensor (k, d).

        Raises:
            ValueError: If a client is not in the table.
        """
        written = [self._row(client) for client in self._checked(clients)]
        if self._file is None and written:
            zero = self._like.new_zeros(1).expand(len(self._like))
            return torch.stack([row if isinstance(row, Tensor) else zero for row in written])
        rows = self._like.new_empty(len(clients), self._like.numel())
        for row, into in zip(written, rows, strict=True):
            if row is None:
                into.zero_()
            else:
                self._read(row, into)
        return rows

    def put(self, clients: Tensor, rows: Iterable[Tensor]) -> ClientTable:
        """Return the table with the rows of ``clients`` replaced.

        Args:
            clients: Distinct clients (k,).
            rows: New rows (k, d), or an iterable of k vectors (d,), which need not all exist at the same time.

        Raises:
            ValueError: If a client appears twice or is not in the table, or the rows do not fit.
            InputError: If the file of the rows cannot grow.
        """
        # Copy, because rows never change and the caller may reuse its tensor.
        return self._with(clients, rows, lambda _, row: row.detach().clone())

    def add(
        self, clients: Tensor, change: Iterable[Tensor], alpha: float = 1.0, origin: Tensor | None = None
    ) -> ClientTable:
        """Return the table with alpha·(change − origin) added to the rows of ``clients``.

        Args:
            clients: See :meth:`put`, also for ``change``.
            change: (k, d) or k vectors (d,).
            alpha: Factor.
            origin: (d,) The same for all rows; None = 0.
        """
        if self.device.type != "cpu":
            written = [self._row(client) for client in self._checked(clients)]
            return self._with(clients, added_together(written, list(change), alpha, origin), lambda _, row: row)
        zero = self._like.new_zeros(())

        def added(row: Row | None, term: Tensor) -> Tensor:
            new, term = self._like.new_empty(self._like.numel()), term.detach()
            if isinstance(row, Slot):
                row.file.read(row, new)
            old = new if isinstance(row, Slot) else row

            # Work in pieces, so that the difference is never written to memory.
            def add_part(part: slice) -> None:
                difference = term[part] if origin is None else term[part] - origin[part]
                torch.add(zero if old is None else old[part], difference, alpha=alpha, out=new[part])

            in_parallel(add_part, self._pieces())
            return new

        return self._with(clients, change, added)

    def mix(self, weights: Tensor) -> Tensor:
        """Compute Σ_i weights_i · row_i, (d,) in the rows' type, from all written rows with non-zero weight.

        Args:
            weights: Weights (N,).
        """
        if weights.shape != (self.n,):
            raise ValueError(f"weights must have shape ({self.n},), got {tuple(weights.shape)}")
        d, cast_weights = self._like.numel(), weights.detach().to(self._like)
        mixed = self._like.new_zeros(d)
        # Skip rows of weight 0, because reading takes most of the time if the table is in a file.
        wanted = self.clients[(weights[self.clients.to(weights.device)] != 0).cpu()].tolist()
        on_cpu = self.device.type == "cpu"
        if self._file is None and 2 * d > CHUNK and on_cpu:
            # Add the rows piece by piece, so that the sum is written once. Products with weights round as below.
            rows = [(cast_weights[client], row) for client in wanted if isinstance(row := self._row(client), Tensor)]

            def mix_part(part: slice) -> None:
                for weight, row in rows:
                    mixed[part] += weight * row[part]

            in_parallel(mix_part, self._pieces())
            return mixed
        # Copy a few rows at a time, never the whole table; on a GPU more, because each operation has to be launched.
        size = min(BLOCK, max(1, (CHUNK if on_cpu else CHUNK_CUDA) // max(d, 1)))
        for start in range(0, len(wanted), size):
            clients = wanted[start : start + size]
            rows = self._gathered([row for row in map(self._row, clients) if row is not None])
            for part in self._pieces():
                mixed[part] += cast_weights[clients] @ rows[:, part]
        return mixed

    def sums(self, clients: Tensor, weights: Tensor) -> Tensor:
        """Compute Σ_j weights_kj · row of clients_j for each k, (K, d), all in float64; unwritten rows are 0.

        Args:
            clients: Distinct clients (j,).
            weights: Weights, float64 (K, j).

        Raises:
            ValueError: If a client is not in the table.
        """
        d = self._like.numel()
        total = self._like.new_zeros(len(weights), d, dtype=torch.float64)
        numbered = [(j, self._row(client)) for j, client in enumerate(self._checked(clients))]
        wanted = [(j, row) for j, row in numbered if row is not None]
        size = min(BLOCK, max(1, CHUNK // max(d, 1)))
        for start in range(0, len(wanted), size):
            columns, rows = zip(*wanted[start : start + size], strict=True)
            factors, gathered = weights[:, list(columns)].to(self.device), self._gathered(rows)
            for part in self._pieces():
                total[:, part] += factors @ gathered[:, part].double()
        return total

    def dense(self) -> Tensor:
        """Return the whole table as a tensor (N, d). Use it for small N only."""
        return self[torch.arange(self.n)]

    def __repr__(self) -> str:
        """Show the size and the number of written rows."""
        n, d = self.shape
        return f"Table({n} × {d}, {self.dtype}, {sum(map(len, self._blocks))} rows written)"

    def _with(self, clients: Tensor, rows: Iterable[Tensor], new: Update) -> ClientTable:
        """Return the table with ``new(old row, passed row)`` for these clients."""
        numbers = self._checked(clients)
        if len(set(numbers)) < len(numbers):
            raise ValueError("a client appears twice in one update")
        touched: dict[int, dict[int, Row]] = {}
        file = self._file
        if file is None and self.device.type == "cpu":
            # Rows that are already in memory stay there until they are replaced.
            row_bytes, written_rows = self._like.numel() * self._like.element_size(), sum(map(len, self._blocks))
            size = row_bytes * (written_rows + sum(self._row(client) is None for client in numbers))
            free = free_memory() if size > LARGE else None
            # New rows are stored in a file if the table takes more than half of the memory that it could use.
            if free is not None and 2 * size > free + row_bytes * written_rows:
                folder = scratch_folder()
                text = (
                    f"the server's vectors per client need {size / 2**30:.1f} GiB, more than half of "
                    f"the free memory, so new ones are stored in a file in '{folder}'. Choose another "
                    "folder with `table_dir`."
                )
                LOG.warning(Notice(text, "table-in-file", "table_dir"))
                file = RowFile(folder, self._like)
        for client, row in zip(numbers, rows, strict=True):
            if row.shape != self._like.shape or row.dtype != self.dtype or row.device != self.device:
                kind = f"{row.dtype} of shape {tuple(row.shape)} on {row.device}"
                raise ValueError(f"a row of {self} cannot be {kind}")
            block = client // BLOCK
            if block not in touched:
                # Copy each block once, because the old table still uses the original.
                touched[block] = dict(self._blocks[block])
            value = new(touched[block].get(client), row)
            touched[block][client] = value if file is None else file.hold(value)
        blocks = list(self._blocks)
        for block, written in touched.items():
            blocks[block] = written
        # Update the list of written clients if it is known, because collecting it again would visit all rows.
        known, added = self._clients, sorted(client for client in numbers if self._row(client) is None)
        if known is not None and added:
            known = torch.from_numpy(np.insert(known.numpy(), known.numpy().searchsorted(added), added))
        return ClientTable(self.n, self._like, tuple(blocks), file, known)

    def _pieces(self) -> list[slice]:
        return column_slices(CHUNK, self._like)

    def _checked(self, clients: Tensor) -> list[int]:
        numbers = clients.tolist()
        if numbers and (min(numbers) < 0 or max(numbers) >= self.n):
            raise ValueError(f"clients must be at least 0 and below {self.n}, got {min(numbers)} to {max(numbers)}")
        return numbers

    def _row(self, client: int) -> Row | None:
        return self._blocks[client // BLOCK].get(client)

    def _gathered(self, rows: Sequence[Row]) -> Tensor:
        """Gather rows (k, d) for reading only, because a single row in memory is not copied."""
        if self._file is None:
            tensors = [row for row in rows if isinstance(row, Tensor)]
            return tensors[0][None] if len(tensors) == 1 else torch.stack(tensors)
        gathered = self._like.new_empty(len(rows), self._like.numel())
        for row, into in zip(rows, gathered, strict=True):
            self._read(row, into)
        return gathered

    def _read(self, row: Row, into: Tensor) -> None:
        if isinstance(row, Tensor):
            into.copy_(row)
        else:
            row.file.read(row, into)
