"""Readers of npz files and folders of npy files, which never unpickle."""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from drfl.core.errors import InputError
from drfl.core.files import check_expansion, open_file, path_text, reading, size_text

if TYPE_CHECKING:
    import numpy as np

ROW = 100
"""Bytes that the client or class of a row takes as a Python object."""


class Arrays:
    """The arrays of an npz file, or of a folder with an npy file for each, which are read by :meth:`read` only.

    Args:
        path: Path of the file or folder, for messages.
        archive: The open npz file; None for a folder.
        size: Size in bytes.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile | None, size: int) -> None:
        self.path, self._zip, self._size = path, archive, size
        names = [file.name for file in sorted(path.glob("*.npy"))] if archive is None else archive.namelist()
        self.names = [name.removesuffix(".npy") for name in names]

    @contextmanager
    def _open(self, name: str) -> Iterator[tuple[IO[bytes], int]]:
        """Open the file of an array, and return its size."""
        if self._zip is None:
            with open_file(self.path / f"{name}.npy") as file:
                yield file, os.fstat(file.fileno()).st_size
        else:
            info = self._member(self._zip, name)
            with self._zip.open(info) as file:
                yield file, info.file_size

    @staticmethod
    def _member(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
        # NumPy appends .npy to names, and also reads archives whose names lack it.
        return archive.getinfo(next(n for n in (f"{name}.npy", name) if n in archive.NameToInfo))

    def _header(self, name: str, file: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        """Read the header: shape, whether the order is Fortran's, and type.

        Raises:
            InputError: If the header declares more data than the file holds.
        """
        from numpy.lib import format as npy

        version = npy.read_magic(cast(Any, file))
        # Version 3 supports field names beyond Latin-1, which plain arrays do not have.
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"the array '{name}' has an unknown header")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, kind = read(cast(Any, file))
        if kind.hasobject:
            raise InputError(
                f"{path_text(self.path)}: the array '{name}' holds Python objects, which drfl does not read. Convert "
                "it, for example with .astype(str) or .astype(float)",
                code="unsupported-file",
                field=name,
            )
        declared = math.prod(shape) * kind.itemsize
        room = size - file.tell()
        if declared > room or (not declared and max(shape, default=0) > 0):
            raise InputError(
                f"{path_text(self.path)}: the array '{name}' of shape {shape} and type {kind} is incomplete, the "
                f"file has only {size_text(room)} for it",
                code="damaged-file",
                field=name,
            )
        return shape, is_fortran, kind

    def read(self, names: Sequence[str]) -> list[np.ndarray]:
        """Read arrays by name. Arrays of Python objects are rejected, because unpickling them could run code.

        Raises:
            InputError: If a header declares more data than the file holds, or the arrays need too much memory.
        """
        from numpy.lib import format as npy

        needed = 0
        for name in names:
            with self._open(name) as (file, size):
                check_expansion(self.path, self._size, size)
                shape, _, kind = self._header(name, file, size)
            # An entry takes up to eight bytes as a number, and a row up to ROW bytes in a list of Python objects.
            rows, entries = (shape[0] if shape else 1), math.prod(shape)
            needed += size + entries * max(8, kind.itemsize) + ROW * rows
        check_expansion(self.path, self._size, needed)
        arrays = []
        for name in names:
            with self._open(name) as (file, _):
                # Unpickling would run code from the file.
                arrays.append(npy.read_array(cast(Any, file), allow_pickle=False))
        return arrays

    def mapped(self, name: str, kind: type[np.generic]) -> np.ndarray | None:
        """Map an array of this type into memory, read-only; None if that is not possible, because it is compressed.

        Raises:
            InputError: If its header declares more data than the file holds.
        """
        import numpy as np

        with self._open(name) as (file, size):
            shape, is_fortran, found = self._header(name, file, size)
            offset = file.tell()
        if self._zip is not None:
            info = self._member(self._zip, name)
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                return None
            source = cast(IO[bytes], self._zip.fp)
            # The data follow a header of 30 bytes whose last numbers are the lengths of a name and of extra fields.
            source.seek(info.header_offset + 26)
            offset += info.header_offset + 30 + sum(struct.unpack("<HH", source.read(4)))
        if found != np.dtype(kind) or is_fortran or not math.prod(shape) or offset % found.alignment:
            return None
        path = self.path / f"{name}.npy" if self._zip is None else self.path
        return np.asarray(np.memmap(path, found, "r", offset, shape))


@contextmanager
def open_arrays(path: Path) -> Iterator[Arrays]:
    """Open an npz file, or a folder of npy files.

    Raises:
        InputError: If it cannot be opened, or is neither.
    """
    if os.path.isdir(path):
        with reading(path):
            yield Arrays(path, None, sum(file.stat().st_size for file in path.glob("*.npy")))
        return
    with open_file(path) as file, reading(path), zipfile.ZipFile(file) as archive:
        yield Arrays(path, archive, os.fstat(file.fileno()).st_size)
