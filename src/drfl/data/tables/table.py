"""One table: a text file, a Parquet file, a sheet of a workbook or named arrays."""

from __future__ import annotations

import csv
import os
import zipfile
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from drfl.core.errors import InputError, listing, unknown
from drfl.core.files import check_expansion, lines, open_file, open_text, read_csv, read_parquet, reading
from drfl.data.tables.columns import RowName
from drfl.data.tables.npz_arrays import named_arrays
from drfl.data.tables.schema import NUMBERS, TableSchema
from drfl.data.tables.table_paths import workbook
from drfl.data.tables.text_form import TextForm

if TYPE_CHECKING:
    import pandas as pd


USED = ("target", "client", "patient")
"""Roles of a schema's columns that are read although they are not features."""


class Table(NamedTuple):
    """A table and its source.

    Args:
        place: Name of the file, or of another source, for messages.
        frame: Its rows.
        form: Delimiter, decimal mark and encoding of a text file; None for other sources.
    """

    place: str
    frame: pd.DataFrame
    form: TextForm | None = None

    @classmethod
    def read(cls, path: Path, targets: Sequence[str], names: Sequence[str], drop: Sequence[str]) -> Table:
        """Read a file whose columns have no schema.

        The columns ``names`` are text, so that "007" is not 7. In them and in the targets, words such as "NA" never
        mean "missing".
        """
        if not is_text(path):
            return cls.of(str(path), _typed_frame(path, drop))
        form = TextForm.of(path)
        options = {**form.options(), "index_col": False}
        words = _as_text(path, names, options)
        frame = read_csv(path, dtype=words, **options)
        return cls.of(str(path), _with_words(path, frame, (*targets, *words), options), form)

    @classmethod
    def by_schema(cls, path: Path, schema: TableSchema) -> Table:
        """Read a file without the columns that the schema does not use."""
        return cls.whole(path, schema).without_unused(schema)

    @classmethod
    def whole(cls, path: Path, schema: TableSchema | None, text: Sequence[str] = ()) -> Table:
        """Read all columns of a file, as its schema types them. All cells of the columns ``text`` stay text."""
        if schema is not None and not schema.inferred:
            return cls.raw(path, [*text, *(column.name for column in schema.columns if column.type not in NUMBERS)])
        # An inferred schema is of tables that were read like those without a schema.
        targets = [] if schema is None else [column.name for column in schema.targets]
        names = [] if schema is None else [name for name in (schema.client, schema.patient) if name is not None]
        return cls.read(path, targets, [*text, *names], ()).with_numbers([*text, *names])

    @classmethod
    def raw(cls, path: Path, text: Sequence[str]) -> Table:
        """Read a file without interpreting blank cells and words. All cells of the columns ``text`` stay text.

        Decimal commas become points if the file uses them. Columns of numbers alone are numbers.

        Raises:
            InputError: If the file cannot be read.
        """
        from pandas.api.types import is_bool_dtype, is_numeric_dtype

        if not is_text(path):
            return cls.of(str(path), _typed_frame(path, ()))
        form = TextForm.of(path)
        options = {**form.options(), "index_col": False, "keep_default_na": False}
        frame = read_csv(path, low_memory=False, dtype=_as_text(path, text, options), **options)
        truths = [name for name in frame if is_bool_dtype(frame[name])]
        if truths:  # "TRUE" would become True
            again = read_csv(path, usecols=truths, dtype=str, **options)
            frame = frame.assign(**{str(name): again[name] for name in truths})
        if form.decimal == ",":
            for name in (name for name in frame if not is_numeric_dtype(frame[name])):
                frame[name] = frame[name].str.replace(r"^(\s*[-+]?\d+),(\d+\s*)$", r"\1.\2", regex=True)
        return cls.of(str(path), frame, form)

    @classmethod
    def of(cls, place: str, frame: pd.DataFrame, form: TextForm | None = None) -> Table:
        """Check a table, and remove outer blanks from the names of its columns."""
        frame.columns = [str(name).strip() for name in frame.columns]
        columns = list(frame.columns)
        if len(set(columns)) < len(columns):
            twice = next(name for name in columns if columns.count(name) > 1)
            raise InputError(f"{place}: column '{twice}' is there twice", code="duplicate-column", field=twice)
        if not len(frame):
            raise InputError(f"{place} has no rows", code="no-rows", field=place)
        return cls(place, frame, form)

    def without_unused(self, schema: TableSchema) -> Table:
        """Return the table without the columns that the schema does not use."""
        unused = [
            column.name
            for column in schema.columns
            if not column.is_feature and column.role not in USED and column.name in self.frame
        ]
        return self._replace(frame=self.frame.drop(columns=unused))

    def with_numbers(self, names: Sequence[str]) -> Table:
        """Convert texts that are all numbers in columns other than ``names``, which a text file reads as numbers."""
        import pandas as pd
        from pandas.api.types import is_string_dtype

        frame = self.frame
        for name in () if self.form is not None else (name for name in frame.columns if name not in names):
            known = frame[name].dropna()
            if len(known) and is_string_dtype(known) and pd.to_numeric(known, errors="coerce").notna().all():
                frame = frame.assign(**{name: pd.to_numeric(frame[name])})
        return self._replace(frame=frame)

    def row_names(self) -> RowName:
        """Return a function that names rows as people find them, and reads the file only once.

        Lines of a text file may be blank, and a cell may fill several lines.
        """
        starts: list[int] = []

        def name(row: int) -> str:
            if not starts and self.form is not None:
                starts.extend(_starts(Path(self.place), self.form))
            return f"{self.place}, line {starts[row]}" if row < len(starts) else f"{self.place}, row {row + 1}"

        return name


def is_text(path: Path) -> bool:
    """Return whether a file holds text, such as CSV."""
    return workbook(path)[0].name.lower().endswith((".csv", ".csv.gz", ".tsv", ".tsv.gz"))


def _as_text(path: Path, names: Sequence[str], options: Mapping[str, Any]) -> dict[Hashable, type[str]]:
    """Return the columns of a text file to read as text, as options of pandas."""
    head = read_csv(path, nrows=0, **options)
    return {name: str for name in head.columns if str(name).strip() in names}


def _typed_frame(path: Path, drop: Sequence[str]) -> pd.DataFrame:
    """Read a file whose cells have types."""
    suffix = workbook(path)[0].suffix.lower()
    package, read = {
        ".parquet": ("pyarrow", read_parquet),
        ".xlsx": ("openpyxl", _read_sheet),
        ".npz": ("numpy", named_arrays),
    }[suffix]
    try:
        return read(path, drop)
    except ImportError:
        extra = "'drfl[excel]'" if package == "openpyxl" else package
        raise InputError(
            f"{path}: reading {suffix} files needs {package}: pip install {extra}, or give CSV",
            code="package-missing",
            field=package,
        ) from None


def _read_sheet(path: Path, drop: Sequence[str]) -> pd.DataFrame:
    """Read a sheet of a workbook, the only one unless the path names it."""
    import openpyxl  # noqa: F401 - pandas would name neither the file nor the extra
    import pandas as pd

    file, sheet = workbook(path)
    with open_file(file) as content, reading(file):
        with zipfile.ZipFile(content) as archive:
            unpacked = sum(part.file_size for part in archive.infolist())
        check_expansion(file, os.fstat(content.fileno()).st_size, unpacked)
        with pd.ExcelFile(content, engine="openpyxl") as book:
            if sheet is None and len(book.sheet_names) > 1:
                names = [f"'{name}'" for name in book.sheet_names]
                raise InputError(
                    f"{file} has the sheets {listing(names, 'sheet')}: name one, "
                    f"such as '{file}:{book.sheet_names[0]}'",
                    code="missing-option",
                    field=str(file),
                )
            if sheet is not None and sheet not in book.sheet_names:
                raise unknown(f"sheet in {file}", sheet, [*map(str, book.sheet_names)], field=str(file))
            # As objects, because pandas would read the text "007" as the number 7.
            cells = pd.read_excel(book, sheet_name=sheet or 0, dtype=object, keep_default_na=False, na_values=[""])
            frame = cells.infer_objects()
    return frame.drop(columns=[name for name in frame if str(name).strip() in drop])


def _with_words(path: Path, frame: pd.DataFrame, text: Sequence[Hashable], options: Mapping[str, Any]) -> pd.DataFrame:
    """Restore words such as "NA" and "None" in text columns, which pandas reads as missing."""
    from pandas.api.types import is_numeric_dtype

    words = [
        name
        for name in frame
        if frame[name].isna().any() and (not is_numeric_dtype(frame[name]) or str(name).strip() in map(str, text))
    ]
    if words:
        again = read_csv(path, usecols=words, dtype=str, keep_default_na=False, **options)
        for name in words:
            column = again[name]
            blank = column.str.strip() == ""
            # A numeric column with blanks, or with "NA" in some cells, has missing values.
            if is_numeric_dtype(frame[name]) and not frame[name].isna().all():
                continue
            frame[name] = column.mask(blank)
    return frame


def _starts(path: Path, form: TextForm) -> Iterator[int]:
    """Yield the line in which each row starts."""
    with open_text(path) as file, suppress(csv.Error):  # of a cell that is too long for it
        reader = csv.reader(lines(file, path, form.encoding), delimiter=form.delimiter)
        start, is_head = 1, True
        for cells in reader:
            if "".join(cells).strip() or len(cells) > 1:
                if not is_head:
                    yield start
                is_head = False
            start = reader.line_num + 1
