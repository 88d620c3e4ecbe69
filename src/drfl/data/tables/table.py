"""One table: a text file, a Parquet file, a sheet of a workbook or named arrays."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from drfl.core.csv_files import read_csv
from drfl.core.errors import InputError, listing, unknown
from drfl.core.files import check_expansion, open_file, reading
from drfl.core.parquet_files import read_parquet
from drfl.data.tables.columns import NA_WORDS, SHARE_OF_NUMBERS, RowName, row_names_of
from drfl.data.tables.conditions import Condition, text_columns, used_columns
from drfl.data.tables.conform import amount_of, amounts_in, answers_of, stripped
from drfl.data.tables.npz_arrays import named_arrays
from drfl.data.tables.schema import TableSchema
from drfl.data.tables.table_paths import check_format, is_arrays, workbook
from drfl.data.tables.text_form import DETECT, LINE_BREAK, ReadOptions, TextForm, holds_rows, row_error, stray_quote
from drfl.data.tables.written import (
    LIKE_NUMBER,
    Undecided,
    days_of,
    may_mix_thousands,
    mixes_thousands,
    number_form,
    since_1970,
)

if TYPE_CHECKING:
    import pandas as pd


USED = ("target", "client", "patient")
"""Roles of a schema's columns that are read although they are not features."""


class Table(NamedTuple):
    """A table, the names of its source and of its rows for messages, and the form of a text file."""

    place: str
    frame: pd.DataFrame
    row_name: RowName
    form: TextForm | None = None

    @classmethod
    def read(cls, path: Path, text: Sequence[str], options: ReadOptions = DETECT, drop: Sequence[str] = ()) -> Table:
        """Read a file without the columns in ``drop``.

        Cells stay text in the columns ``text``, so that "007" is not 7, and in columns that are not of numbers alone.
        """
        import pandas as pd
        from pandas.api.types import infer_dtype, is_bool_dtype

        check_format(path)
        if not workbook(path)[0].name.lower().endswith((".csv", ".csv.gz", ".tsv", ".tsv.gz")):
            suffix = ".npz" if is_arrays(path) else workbook(path)[0].suffix.lower()
            package, read = {
                ".parquet": ("pyarrow", read_parquet),
                ".xlsx": ("openpyxl", _read_sheet),
                ".npz": ("numpy", named_arrays),
            }[suffix]
            try:
                typed = read(path, drop)
            except ImportError:
                extra = "'drfl[excel]'" if package == "openpyxl" else package
                raise InputError(
                    f"{path}: reading {suffix} files needs {package}: pip install {extra}, or use CSV",
                    code="package-missing",
                    field=package,
                ) from None
            table = cls.of(str(path), typed)
            if suffix == ".xlsx":  # the first row of a sheet is the header
                table = table._replace(row_name=lambda row: f"{path}, sheet row {row + 2}")
            return table.prepared(text, options)
        form = TextForm.of(path, options)
        parsing = {**form.options(), "index_col": False, "keep_default_na": False, "na_values": [""]}
        try:
            # The header is read as a row, because pandas renames the second of two columns with one name.
            head = read_csv(path, nrows=1, header=None, dtype=str, **parsing)
            names = [str(name).strip() for name in head.iloc[0].dropna()] if len(head) else []
            check_unique(names, str(path))
            kept = {name: str for name in read_csv(path, nrows=0, **parsing).columns if str(name).strip() in text}
            # In low memory, pandas would guess a type for each part of the file.
            frame = read_csv(path, low_memory=False, dtype=kept, **parsing)
        except InputError as error:
            if not isinstance(error.__cause__, pd.errors.ParserError | pd.errors.ParserWarning):
                raise
            # pandas names neither the line of a quotation mark nor a remedy.
            raise row_error(path, form, is_open="EOF inside string" in str(error.__cause__)) or error from None
        _check_line_breaks(path, frame, form)
        # With blank cells, a column of truth values has objects.
        truths = [
            name
            for name in frame
            if is_bool_dtype(frame[name])
            or (frame[name].dtype == object and infer_dtype(frame[name], skipna=True) == "boolean")
        ]
        pointed = [name for name in frame if form.has_free_points and may_mix_thousands(frame[name])]
        if truths or pointed:  # "TRUE" would become True, and 1.500 would become 1.5
            again = read_csv(path, usecols=[*truths, *pointed], dtype=str, **parsing)
            doubtful = [name for name in pointed if mixes_thousands(again[name].dropna().str.strip().unique().tolist())]
            frame = frame.assign(**{str(name): again[name] for name in (*truths, *doubtful)})
        return cls.of(str(path), frame, form).prepared(text, options)

    @classmethod
    def whole(
        cls, path: Path, schema: TableSchema | None, text: Sequence[str] = (), options: ReadOptions = DETECT
    ) -> Table:
        """Read all columns of a file, as its schema types them. All cells of the columns ``text`` stay text."""
        if schema is None:
            return cls.read(path, text, options).with_numbers(text)
        options = options.with_defaults(schema.reading)
        if not schema.inferred:
            return cls.read(path, [*text, *schema.texts], options)
        # An inferred schema is of tables that were read like those without a schema.
        names = [*text, *(name for name in (schema.client, schema.patient) if name is not None)]
        names += text_columns([column.name for column in schema.targets])
        return cls.read(path, names, options).with_numbers(names)

    @classmethod
    def of(cls, place: str, frame: pd.DataFrame, form: TextForm | None = None) -> Table:
        """Check a table, and remove outer blanks from the names of its columns."""
        frame.columns = [str(name).strip() for name in frame.columns]
        check_unique(list(frame.columns), place)
        frame = plain_columns(frame)
        if not len(frame):
            raise InputError(f"{place} has no rows", code="no-rows", field=place)
        return cls(place, frame, row_names_of(place) if form is None else _line_names_of(place, form), form)

    def prepared(self, text: Sequence[str], options: ReadOptions) -> Table:
        """Return the table with blank cells for the words that mean "missing", and with plain numbers."""
        import pandas as pd
        from pandas.api.types import is_bool_dtype, is_numeric_dtype

        missing, form = options.missing, self.form
        frame = self.frame.copy(deep=False)
        for name in frame.columns:
            cells = frame[name]
            # In a column of numbers, the word "-9" is the number -9.0.
            if is_numeric_dtype(cells) and not is_bool_dtype(cells):
                is_missing = cells.isin(amounts_in(cells, missing))
            elif cells.dtype.kind == "M":
                is_missing = np.isin(since_1970(cells), days_of(pd.Series(missing, dtype=object)).values)
            elif cells.dtype.kind == "b":
                continue
            else:
                # Among texts, a date of a workbook has a time.
                spelt = ("", *missing, *(f"{word} 00:00:00" for word in missing))
                is_missing = cells.notna() & cells.astype(str).str.strip().isin(spelt)
            if is_missing.any():
                frame[name] = cells.mask(is_missing)
        known = form.decimal if form is not None and form.is_known else None
        has_free_points = form is not None and form.has_free_points
        for name in (name for name in frame.columns if name not in text):
            cells = frame[name]
            if is_numeric_dtype(cells) or is_bool_dtype(cells) or cells.dtype.kind == "M":
                continue
            codes, different = pd.factorize(cells.astype(object))
            words = {k: value.strip() for k, value in enumerate(different) if isinstance(value, str)}
            alike = [k for k, word in words.items() if LIKE_NUMBER.fullmatch(word)]
            if np.isin(codes, alike).sum() < SHARE_OF_NUMBERS * (codes >= 0).sum():
                continue
            found = number_form([words[k] for k in alike], options, known, has_free_points=has_free_points)
            if isinstance(found, Undecided):
                row = int(np.isin(codes, [k for k in alike if words[k] == found.text]).argmax())
                place = self.row_name(row)
                if not found.readings:
                    marks = {"decimal": options.decimal, "thousands": options.thousands}
                    declared = " and ".join(f"{mark} = '{value}'" for mark, value in marks.items() if value is not None)
                    raise InputError(
                        f"{place}, column '{name}': '{found.text}' does not fit {declared}: correct the option or the "
                        "cell",
                        code="not-a-number",
                        field=str(name),
                    )
                first, second = (f"{float(reading):.15g}" for reading in found.readings[:2])
                raise InputError(
                    f"{place}, column '{name}': '{found.text}' can be {first} or {second}. Set `decimal` "
                    "or `thousands`",
                    code="ambiguous-number",
                    field=str(name),
                )
            if found is not None:
                # Numbers, not texts, so that a table that is prepared twice does not change.
                numbers = {different[k]: float(found.plain(word)) for k, word in words.items() if found.matches(word)}
                frame[name] = cells.map(lambda value, known=numbers: known.get(value, value), na_action="ignore")
                if form is not None:
                    decimal = "," if found.decimal == "," else form.decimal
                    form = form._replace(
                        decimal=decimal,
                        thousands=found.thousands or form.thousands,
                        columns=(*form.columns, str(name)),
                    )
        return self._replace(frame=frame, form=form)

    def without_unused(self, schema: TableSchema) -> Table:
        """Return the table without the columns that the schema does not use."""
        used = used_columns([column.name for column in schema.targets])
        unused = [
            column.name
            for column in schema.columns
            if not column.is_feature
            and column.role not in USED
            and column.name not in used
            and column.name in self.frame
        ]
        return self._replace(frame=self.frame.drop(columns=unused))

    def with_numbers(self, names: Sequence[str]) -> Table:
        """Convert columns other than ``names`` to numbers or truth values if all their texts are some.

        Words such as "NA" are blank cells of a column of numbers, and words of other columns.
        """
        import pandas as pd
        from pandas.api.types import is_numeric_dtype, is_string_dtype

        frame = self.frame.copy(deep=False)
        for name in frame.columns:
            cells = frame[name]
            if is_numeric_dtype(cells) or not is_string_dtype(cells.dropna()):
                continue
            if name in names:
                continue
            cells = stripped(cells)
            known = cells[~cells.isin(NA_WORDS)].dropna()
            numbers = pd.to_numeric(known, errors="coerce")
            if len(known) and numbers.notna().all():
                frame[name] = numbers.reindex(cells.index)
            # A truth value has no word for "unknown".
            elif len(known) and known.str.lower().isin(("true", "false", "0", "1")).all() and len(known) == len(cells):
                frame[name] = known.str.lower().isin(("true", "1"))
        return self._replace(frame=frame)

    def with_answers(self, targets: Sequence[str], others: Sequence[str | None] = (), *, strict: bool = True) -> Table:
        """Return the table with the answers to the conditions among the targets, in place of their columns.

        The answers are "no" and "yes" for a single target, and 0 and 1 for several. They are blank if the value is
        unknown, or wrong and not ``strict``.
        """
        found = {target: Condition.of(target, [str(name) for name in self.frame], self.place) for target in targets}
        conditions = {target: condition for target, condition in found.items() if condition is not None}
        answers = dict[str, np.ndarray]()
        for target, condition in conditions.items():
            if condition.column in (*others, *targets):
                raise InputError(
                    f"column '{condition.column}' decides the target '{target}', so it cannot have another role: "
                    "remove it from the other options",
                    code="conflicting-options",
                    field="target",
                )
            cells = self.frame[condition.column]
            answers[target], problems = answers_of(condition, cells, self.row_name, words=len(targets) == 1)
            if problems and strict:
                raise problems[0]
        used = {condition.column for condition in conditions.values()}
        return self._replace(frame=self.frame.drop(columns=[*used]).assign(**answers)) if used else self


def _check_line_breaks(path: Path, frame: pd.DataFrame, form: TextForm) -> None:
    """Check that no cell with line breaks holds rows of the table."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype, is_string_dtype

    count = frame.shape[1]
    numeric = [k for k, kind in enumerate(frame.dtypes) if is_numeric_dtype(kind) and not is_bool_dtype(kind)]
    for k in range(count) if count > 1 else ():
        cells = frame.iloc[:, k]
        # Numbers beyond 64 bits are objects.
        if is_numeric_dtype(cells) or is_bool_dtype(cells) or not is_string_dtype(cells.dropna()):
            continue
        has_break = cells.str.contains("\n", regex=False, na=False) | cells.str.contains("\r", regex=False, na=False)
        for row, cell in zip(np.flatnonzero(has_break).tolist(), cells[has_break].tolist(), strict=True):
            if not holds_rows(cell, k, count, form.delimiter, numeric):
                continue
            # The cell ends in another row, and contains the delimiters of that row to the left of its end.
            surplus = LINE_BREAK.split(cell)[-1].count(form.delimiter) - k
            if surplus >= 0 and frame.iloc[row, count - surplus :].isna().all():
                line = next((line for line, _ in islice(form.records(path), row + 1, None)), 0)
                before = sum(len(LINE_BREAK.findall(str(other))) for other in frame.iloc[row, :k])
                raise stray_quote(str(path), line + before, cell)


def _line_names_of(place: str, form: TextForm) -> RowName:
    """Return a function that names rows as people find them, and reads the file only once.

    Lines of a text file may be blank, and a cell may fill several lines.
    """
    starts, unlisted = list[int](), row_names_of(place)

    def name(row: int) -> str:
        if not starts:
            starts.extend(line for line, _ in islice(form.records(Path(place)), 1, None))  # the first is the header
        return f"{place}, line {starts[row]}" if row < len(starts) else unlisted(row)

    return name


def header_hint(name: str) -> str:
    """Return a hint for a column whose name is a number; empty for others."""
    return "" if amount_of(name) is None else ". The first line must have the names of the columns"


def check_unique(names: Sequence[str], place: str) -> None:
    """Check that a table has no two columns with one name."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"{place}: column '{twice}' occurs twice{header_hint(twice)}", code="duplicate-column", field=twice
        )


def text_names(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a user's data frame with texts as names of columns, which may be numbers.

    Raises:
        InputError: If the names have several levels.
    """
    if frame.columns.nlevels > 1:
        raise InputError(
            f"the table's columns have {frame.columns.nlevels} levels of names, such as {frame.columns[0]}: join them, "
            "for example with frame.columns = ['_'.join(map(str, name)) for name in frame.columns]",
            code="unsupported-data",
            field="frame",
        )
    return frame.rename(columns=str)


def plain_columns(frame: pd.DataFrame, *, keep_categories: bool = False) -> pd.DataFrame:
    """Convert categories to the type of their values, and decimals of databases to whole or floating-point numbers."""
    import pandas as pd
    from pandas.api.types import infer_dtype

    frame = frame.copy(deep=False)
    # An index may repeat its values, and pandas aligns columns by it.
    frame.index = pd.RangeIndex(len(frame))
    for k, name in enumerate(frame.columns):
        cells = frame.iloc[:, k]
        if isinstance(cells.dtype, pd.CategoricalDtype) and not keep_categories:
            # Levels have the order of their texts and have rows; categories need not.
            frame[name] = cells = cells.astype(object).infer_objects()
        if cells.dtype != object or infer_dtype(cells, skipna=True) != "decimal":
            continue
        numbers = cells.map(float, na_action="ignore").astype(float)
        is_whole = bool(numbers.notna().all() and (numbers == numbers.round()).all() and numbers.abs().max() < 2**53)
        frame[name] = numbers.astype("int64") if is_whole else numbers
    return frame


def _read_sheet(path: Path, drop: Sequence[str]) -> pd.DataFrame:
    """Read a sheet of a workbook, the only one unless the path names it."""
    import openpyxl  # noqa: F401 - pandas would name neither the file nor the extra
    import pandas as pd

    file, sheet = workbook(path)
    with open_file(file) as content, reading(file):
        with zipfile.ZipFile(content) as archive:
            # A workbook is a zip file, which may expand to far more than its size.
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
                raise unknown("sheet", sheet, [*map(str, book.sheet_names)], field=str(file), place=f"in {file}")
            # pandas renames the second of two columns with one name.
            head = pd.read_excel(book, sheet_name=sheet or 0, header=None, nrows=1, dtype=object)
            check_unique([str(name).strip() for name in head.iloc[0].dropna()] if len(head) else [], str(path))
            # Read as objects, because pandas would read the text "007" as the number 7.
            cells = pd.read_excel(book, sheet_name=sheet or 0, dtype=object, keep_default_na=False, na_values=[""])
            frame = cells.infer_objects()
    # As in Parquet files, dropped columns are present, but blank.
    return frame.assign(**{str(name): np.nan for name in frame if str(name).strip() in drop})
