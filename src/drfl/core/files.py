"""Safe readers for files from users, sites and received folders.

drfl opens such files only through this module and those for the formats: :mod:`drfl.core.json_toml`,
:mod:`drfl.core.csv_files`, :mod:`drfl.core.parquet_files`, :mod:`drfl.core.array_files` and
:mod:`drfl.core.tensor_files`. No file is trusted. Only regular files are opened, every read has a limit, the sizes that
an archive or header declares are checked before memory is allocated, and every fault becomes a one-line error.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from drfl.core.byte_units import byte_unit
from drfl.core.errors import InputError

LIMIT = "DRFL_FILE_LIMIT"
"""Environment variable that limits the memory that one file may need, such as "8G"."""

COMFORTABLE = 400_000_000
"""Bytes of memory that any file may need, however small it is on the disk."""

MOST_RATIO = 100
"""Maximum expansion ratio: bytes of memory per byte on the disk, for files that need more than :data:`COMFORTABLE`."""

TEXT_LIMIT = 2**26
"""Maximum size in bytes of a JSON or other text file that describes a run or a site."""

LONGEST_LINE = 2**24
"""Maximum number of characters in a line of a CSV file."""

CHUNK = 2**20
"""Number of bytes read at a time."""

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}


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
            f"{path_text(path)} has {size_text(size)} and needs {size_text(needed)} of memory, more than the limit of "
            f"{size_text(allowed)}. If you trust the file, raise the limit with {LIMIT} (for example 8G).",
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
                f"file {path_text(path)} does not exist{_after(remedy)}", code="file-not-found", field=str(path)
            ) from None
        if isinstance(error, OSError) and error.errno == errno.ELOOP:
            raise InputError(
                f"{path_text(path)} is a link, not a regular file{_after(remedy)}", code="not-a-file", field=str(path)
            ) from None
        # A name with a zero byte raises ValueError.
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(
            f"cannot read {path_text(path)}: {reason}{_after(remedy)}", code="file-unreadable", field=str(path)
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
            f"{path_text(path)} is {kind}, not a regular file{_after(remedy)}", code="not-a-file", field=str(path)
        )


def _check_size(path: Path, size: int, limit: int | None) -> None:
    most = memory_limit() if limit is None else limit
    if size > most:
        advice = f". Set {LIMIT} to a larger size, or use a smaller file." if limit is None else ""
        raise InputError(
            f"{path_text(path)} has {size_text(size)}, more than the limit of {size_text(most)}{advice}",
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
    what = f"{path_text(path)} {problem}" if problem else f"cannot read {path_text(path)}"
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
        while piece := file.read(min(CHUNK, most + 1 - len(data))):
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
        while piece := unpacked.read(CHUNK):
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
        while piece := file.read(CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def read_text(path: Path, *, limit: int | None = TEXT_LIMIT, follow: bool = True, remedy: str = "") -> str:
    """Read a UTF-8 text file without translating newlines; see :func:`open_file` for the arguments."""
    data = read_bytes(path, limit=limit, follow=follow, remedy=remedy)
    with reading(path, "is not UTF-8 text", remedy):
        return data.decode("utf-8-sig")  # some editors on Windows begin a file with a byte order mark


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
                    f"{path_text(path)} has a line of more than {LONGEST_LINE:,} characters",
                    code="damaged-file",
                    field=str(path),
                )
            yield line


def path_text(path: Path) -> str:
    """Return a path for a message, without its middle if it is very long."""
    text = str(path)
    return text if len(text) <= 300 else f"{text[:140]}…{text[-140:]}"


def _after(remedy: str) -> str:
    return f". {remedy[0].upper()}{remedy[1:]}" if remedy else ""


def size_text(size: int) -> str:
    """Return a number of bytes for a message, such as "4.2 GB"."""
    if size < 10_000:
        return f"{size} bytes"
    unit, name = byte_unit(size)
    return f"{size / unit:,.4g} {name}"
