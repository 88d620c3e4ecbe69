"""Safe readers for files from users, sites and received folders. drfl opens such files only through this module.

No file is trusted. Only regular files are opened, every read has a limit, the sizes that an archive or header declares
are checked before memory is allocated, and every fault becomes a one-line error.
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
import struct
import tomllib
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

from drfl.core.byte_units import byte_unit
from drfl.core.csv_cells import unescape_formula
from drfl.core.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    from torch import Tensor

LIMIT = "DRFL_FILE_LIMIT"
"""Environment variable that limits the memory that one file may need, such as "8G"."""

COMFORTABLE = 400_000_000
"""Bytes of memory that any file may need, however small it is on the disk."""

MOST_RATIO = 100
"""Maximum expansion ratio: bytes of memory per byte on the disk, for files that need more than :data:`COMFORTABLE`."""

SETTINGS_LIMIT = 2**20
"""Maximum size of a TOML file in bytes. tomllib needs about five seconds for this size."""

TEXT_LIMIT = 2**26
"""Maximum size in bytes of a JSON or other text file that describes a run or a site."""

LONGEST_LINE = 2**24
"""Maximum number of characters in a line of a CSV file."""

MOST_COLUMNS = 100_000
"""Maximum number of columns of a table."""

DEEPEST = 100
"""Maximum nesting depth of JSON and TOML, so that recursive code that reads the content does not overflow the stack."""

HEADER_LIMIT = 2**24
"""Maximum size in bytes of the header of a safetensors file. Large language models need about 200 KB."""

COPIES = 6
"""Number of copies of a table that are in memory at the same time while it is converted to tensors."""

ROW = 100
"""Bytes that the client or class of a row takes as a Python object."""

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
"""A dotted key with more than 100 parts. The running time of tomllib is quadratic in the number of parts."""


def memory_limit() -> int:
    """Return the bytes of memory that one file may need: ``DRFL_FILE_LIMIT``, or by default half of all memory.

    Raises:
        InputError: If ``DRFL_FILE_LIMIT`` is not a size.
    """
    user_limit = _user_limit()
    if user_limit is not None:
        return user_limit
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, OSError, ValueError):  # This system does not report its memory.
        return 2**32


def _user_limit() -> int | None:
    text = os.environ.get(LIMIT)
    if not text:
        return None
    match = re.fullmatch(r"\s*([0-9]{1,15})\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE | re.ASCII)
    if match is None:
        raise InputError(f"{LIMIT} must be a size such as 500M or 8G, got '{text}'", code="invalid-value", field=LIMIT)
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match[2].upper()]


def check_expansion(path: Path, size: int, needed: int, ratio: int = MOST_RATIO) -> None:
    """Check that a file does not need far more memory than its size suggests, or more than the machine has.

    Files that need up to :data:`COMFORTABLE` bytes may be compressed by any ratio. Larger ones must not exceed
    ``ratio``, so that an archive of a few megabytes cannot fill the memory.

    Args:
        path: Path of the file.
        size: Size of the file on the disk in bytes.
        needed: Memory that the content takes, in bytes.
        ratio: Maximum bytes of content per byte on the disk.

    Raises:
        InputError: If the file needs too much memory. The message states the limit and how to raise it.
    """
    # A limit set by the user also replaces the ratio, because a trusted file may compress extremely well.
    user_limit, most = _user_limit(), memory_limit()
    allowed = most if user_limit is not None else min(most, max(COMFORTABLE, ratio * size))
    if needed > allowed:
        raise InputError(
            f"{_shown(path)} has {_bytes(size)} and needs {_bytes(needed)} of memory, more than the limit of "
            f"{_bytes(allowed)}. If you trust the file, raise the limit with {LIMIT} (for example 8G).",
            code="file-too-large",
            field=str(path),
        )


def open_file(path: Path, *, limit: int | None = None, follow: bool = True, remedy: str = "") -> BinaryIO:
    """Open a regular file for reading bytes.

    Args:
        path: Path of the file.
        limit: Maximum size in bytes; None = :func:`memory_limit`, which the user can raise.
        follow: Whether to follow links. Files in a received folder are opened without following links, because a link
            could bring any file of the reader's machine into a report.
        remedy: Advice to append to the error message if the file cannot be read.

    Raises:
        InputError: If the file does not exist, is not a regular file, is too large, or cannot be opened.
    """
    # Without O_NONBLOCK, opening a named pipe would wait for a writer forever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
    flags |= 0 if follow else getattr(os, "O_NOFOLLOW", 0)
    try:
        # Check before opening, because opening a device may have effects. Check again afterwards, because another file
        # may have taken the name.
        _check_regular(path, os.stat(path, follow_symlinks=follow), remedy)
        handle = os.open(path, flags)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise InputError(
                f"file {_shown(path)} does not exist{_after(remedy)}", code="file-not-found", field=str(path)
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
        status = os.fstat(handle)
        _check_regular(path, status, remedy)
        _check_size(path, status.st_size, limit)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _check_regular(path: Path, status: os.stat_result, remedy: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a special file")
        raise InputError(
            f"{_shown(path)} is {kind}, not a regular file{_after(remedy)}", code="not-a-file", field=str(path)
        )


def _check_size(path: Path, size: int, limit: int | None) -> None:
    most = memory_limit() if limit is None else limit
    if size > most:
        advice = f". Set {LIMIT} to a larger size, or use a smaller file." if limit is None else ""
        raise InputError(
            f"{_shown(path)} has {_bytes(size)}, more than the limit of {_bytes(most)}{advice}",
            code="file-too-large",
            field=str(path),
        )


@contextmanager
def reading(path: Path, problem: str = "", remedy: str = "") -> Iterator[None]:
    """Turn any exception that a parser raises for a file's content into a one-line error that names the file.

    Args:
        path: Path of the file.
        problem: Statement about the file for the message, such as "is not valid TOML"; empty = "cannot read" it.
        remedy: Advice to append to the message.

    Raises:
        InputError: If the block raises any exception.
    """
    what = f"{_shown(path)} {problem}" if problem else f"cannot read {_shown(path)}"
    try:
        yield
    except InputError:
        raise
    except MemoryError:
        raise InputError(f"{what}: the machine ran out of memory", code="out-of-memory", field=str(path)) from None
    except RecursionError:
        raise InputError(
            f"{what}: it is nested too deeply{_after(remedy)}", code="damaged-file", field=str(path)
        ) from None
    except Exception as error:  # The parsers of zip, Parquet and so on raise a dozen kinds for crafted bytes.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = " ".join(reason.split())[:300].rstrip(".") or type(error).__name__
        raise InputError(f"{what}: {reason}{_after(remedy)}", code="damaged-file", field=str(path)) from error


def read_bytes(path: Path, *, limit: int | None = TEXT_LIMIT, follow: bool = True, remedy: str = "") -> bytes:
    """Read the content of a file; see :func:`open_file` for the arguments."""
    with open_file(path, limit=limit, follow=follow, remedy=remedy) as file, reading(path, remedy=remedy):
        most = memory_limit() if limit is None else limit
        data = bytearray()
        # Read in pieces, because a file can yield more bytes than its reported size. One byte beyond the limit is
        # enough to detect that it is exceeded.
        while piece := file.read(min(_CHUNK, most + 1 - len(data))):
            data += piece
            _check_size(path, len(data), limit)
        return bytes(data)


def read_gzip(path: Path, *, remedy: str = "") -> io.BytesIO:
    """Unpack a gzip file. It is read to its end, so that its checksum is verified.

    Raises:
        InputError: If the file cannot be opened (see :func:`open_file`), is damaged, or unpacks to more than
            :func:`check_expansion` allows.
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
    """Open a text file, unpacked if its name ends in .gz; arguments and errors are those of :func:`open_file`."""
    if path.suffix.lower() == ".gz":
        return cast(BinaryIO, read_gzip(path, remedy=remedy))
    return open_file(path, limit=limit, follow=follow, remedy=remedy)


def sha256_of(path: Path, *, follow: bool = True) -> str:
    """Compute the SHA-256 of a file. Its size is limited as in :func:`open_file`."""
    digest = hashlib.sha256()
    with open_file(path, follow=follow) as file, reading(path):
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def read_text(path: Path, *, limit: int | None = TEXT_LIMIT, follow: bool = True, remedy: str = "") -> str:
    """Read a UTF-8 text file without translating newlines; see :func:`open_file` for the arguments."""
    data = read_bytes(path, limit=limit, follow=follow, remedy=remedy)
    with reading(path, "is not UTF-8 text", remedy):
        return data.decode("utf-8-sig")  # some editors on Windows begin a file with a byte order mark


def read_json(
    path: Path,
    *,
    limit: int | None = TEXT_LIMIT,
    follow: bool = True,
    problem: str = "is not valid JSON",
    remedy: str = "",
) -> object:
    """Read a JSON file; see :func:`open_file` and :func:`reading` for the arguments."""
    data = read_bytes(path, limit=limit, follow=follow, remedy=remedy)
    return parse_json(data, path, problem, remedy)


def parse_json(data: bytes, path: Path, problem: str = "is not valid JSON", remedy: str = "") -> object:
    """Parse JSON.

    Args:
        data: The JSON text.
        path: Path of the file that the text comes from, for messages.
        problem: See :func:`reading`.
        remedy: See :func:`reading`.

    Raises:
        InputError: If the text is not JSON, is nested too deeply, or would need far more memory than its size suggests.
    """
    # An empty list takes two bytes of text but about 70 bytes as an object. Counting brackets bounds the memory before
    # parsing.
    openings = data.count(b"[") + data.count(b"{")
    check_expansion(path, len(data), 70 * openings + 40 * data.count(b",") + 4 * len(data), ratio=20)
    with reading(path, problem, remedy):
        content: object = json.loads(data)
        # Checking the depth of a large file takes time, and a few brackets cannot nest too deeply.
        if openings > DEEPEST:
            _check_depth(content)
        return content


def read_toml(
    path: Path, *, follow: bool = True, problem: str = "is not valid TOML", remedy: str = ""
) -> dict[str, object]:
    """Read a TOML file; see :func:`open_file` and :func:`reading` for the arguments."""
    data = read_bytes(path, limit=SETTINGS_LIMIT, follow=follow, remedy=remedy)
    with reading(path, problem, remedy):
        if _DOTTED.search(data):
            raise ValueError("a key has too many dots")
        content = tomllib.loads(data.decode("utf-8-sig").replace("\r\n", "\n"))
        _check_depth(content)
        return content


def toml_value(text: str) -> object:
    """Return the TOML value of a text, or the text itself if it is not a TOML value."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # also for numbers with thousands of digits and for deep nesting
        return text


def _check_depth(content: object) -> None:
    """Raise RecursionError if values are nested more than :data:`DEEPEST` levels deep."""
    level: list[object] = [content]
    # Go level by level, because a recursive check could itself overflow the stack.
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
    """Yield the lines of an open text file with their line ends, for :func:`csv.reader`.

    Raises:
        InputError: If a line is longer than :data:`LONGEST_LINE`.
        UnicodeDecodeError: If the text does not have this encoding.
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
    """A text file for pandas that fails at the first zero byte, unless its encoding has such bytes."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        self._file, self._has_zeros = file, encoding.lower().startswith(("utf-16", "utf-32", "utf16", "utf32"))

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - as in the base class
        """Fill the buffer and return the number of bytes read."""
        count = cast(io.BufferedReader, self._file).readinto(buffer)
        # A sparse file reads as zeros in its holes, which can be huge although the file takes little disk space. pandas
        # would read all of them.
        if not self._has_zeros and b"\0" in bytes(buffer[:count]):
            raise ValueError("it contains zero bytes, so it is not a UTF-8 table")
        return count


def read_csv(
    path: Path,
    *,
    limit: int | None = None,
    follow: bool = True,
    remedy: str = "",
    **options: Any,  # noqa: ANN401 - as in pandas
) -> pd.DataFrame:
    """Read a CSV file with pandas; it may be compressed as .gz.

    Args:
        path: Path of the file.
        limit: See :func:`open_file`.
        follow: See :func:`open_file`.
        remedy: See :func:`open_file`.
        options: Options of :func:`pandas.read_csv`.

    Raises:
        InputError: If the file cannot be read, or has too many columns.
    """
    import pandas as pd

    with open_text(path, limit=limit, follow=follow, remedy=remedy) as file, reading(path, remedy=remedy):
        # Count the columns before pandas allocates memory for each of them.
        for _ in range(options.get("skiprows", 0)):
            file.readline(LONGEST_LINE)
        head = file.readline(LONGEST_LINE)
        _check_columns(path, head.count(options.get("sep", ",").encode()) + 1)
        file.seek(0)
        with warnings.catch_warnings():
            # If rows are longer than the header, pandas warns, uses the first column as row names and shifts the rest.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            content = io.BufferedReader(_Table(file, options.get("encoding", "utf-8")), _CHUNK)
            return pd.read_csv(content, **options)


def read_results(path: Path, *names: str, follow: bool = True, remedy: str = "") -> pd.DataFrame:
    """Read a CSV file that drfl wrote, in which the columns ``names`` hold names of clients or algorithms.

    Names return as they were before :func:`drfl.core.csv_cells.escape_formula`. pandas alone would treat a client
    called "NA" as missing, and turn "007" into a number.

    Raises:
        InputError: See :func:`read_csv`.
    """
    frame = read_csv(path, follow=follow, remedy=remedy)
    for name in frame.columns.intersection(list(names)):
        cells = read_csv(path, follow=follow, remedy=remedy, usecols=[name], dtype=str, keep_default_na=False)
        frame[name] = cells[name].map(unescape_formula)
    return frame


def _check_columns(path: Path, count: int) -> None:
    if count > MOST_COLUMNS:
        raise InputError(
            f"{_shown(path)} has {count:,} columns, more than the limit of {MOST_COLUMNS:,}. Store them as one array "
            "in an npz file.",
            code="file-too-large",
            field=str(path),
        )


def read_parquet(path: Path, drop: Sequence[str] = ()) -> pd.DataFrame:
    """Read a Parquet file.

    Args:
        path: Path of the file.
        drop: Columns that are not read. They are in the result, but blank.

    Raises:
        InputError: If the file cannot be read, needs too much memory, or has a column of lists or other nested values.
        ImportError: If pyarrow is not installed.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    compute: Any = pc  # Its functions are created at import, so type checkers do not know them.
    with open_file(path) as file, reading(path):
        # Read the schema first: it decides which columns are read as dictionaries.
        with pq.ParquetFile(file) as plain:
            schema, metadata = plain.schema_arrow, plain.metadata
        size = os.fstat(file.fileno()).st_size
        _check_columns(path, len(schema))
        # Dropped columns are never decoded, because free text can be most of a file.
        wanted = [name for name in schema.names if name.strip() not in drop]
        words: list[str] = []
        width = 0
        for name in wanted:
            kind = schema.field(name).type
            if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
                raise InputError(
                    f"{_shown(path)}: column '{name}' must hold numbers or words, but holds {kind}. "
                    "Exclude the column with `drop`.",
                    code="wrong-type",
                    field=name,
                )
            if _is_fixed(kind) and not pa.types.is_dictionary(kind):
                width += max(8, kind.bit_width // 8)
            else:  # 4 bytes for an index into the column's dictionary and 8 for the address of a word
                width += 12
                words.append(name)
        groups = [metadata.row_group(k) for k in range(metadata.num_row_groups)]
        rows = sum(max(group.num_rows, group.column(0).num_values) for group in groups if group.num_columns)
        pages = sum(_page_bytes(file, group.column(k)) for group in groups for k in range(group.num_columns))
        check_expansion(path, size, COPIES * rows * width + 2 * pages)
        # Read words as dictionaries, because a page of a few bytes can repeat the same long word a million times.
        with pq.ParquetFile(file, read_dictionary=words, pre_buffer=False) as parquet:
            table = parquet.read(columns=wanted, use_threads=False, use_pandas_metadata=True)
        for name in words:
            column = table.column(name)
            if pa.types.is_dictionary(column.type) and not _is_fixed(column.type.value_type):
                # Compute the size from the dictionary, because the decoded words might already fill the memory.
                lengths = (compute.take(compute.binary_length(c.dictionary), c.indices) for c in column.chunks)
                characters = sum(compute.sum(length).as_py() or 0 for length in lengths)
                check_expansion(path, size, COPIES * characters + 2 * pages)
                table = table.set_column(table.schema.get_field_index(name), name, column.cast(schema.field(name).type))
        frame = table.to_pandas()
        # A named index is a column like others. One of consecutive numbers is not among the file's columns.
        index = [name for name in frame.index.names if name is not None]
        frame = frame.reset_index() if index else frame
        for name in schema.names:
            if name not in wanted:
                frame[name] = math.nan
        names = dict.fromkeys((*schema.names, *index))
        return frame[[name for name in names if name in frame.columns]]


def _is_fixed(kind: pa.DataType) -> bool:
    try:
        return kind.bit_width >= 0
    except ValueError:  # Words have no fixed width.
        return False


def _page_bytes(file: BinaryIO, column: Any) -> int:  # noqa: ANN401 - pyarrow has no type for it
    # Sum the unpacked sizes in the page headers, because the metadata at the end of a file may understate them.
    # The dictionary page, if there is one, comes first. Not every writer sets its offset.
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
    """Reader of integers in a structure in Thrift's compact protocol, the format of Parquet's headers."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def struct(self, depth: int = 0) -> dict[int, int]:
        """Read the integers of a structure by field number and skip all other values."""
        integers, number = {}, 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            if depth > 8:
                raise ValueError("a page's header is nested too deeply")
            kind = head & 15
            if kind in (4, 5, 6):
                integers[number] = self._integer()
            elif kind == 3:
                self._byte()
            elif kind == 7:
                self._file.seek(8, os.SEEK_CUR)
            elif kind == 8:
                self._file.seek(self._varint(), os.SEEK_CUR)
            elif kind == 12:
                self.struct(depth + 1)
            elif kind not in (1, 2):  # Booleans take no bytes. Page headers contain no lists.
                raise ValueError("a page has no header")
        return integers

    def _byte(self) -> int:
        byte = self._file.read(1)
        if not byte:
            raise EOFError("it is truncated")
        return byte[0]

    def _varint(self) -> int:
        number = 0
        # Each byte holds seven bits, lowest first. The eighth bit is set if more bytes follow.
        for shift in range(0, 64, 7):
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
        raise ValueError("a page has no header")

    def _integer(self) -> int:
        # Zigzag encoding writes 0, −1, 1, −2, … as 0, 1, 2, 3, …
        number = self._varint()
        return (number >> 1) ^ -(number & 1)


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
                f"{_shown(self.path)}: the array '{name}' holds Python objects, which drfl does not read. Convert it, "
                "for example with .astype(str) or .astype(float)",
                code="unsupported-file",
                field=name,
            )
        declared = math.prod(shape) * kind.itemsize
        room = size - file.tell()
        if declared > room or (not declared and max(shape, default=0) > 0):
            raise InputError(
                f"{_shown(self.path)}: the array '{name}' of shape {shape} and type {kind} is incomplete, the "
                f"file has only {_bytes(room)} for it",
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


def read_tensors(
    path: Path, *, follow: bool = True, problem: str = "", remedy: str = ""
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file: its tensors by name, mapped from the file if the system supports it, and its metadata.

    Raises:
        InputError: If the file cannot be opened (see :func:`open_file`), or is not a safetensors file.
    """
    from safetensors import safe_open

    with open_file(path, follow=follow, remedy=remedy) as file, reading(path, problem, remedy):
        # The first eight bytes are the length of the header. safetensors would read a header of any length.
        if int.from_bytes(file.read(8), "little") > HEADER_LIMIT:
            raise ValueError("its header is too large")
        # Open by descriptor, because another file may have taken the name by now.
        name = f"/proc/self/fd/{file.fileno()}"
        with safe_open(name if os.path.exists(name) else path, framework="pt") as tensors:
            return {key: tensors.get_tensor(key) for key in tensors.keys()}, tensors.metadata() or {}  # noqa: SIM118


def read_pickled_tensors(path: Path) -> object:
    """Read tensors and plain values from a ``.pth`` file without executing code from it.

    Raises:
        InputError: If the file cannot be opened (see :func:`open_file`), is not such a file, or unpacks to far more
            than its size.
    """
    import torch

    with open_file(path) as file, reading(path, "is not a file of weights that drfl can read"):
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                # torch does not compress weights, so a file that expands far beyond its size is crafted.
                unpacked = sum(info.file_size for info in archive.infolist())
            check_expansion(path, os.fstat(file.fileno()).st_size, unpacked, ratio=2)
        file.seek(0)
        with warnings.catch_warnings(action="ignore"):  # torch warns about other pickle versions before it fails.
            return torch.load(file, map_location="cpu", weights_only=True)


def _shown(path: Path) -> str:
    # A path may be thousands of characters long, but the message should remain one line.
    text = str(path)
    return text if len(text) <= 300 else f"{text[:140]}…{text[-140:]}"


def _after(remedy: str) -> str:
    return f". {remedy[0].upper()}{remedy[1:]}" if remedy else ""


def _bytes(size: int) -> str:
    if size < 10_000:
        return f"{size} bytes"
    unit, name = byte_unit(size)
    return f"{size / unit:,.4g} {name}"
