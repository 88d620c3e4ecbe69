"""A reader of Parquet files that checks their declared sizes before it allocates memory."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from drfl.core.csv_files import check_columns
from drfl.core.errors import InputError
from drfl.core.files import check_expansion, open_file, path_text, reading

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

COPIES = 6
"""Number of copies of a table that are in memory at the same time while it is converted to tensors."""


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
        check_columns(path, len(schema))
        # Dropped columns are never decoded, because free text can be most of a file.
        wanted = [name for name in schema.names if name.strip() not in drop]
        words: list[str] = []
        width = 0
        for name in wanted:
            kind = schema.field(name).type
            if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
                raise InputError(
                    f"{path_text(path)}: column '{name}' must hold numbers or words, but holds {kind}. "
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
