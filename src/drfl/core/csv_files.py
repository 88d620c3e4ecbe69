"""Readers of CSV files with limits on rows and columns."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from drfl.core.csv_cells import unescape_formula
from drfl.core.errors import InputError
from drfl.core.files import CHUNK, LONGEST_LINE, open_text, path_text, reading

if TYPE_CHECKING:
    import pandas as pd

MOST_COLUMNS = 100_000
"""Maximum number of columns of a table."""


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
        limit: See :func:`drfl.core.files.open_file`.
        follow: See :func:`drfl.core.files.open_file`.
        remedy: See :func:`drfl.core.files.open_file`.
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
        check_columns(path, head.count(options.get("sep", ",").encode()) + 1)
        file.seek(0)
        with warnings.catch_warnings():
            # If rows are longer than the header, pandas warns, uses the first column as row names and shifts the rest.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            content = io.BufferedReader(_Table(file, options.get("encoding", "utf-8")), CHUNK)
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


def check_columns(path: Path, count: int) -> None:
    """Raise InputError if a table has more than :data:`MOST_COLUMNS` columns."""
    if count > MOST_COLUMNS:
        raise InputError(
            f"{path_text(path)} has {count:,} columns, more than the limit of {MOST_COLUMNS:,}. Store them as one "
            "array in an npz file.",
            code="file-too-large",
            field=str(path),
        )
