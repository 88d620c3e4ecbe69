"""The one place that opens files from users, sites and received folders.

Nothing here trusts a file. Only regular files are opened, every read has a limit, an archive or a header is checked
against what the file can hold before memory is set aside for it, and every fault becomes one line.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import math
import os
import re
import stat
import tomllib
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

from drfl.core.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    from torch import Tensor

LIMIT = "DRFL_FILE_LIMIT"
"""The environment variable that sets how much memory one file may need, such as "8G"."""

COMFORTABLE = 400_000_000
"""Bytes of memory that any file may need, however small it is."""

MOST_RATIO = 100
"""Beyond :data:`COMFORTABLE`, bytes that a byte on the disk may expand to."""

SETTINGS_LIMIT = 2**20
"""Bytes of a TOML file: tomllib needs some five seconds for so many."""

TEXT_LIMIT = 2**26
"""Bytes of a JSON or another text file that describes a run or a site."""

LONGEST_LINE = 2**24
"""Characters of a line of a CSV file."""

MOST_COLUMNS = 100_000
"""Columns of a table."""

DEEPEST = 100
"""Lists and tables inside each other, in JSON and TOML: what walks through them later must not run out of stack."""

HEADER_LIMIT = 2**24
"""Bytes of the header of a safetensors file; those of large language models have some 200 KB."""

COPIES = 6
"""How often a table lies in memory while it is turned into tensors."""

ROW = 100
"""Bytes that a row's client or class takes as a Python object."""

_CHUNK = 2**20
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}
_DOTTED = re.compile(
    rb"""(?:(?<![\w-])[\w-]+|"[^"\n]*"|'[^'\n]*')(?:[ \t]*\.[ \t]*(?:[\w-]+|"[^"\n]*"|'[^'\n]*')){100}"""
)
"""A dotted key of so many parts that tomllib, which takes the square of their number, would not come to an end."""


def memory_limit() -> int:
    """Bytes that one file may need: what ``DRFL_FILE_LIMIT`` says, else half of the machine's memory.

    Raises:
        InputError: ``DRFL_FILE_LIMIT`` is not a size.
    """
    own = _own_limit()
    if own is not None:
        return own
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, OSError, ValueError):  # not on this system
        return 2**32


def _own_limit() -> int | None:
    text = os.environ.get(LIMIT)
    if not text:
        return None
    found = re.fullmatch(r"\s*([0-9]{1,15})\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE | re.ASCII)
    if found is None:
        raise InputError(f"{LIMIT} must be a size such as 500M or 8G, not '{text}'", code="invalid-value", field=LIMIT)
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[found[2].upper()]


def check_expansion(path: Path, size: int, needed: int, ratio: int = MOST_RATIO) -> None:
    """Make sure that a file does not need far more memory than its size suggests, or than the machine has.

    Data that compress well are welcome up to :data:`COMFORTABLE` bytes; beyond, the file must have its share on the
    disk, as an archive of a few megabytes must not fill the memory.

    Args:
        path: the file.
        size: its bytes on the disk.
        needed: bytes of memory that its content takes.
        ratio: bytes of content that a byte on the disk may stand for.

    Raises:
        InputError: it needs too much; names the limit and the remedy.
    """
    # A limit set by the user also replaces the ratio: a trusted file may compress extremely well.
    own, most = _own_limit(), memory_limit()
    allowed = most if own is not None else min(most, max(COMFORTABLE, ratio * size))
    if needed > allowed:
        raise InputError(
            f"{_shown(path)} has {_bytes(size)} and needs {_bytes(needed)} of memory, more than the limit of "
            f"{_bytes(allowed)}: if you trust it, set {LIMIT} (such as 8G)",
            code="file-too-large",
            field=str(path),
        )


def open_file(path: Path, *, limit: int | None = None, follow: bool = True, remedy: str = "") -> BinaryIO:
    """Open a regular file to read its bytes.

    Args:
        path: the file.
        limit: the most bytes that it may have; None = :func:`memory_limit`, which the user can raise.
        follow: whether a link is followed. A link in a folder that somebody sent could bring any file of the reader's
            into a report, so the files of such a folder are opened without.
        remedy: what to do if it cannot be read, for the message.

    Raises:
        InputError: there is no such file, it is not a regular file, is too large, or cannot be opened.
    """
    # Without O_NONBLOCK a named pipe would wait for a writer, for ever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
    flags |= 0 if follow else getattr(os, "O_NOFOLLOW", 0)
    try:
        # Before it is opened, as opening a device may have effects; and after, as another file may take its name.
        _check_regular(path, os.stat(path, follow_symlinks=follow), remedy)
        handle = os.open(path, flags)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise InputError(
                f"there is no file {_shown(path)}{_after(remedy)}", code="file-not-found", field=str(path)
            ) from None
        if isinstance(error, OSError) and error.errno == errno.ELOOP:
            raise InputError(
                f"{_shown(path)} is a link, not a regular file{_after(remedy)}", code="not-a-file", field=str(path)
            ) from None
        # A name with a zero byte raises ValueError.
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(
            f"cannot read {_shown(path)}: {reason}{_after(remedy)}", code="file-unreadable", field=str(path)
        ) from None
    try:
        # The open file is checked again: another file may have taken the name between stat and open.
        found = os.fstat(handle)
        _check_regular(path, found, remedy)
        _check_size(path, found.st_size, limit)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _check_regular(path: Path, found: os.stat_result, remedy: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise InputError(
            f"{_shown(path)} is {kind}, not a regular file{_after(remedy)}", code="not-a-file", field=str(path)
        )


def _check_size(path: Path, size: int, limit: int | None) -> None:
    most = memory_limit() if limit is None else limit
    if size > most:
        more = f": set {LIMIT} to a larger size, or give a smaller file" if limit is None else ""
        raise InputError(
            f"{_shown(path)} has {_bytes(size)}, more than the limit of {_bytes(most)}{more}",
            code="file-too-large",
            field=str(path),
        )


@contextmanager
def reading(path: Path, problem: str = "", remedy: str = "") -> Iterator[None]:
    """Turn whatever a parser raises for a file's content into one line that names the file.

    Args:
        path: the file.
        problem: what to say of it, such as "is not valid TOML"; empty = that it cannot be read.
        remedy: what to do about it.

    Raises:
        InputError: for any other error.
    """
    what = f"{_shown(path)} {problem}" if problem else f"cannot read {_shown(path)}"
    try:
        yield
    except InputError:
        raise
    except MemoryError:
        raise InputError(f"{what}: it needs more memory than there is", code="out-of-memory", field=str(path)) from None
    except RecursionError:
        raise InputError(
            f"{what}: it is nested too deeply{_after(remedy)}", code="damaged-file", field=str(path)
        ) from None
    except Exception as error:  # for crafted bytes the parsers of zip, Parquet and the like raise a dozen kinds
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = " ".join(reason.split())[:300] or type(error).__name__
        raise InputError(f"{what}: {reason}{_after(remedy)}", code="damaged-file", field=str(path)) from error


def read_bytes(path: Path, *, limit: int | None = TEXT_LIMIT, follow: bool = True, remedy: str = "") -> bytes:
    """The content of a file, see :func:`open_file`."""
    with open_file(path, limit=limit, follow=follow, remedy=remedy) as file, reading(path, remedy=remedy):
        return read_whole(file, path, limit)


def read_whole(file: IO[bytes], path: Path, limit: int | None) -> bytes:
    """The rest of an open file, in pieces, as a file may hold more than the size that it has.

    Raises:
        InputError: it is more than the limit.
    """
    most = memory_limit() if limit is None else limit
    data = bytearray()
    # One byte beyond the limit is enough to know that it is exceeded.
    while piece := file.read(min(_CHUNK, most + 1 - len(data))):
        data += piece
        _check_size(path, len(data), limit)
    return bytes(data)


def read_gzip(path: Path, *, remedy: str = "") -> io.BytesIO:
    """The unpacked content of a gzip file, which is read to its end, so that its checksum is verified.

    Raises:
        InputError: see :func:`open_file`; or it is damaged, or unpacks to more than :func:`check_expansion` allows.
    """
    content = io.BytesIO()
    with open_file(path, remedy=remedy) as file, reading(path, remedy=remedy), gzip.GzipFile(fileobj=file) as unpacked:
        size = os.fstat(file.fileno()).st_size
        while piece := unpacked.read(_CHUNK):
            content.write(piece)
            check_expansion(path, size, content.tell())
    content.seek(0)
    return content


def open_text(path: Path, *, limit: int | None = None, follow: bool = True, remedy: str = "") -> BinaryIO:
    """Open a text file, unpacked if its name ends in .gz; arguments and errors as of :func:`open_file`."""
    if path.suffix.lower() == ".gz":
        return cast(BinaryIO, read_gzip(path, remedy=remedy))
    return open_file(path, limit=limit, follow=follow, remedy=remedy)


def sha256_of(path: Path, *, follow: bool = True) -> str:
    """The SHA-256 of a file's bytes, of any size that the user allows, see :func:`open_file`."""
    digest = hashlib.sha256()
    with open_file(path, follow=follow) as file, reading(path):
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def read_text(path: Path, *, limit: int | None = TEXT_LIMIT, follow: bool = True, remedy: str = "") -> str:
    """The content of a file of UTF-8 text, with newlines as they are, see :func:`open_file`."""
    data = read_bytes(path, limit=limit, follow=follow, remedy=remedy)
    with reading(path, "is not UTF-8 text", remedy):
        return data.decode()


def read_json(
    path: Path,
    *,
    limit: int | None = TEXT_LIMIT,
    follow: bool = True,
    problem: str = "is not valid JSON",
    remedy: str = "",
) -> object:
    """The content of a JSON file, see :func:`open_file`."""
    data = read_bytes(path, limit=limit, follow=follow, remedy=remedy)
    return parse_json(data, path, problem, remedy)


def parse_json(data: bytes, path: Path, problem: str = "is not valid JSON", remedy: str = "") -> object:
    """The value that JSON stands for.

    Args:
        data: the text.
        path: the file that it is from, for messages.
        problem: see :func:`reading`.
        remedy: see :func:`reading`.

    Raises:
        InputError: it is not JSON, nests too deeply, or is so dense that it would take up far more than its size.
    """
    # An empty list of two bytes takes about 70 bytes as an object. Counting brackets bounds the memory before parsing.
    openings = data.count(b"[") + data.count(b"{")
    check_expansion(path, len(data), 70 * openings + 40 * data.count(b",") + 4 * len(data), ratio=20)
    with reading(path, problem, remedy):
        content: object = json.loads(data)
        # Walking through a large file takes time, and a few brackets cannot nest too deeply.
        if openings > DEEPEST:
            _check_depth(content)
        return content


def read_toml(
    path: Path, *, follow: bool = True, problem: str = "is not valid TOML", remedy: str = ""
) -> dict[str, object]:
    """The tables of a TOML file, see :func:`open_file`."""
    data = read_bytes(path, limit=SETTINGS_LIMIT, follow=follow, remedy=remedy)
    with reading(path, problem, remedy):
        if _DOTTED.search(data):
            raise ValueError("a key has too many dots")
        content = tomllib.loads(data.decode().replace("\r\n", "\n"))
        _check_depth(content)
        return content


def _check_depth(content: object) -> None:
    """Raises RecursionError unless values nest at most :data:`DEEPEST` levels."""
    level: list[object] = [content]
    # This goes level by level, as a recursive check could itself run out of stack.
    for _ in range(DEEPEST):
        level = [
            part
            for value in level
            if isinstance(value, dict | list)
            for part in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise RecursionError


def lines(file: BinaryIO, path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The lines of an open text file with their ends, each of bounded length, for :func:`csv.reader`.

    Raises:
        InputError: A line is too long.
        UnicodeDecodeError: The file does not have this encoding.
    """
    with io.TextIOWrapper(file, encoding=encoding, newline="") as text:
        while line := text.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise InputError(
                    f"{_shown(path)} has a line of more than {LONGEST_LINE:,} characters",
                    code="damaged-file",
                    field=str(path),
                )
            yield line


class _Table(io.RawIOBase):
    """A file of text as pandas reads it, which stops at the first zero byte: a hole in a file can be endless."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - as in the base class
        """Fill the buffer."""
        count = cast(io.BufferedReader, self._file).readinto(buffer)
        # pandas would read through the whole hole, however small the file is on the disk.
        if b"\0" in bytes(buffer[:count]):
            raise ValueError("it holds zero bytes, so it is not a table in UTF-8")
        return count


def read_csv(
    path: Path,
    *,
    limit: int | None = None,
    follow: bool = True,
    remedy: str = "",
    **options: Any,  # noqa: ANN401 - as pandas has them
) -> pd.DataFrame:
    """Read a table from a CSV file, which may be compressed as .gz.

    Args:
        path: The file.
        limit: See :func:`open_file`.
        follow: See :func:`open_file`.
        remedy: See :func:`open_file`.
        options: Of :func:`pandas.read_csv`.

    Raises:
        InputError: The file cannot be read, or has too many columns.
    """
    import pandas as pd

    with open_text(path, limit=limit, follow=follow, remedy=remedy) as file, reading(path, remedy=remedy):
        # Columns are counted before pandas allocates memory for each of them.
        head = file.readline(LONGEST_LINE)
        _check_columns(path, head.count(options.get("sep", ",").encode()) + 1)
        file.seek(0)
        with warnings.catch_warnings():
            # Rows longer than the head: pandas would take the first column for row names, and shift the rest.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(io.BufferedReader(_Table(file), _CHUNK), **options)


def _check_columns(path: Path, count: int) -> None:
    if count > MOST_COLUMNS:
        raise InputError(
            f"{_shown(path)} has {count:,} columns, more than the limit of {MOST_COLUMNS:,}: give them as one array in "
            "an npz file",
            code="file-too-large",
            field=str(path),
        )


def read_parquet(path: Path, drop: Sequence[str] = ()) -> pd.DataFrame:
    """A table of a Parquet file.

    Args:
        path: the file.
        drop: columns that are not read; they are there, and blank.

    Raises:
        InputError: it cannot be read, needs too much memory, or a column holds lists or other nested values.
        ImportError: pyarrow is not installed.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    compute: Any = pc  # its functions are made at import, which type checkers do not see
    with open_file(path) as file, reading(path):
        # The schema is read first: it decides which columns are read as dictionaries.
        with pq.ParquetFile(file) as plain:
            schema, metadata = plain.schema_arrow, plain.metadata
        size = os.fstat(file.fileno()).st_size
        _check_columns(path, len(schema))
        # Dropped columns are never decoded: free text can be most of a file.
        wanted = [name for name in schema.names if name.strip() not in drop]
        words: list[str] = []
        width = 0
        for name in wanted:
            kind = schema.field(name).type
            if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
                raise InputError(
                    f"{_shown(path)}: column '{name}' holds {kind}, not numbers or words: exclude it with drop",
                    code="wrong-type",
                    field=name,
                )
            if _is_fixed(kind) and not pa.types.is_dictionary(kind):
                width += max(8, kind.bit_width // 8)
            else:  # 4 bytes for a place in the column's dictionary, 8 for the address of a word
                width += 12
                words.append(name)
        groups = [metadata.row_group(k) for k in range(metadata.num_row_groups)]
        rows = sum(max(group.num_rows, group.column(0).num_values) for group in groups if group.num_columns)
        pages = sum(_page_bytes(file, group.column(k)) for group in groups for k in range(group.num_columns))
        check_expansion(path, size, COPIES * rows * width + 2 * pages)
        # As dictionaries, because a page of a few bytes can stand for the same long word a million times.
        with pq.ParquetFile(file, read_dictionary=words, pre_buffer=False) as table:
            found = table.read(columns=wanted, use_threads=False, use_pandas_metadata=True)
        for name in words:
            column = found.column(name)
            if pa.types.is_dictionary(column.type) and not _is_fixed(column.type.value_type):
                # Sizes are computed from the dictionary: the decoded words might already fill the memory.
                lengths = (compute.take(compute.binary_length(c.dictionary), c.indices) for c in column.chunks)
                characters = sum(compute.sum(length).as_py() or 0 for length in lengths)
                check_expansion(path, size, COPIES * characters + 2 * pages)
                found = found.set_column(found.schema.get_field_index(name), name, column.cast(schema.field(name).type))
        frame = found.to_pandas()
        for name in schema.names:
            if name not in wanted:
                frame[name] = math.nan
        return frame[[name for name in schema.names if name in frame.columns]]


def _is_fixed(kind: pa.DataType) -> bool:
    try:
        return kind.bit_width >= 0
    except ValueError:  # of words, which have no width of their own
        return False


def _page_bytes(file: BinaryIO, column: Any) -> int:  # noqa: ANN401 - pyarrow has no type for it
    """What the pages of a column unpack to, by their own headers: the metadata at the end of a file may say less."""
    # The dictionary's page, if there is one, comes first. Not every writer sets its offset.
    start = column.data_page_offset
    if column.has_dictionary_page and 0 < (column.dictionary_page_offset or 0) < start:
        start = column.dictionary_page_offset
    end, total = start + column.total_compressed_size, 0
    while start < end:
        file.seek(start)
        header = _Thrift(file).struct()
        unpacked, packed = header.get(2, -1), header.get(3, -1)
        if unpacked < 0 or packed < 0:
            raise ValueError("a page has no size")
        total += unpacked
        start = file.tell() + packed
    return total


class _Thrift:
    """Reads the integers of a structure in Thrift's compact protocol, in which Parquet has its headers."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def struct(self, depth: int = 0) -> dict[int, int]:
        """The integers of a structure by their field's number; the rest is skipped."""
        found, number = {}, 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            if depth > 8:
                raise ValueError("a page's header is nested too deeply")
            kind = head & 15
            if kind in (4, 5, 6):
                found[number] = self._integer()
            elif kind == 3:
                self._byte()
            elif kind == 7:
                self._file.seek(8, os.SEEK_CUR)
            elif kind == 8:
                self._file.seek(self._varint(), os.SEEK_CUR)
            elif kind == 12:
                self.struct(depth + 1)
            elif kind not in (1, 2):  # truth values, which take no bytes; headers have no lists
                raise ValueError("a page has no header")
        return found

    def _byte(self) -> int:
        found = self._file.read(1)
        if not found:
            raise EOFError("it is cut short")
        return found[0]

    def _varint(self) -> int:
        found = 0
        # Each byte holds seven bits, the lowest first. Its eighth bit is set if more bytes follow.
        for shift in range(0, 64, 7):
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
        raise ValueError("a page has no header")

    def _integer(self) -> int:
        # Zigzag encoding writes 0, −1, 1, −2, … as 0, 1, 2, 3, …
        found = self._varint()
        return (found >> 1) ^ -(found & 1)


class Arrays:
    """The arrays of an npz file. Nothing is read before :meth:`read`.

    Args:
        path: the file, for messages.
        archive: the open file.
        size: its bytes.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile, size: int) -> None:
        self.path, self._zip, self._size = path, archive, size
        self.names = [name.removesuffix(".npy") for name in archive.namelist()]

    def read(self, names: Sequence[str]) -> list[np.ndarray]:
        """Some of the arrays, none of which is an object that would have to be unpickled.

        Raises:
            InputError: their headers promise more than the file holds, or they need too much memory.
        """
        from numpy.lib import format as npy

        # NumPy appends .npy to names, and also reads archives whose names lack it.
        members = [next(n for n in (f"{name}.npy", name) if n in self._zip.NameToInfo) for name in names]
        needed = 0
        for name, member in zip(names, members, strict=True):
            info = self._zip.getinfo(member)
            check_expansion(self.path, self._size, info.file_size)
            with self._zip.open(info) as file:
                version = npy.read_magic(file)
                # Version 3 is for field names beyond Latin-1, which plain arrays do not have.
                if version not in ((1, 0), (2, 0)):
                    raise ValueError(f"the array '{name}' has an unknown header")
                header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shape, _, kind = header(file)
                promised = math.prod(shape) * kind.itemsize
                if promised > info.file_size or (not promised and max(shape, default=0) > 0):
                    raise InputError(
                        f"{_shown(self.path)}: the array '{name}' of shape {shape} and type {kind} is not in the file, "
                        f"which has {_bytes(info.file_size)} for it",
                        code="damaged-file",
                        field=name,
                    )
            # As a list of Python's objects, a row takes up to this; as numbers, four or eight bytes each.
            rows, entries = (shape[0] if shape else 1), math.prod(shape)
            needed += info.file_size + entries * max(8, kind.itemsize) + ROW * rows
        check_expansion(self.path, self._size, needed)
        found = []
        for member in members:
            with self._zip.open(member) as file:
                # Unpickling would run code from the file.
                found.append(npy.read_array(cast(Any, file), allow_pickle=False))
        return found


@contextmanager
def open_arrays(path: Path, remedy: str = "") -> Iterator[Arrays]:
    """The arrays of an npz file.

    Raises:
        InputError: it cannot be opened, or is not an npz file.
    """
    with open_file(path, remedy=remedy) as file, reading(path, remedy=remedy), zipfile.ZipFile(file) as archive:
        yield Arrays(path, archive, os.fstat(file.fileno()).st_size)


def read_tensors(
    path: Path, *, limit: int | None = None, follow: bool = True, problem: str = "", remedy: str = ""
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file by name, mapped from the file if the system can, and its metadata.

    Raises:
        InputError: see :func:`open_file`, or it is not such a file.
    """
    from safetensors import safe_open

    with open_file(path, limit=limit, follow=follow, remedy=remedy) as file, reading(path, problem, remedy):
        # The first eight bytes are the length of the header, which safetensors would read whole.
        if int.from_bytes(file.read(8), "little") > HEADER_LIMIT:
            raise ValueError("its header is too large")
        # By the descriptor: another file may have taken the name by now.
        name = f"/proc/self/fd/{file.fileno()}"
        with safe_open(name if os.path.exists(name) else path, framework="pt") as tensors:
            return {key: tensors.get_tensor(key) for key in tensors.keys()}, tensors.metadata() or {}  # noqa: SIM118


def read_pickled_tensors(path: Path, remedy: str = "") -> object:
    """What a ``.pth`` file holds; only tensors and plain values, and nothing in it is executed.

    Raises:
        InputError: see :func:`open_file`, it is not such a file, or unpacks to far more than its size.
    """
    import torch

    problem = "is not a file of weights that drfl reads"
    with open_file(path, remedy=remedy) as file, reading(path, problem, remedy):
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                # torch does not compress weights, so a file that expands far beyond its size is crafted.
                unpacked = sum(info.file_size for info in archive.infolist())
            check_expansion(path, os.fstat(file.fileno()).st_size, unpacked, ratio=2)
        file.seek(0)
        with warnings.catch_warnings(action="ignore"):  # on other versions of pickle, before it fails on them
            return torch.load(file, map_location="cpu", weights_only=True)


def _shown(path: Path) -> str:
    """A path as messages have it, of which a line should remain."""
    text = str(path)
    return text if len(text) <= 300 else f"{text[:140]}…{text[-140:]}"


def _after(remedy: str) -> str:
    return f"; {remedy}" if remedy else ""


def _bytes(size: int) -> str:
    if size < 10_000:
        return f"{size} bytes"
    # The units are decimal, as for disks and downloads.
    power = min(4, int(math.log(size, 1000)))
    return f"{size / 1000**power:,.4g} {' kMGT'[power]}B"
