"""Vectors of one length in a file that vanishes with its last user."""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path

import torch
from torch import Tensor

from drfl.errors import InputError


class RowFile:
    """Rows of one length and type in a temporary file; a slot is used again once its row is no longer held.

    The file has no name (it is unlinked when it is opened), so the system frees it when the process ends, however it
    ends. It is written and read by calls, not mapped into memory: a full disk is an error here, not a signal.

    Args:
        folder: where the file lies.
        like: (d,) its length and type are those of the rows.

    Raises:
        InputError: there is no such folder, it cannot be written to, or ``like`` is not on the CPU.
    """

    def __init__(self, folder: str, like: Tensor) -> None:
        if like.device.type != "cpu":
            raise InputError(f"table_dir needs models on the CPU, not on {like.device}: leave it out there")
        if not Path(folder).is_dir():
            raise InputError(f"table_dir '{folder}' is not a folder: make it, or give another")
        self.folder, self._like = folder, like.detach()[:0].clone()
        self._d, self._size = like.numel(), like.numel() * like.element_size()
        self._free: list[int] = []
        self.slots = 0
        try:
            self._fd, name = tempfile.mkstemp(prefix="drfl-", dir=folder)
            os.unlink(name)
        except OSError as error:
            raise InputError(f"table_dir '{folder}' cannot be written to: {error.strerror or error}") from error
        weakref.finalize(self, os.close, self._fd)

    def hold(self, row: Tensor) -> Slot:
        """Write a row (d,); it stays as long as the slot is held.

        Raises:
            InputError: the disk is full or fails.
        """
        slot = Slot(self, self._free.pop() if self._free else self._next())
        data, at = _bytes(row.contiguous()), slot.number * self._size
        try:
            while data:  # a call may write less than it is given
                written = os.pwrite(self._fd, data, at)
                data, at = data[written:], at + written
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"table_dir '{self.folder}' took {self.slots} rows, then: {reason}") from error
        return slot

    def read(self, slot: Slot, into: Tensor) -> None:
        """Copy the row of a slot into a contiguous vector (d,) of the rows' type.

        Raises:
            InputError: the disk fails.
        """
        data, at = _bytes(into), slot.number * self._size
        try:
            while data:
                got = os.preadv(self._fd, [data], at)
                if not got:
                    raise OSError("it ended too early")
                data, at = data[got:], at + got
        except OSError as error:
            raise InputError(f"a row cannot be read from table_dir '{self.folder}': {error}") from error

    def empty(self, *shape: int) -> Tensor:
        """Memory for rows."""
        return self._like.new_empty(*shape)

    def release(self, number: int) -> None:
        """The slot may be used again."""
        self._free.append(number)

    def _next(self) -> int:
        self.slots += 1
        return self.slots - 1


class Slot:
    """A row's place in the file, given back when nobody holds it."""

    __slots__ = ("__weakref__", "file", "number")

    def __init__(self, file: RowFile, number: int) -> None:
        self.file, self.number = file, number
        weakref.finalize(self, file.release, number).atexit = False


def _bytes(row: Tensor) -> memoryview:
    """The memory of a contiguous vector."""
    return row.view(torch.uint8).numpy().data
