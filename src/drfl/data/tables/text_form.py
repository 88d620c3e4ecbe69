"""Detect the delimiter, decimal mark and encoding of a text table from its content."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from drfl.core.errors import InputError, Notice, listing, unknown
from drfl.core.files import lines, open_text, reading

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""Characters between cells, the usual one first, and their names in messages."""

THOUSANDS = {",": "commas", ".": "points", "'": "apostrophes", " ": "blanks"}
"""Characters between thousands, and their names in messages."""

ROWS = 200
"""Number of rows for detecting the decimal mark."""

FIRST_LINES = 10
"""Number of lines for detecting the delimiter."""

SIMILAR_ROWS = 50
"""Rows that decide whether one row or all rows have more cells than the header."""

CHUNK = 2**20
"""Bytes that are decoded at once."""

SEP_LINE = re.compile(r'\ufeff?"?sep=([^\w\s".+-]|\t)\1*"?\s*', re.IGNORECASE)
"""First line of files for Excel, which names the delimiter."""


@dataclass(frozen=True)
class ReadOptions:
    """Properties of tables that drfl should not detect.

    Args:
        delimiter: Character between the cells of a text file, or "tab".
        decimal: Decimal mark, "." or ",".
        thousands: Mark between thousands: ",", ".", "'" or " ".
        encoding: Encoding of a text file, such as "latin-1".
        missing: Words that mean a missing value, like a blank cell, or a single one. Case matters.

    Raises:
        InputError: If a value is not possible; the field is its name.

    Example:
        >>> import pandas as pd, drfl
        >>> frame = pd.DataFrame({"site": [*"aabb"] * 4, "age": ["71", "?", "64", "58"] * 4, "ill": [0, 1, 1, 0] * 4})
        >>> reading = drfl.ReadOptions(missing=("?",))
        >>> drfl.ClientData.from_frame(frame, group="site", target="ill", reading=reading).columns
        ('age', 'age missing')
    """

    delimiter: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    encoding: str | None = None
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.delimiter in ("tab", "\\t"):
            object.__setattr__(self, "delimiter", "\t")
        words = [self.missing] if isinstance(self.missing, str | float | int) else self.missing  # "NA" is one word
        object.__setattr__(self, "missing", tuple(str(word).strip() for word in words))
        mark = self.delimiter
        # The refused marks occur in names, numbers and quoted cells.
        if mark is not None and (len(mark) != 1 or mark.isalnum() or mark in '"\n\r.-+ '):
            raise InputError(
                f"`delimiter` must be one character such as ';', or 'tab', got '{self.delimiter}'",
                code="invalid-value",
                field="delimiter",
            )
        for name, known in (("decimal", (".", ",")), ("thousands", tuple(THOUSANDS))):
            value = getattr(self, name)
            if value is not None and value not in known:
                shown = ", ".join(f'"{mark}"' for mark in known)
                raise InputError(f"{name} must be one of {shown}, got '{value}'", code="invalid-value", field=name)
        if self.thousands in (".", ","):
            other = "," if self.thousands == "." else "."
            if self.decimal == self.thousands:
                raise InputError(
                    f"`decimal` and `thousands` are both '{self.thousands}': they must differ",
                    code="conflicting-options",
                    field="thousands",
                )
            # If points separate thousands, the decimal mark is a comma, and the reverse.
            object.__setattr__(self, "decimal", other)
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise unknown(
                    "encoding", self.encoding, ("utf-8", "cp1252", "latin-1", "utf-16"), field="encoding"
                ) from None

    def content(self) -> dict[str, object]:
        """Return the values that are set, as in a file."""
        values = {name: getattr(self, name) for name in ("delimiter", "decimal", "thousands", "encoding")}
        found: dict[str, object] = {name: value for name, value in values.items() if value is not None}
        return {**found, "missing": [*self.missing]} if self.missing else found

    def with_defaults(self, schema: ReadOptions) -> ReadOptions:
        """Return these options, and those of a schema for values that are not set.

        Raises:
            InputError: If they contradict each other.
        """
        own, other = self.content(), schema.content()
        # The mark between thousands decides the decimal mark, so it is the option that contradicts the schema.
        for name, value in sorted(own.items(), key=lambda option: option[0] == "decimal"):
            if name in other and value != other[name]:
                raise InputError(
                    f"{name} is {_shown(value)}, but the schema says {_shown(other[name])}: remove the option, or edit "
                    "the schema",
                    code="conflicting-options",
                    field=name,
                )
        merged: dict[str, Any] = {**other, **own}
        return ReadOptions(**{**merged, "missing": tuple(merged.get("missing", ()))})


DETECT = ReadOptions()
"""Detect everything; only blank cells are missing values."""


def _shown(value: object) -> str:
    return ", ".join(f"'{word}'" for word in (value if isinstance(value, list) else [value]))


def _surely(decimal: str, thousands: str) -> re.Pattern[str]:
    """Return the pattern of numbers that can have this decimal mark only, because thousands have three digits."""
    d, t = re.escape(decimal), re.escape(thousands)
    return re.compile(
        rf"\s*[-+]?(?:\d{{1,3}}(?:{t}\d{{3}})+{d}\d+|\d{{1,3}}(?:{t}\d{{3}}){{2,}}|\d+{d}(?!\d{{3}}\s*\Z)\d+"
        rf"|(?:0\d*|\d{{4,}}){d}\d{{3}})\s*"
    )


LINE_BREAK = re.compile(r"\r\n?|\n")
NUMBER_OR_BLANK = re.compile(r"\s*(?:[-+]?[.,]?\d[\d.,]*(?:[eE][-+]?\d+)?\s*)?")

SURELY = {".": _surely(".", ","), ",": _surely(",", ".")}


class TextForm(NamedTuple):
    """Delimiter, decimal mark and encoding of a text table.

    Args:
        delimiter: The character between cells.
        decimal: "." or ",".
        encoding: Such as "utf-8", or "cp1252", that of Windows in Western Europe.
        thousands: Mark between thousands; "" if there is none, or it is not known yet.
        is_known: Whether the decimal mark is declared, or follows from the first rows.
        columns: Columns whose numbers showed another form than that of the file.
        skip: Lines above the header that name the delimiter, or are blank.
    """

    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    thousands: str = ""
    is_known: bool = False
    columns: tuple[str, ...] = ()
    skip: int = 0

    @classmethod
    def of(cls, path: Path, options: ReadOptions = DETECT) -> TextForm:
        """Detect the properties that the options do not set."""
        encoding = options.encoding or _encoding(path)
        with open_text(path) as file, reading(path):
            numbered = enumerate(lines(file, path, encoding), start=1)
            start = [*islice(((k, line) for k, line in numbered if line.strip("\ufeff\r\n ")), FIRST_LINES)]
        if not start:
            raise InputError(
                f"{path} is empty: remove it, or save the table again", code="damaged-file", field=str(path)
            )
        named = SEP_LINE.fullmatch(start[0][1])
        skip = 0 if named is None else start[0][0]
        delimiter = options.delimiter or ("" if named is None else named[1])
        if not delimiter:
            # Inside quotes these characters are part of a name.
            head, *rest = [re.sub(r'"[^"]*"', "", line) for _, line in start]
            body = "".join(rest)
            # A tie goes to the usual delimiter, which is first.
            by_head, by_body = max(DELIMITERS, key=head.count), max(DELIMITERS, key=body.count)
            # The first line may be a title above the header, which does not decide.
            is_title = all(by_body in row for row in rest) and not all(by_head in row for row in rest)
            if by_head not in head or by_head not in body:
                delimiter = by_body if by_body in body else by_head
            else:
                delimiter = by_body if is_title else by_head
        marks = {options.decimal} if options.decimal else set[str]()
        if not marks:
            with open_text(path) as file, reading(path), suppress(csv.Error):
                rows = islice(csv.reader(lines(file, path, encoding), delimiter=delimiter), 1 + skip, ROWS)
                cells = [cell for row in rows for cell in row]
                marks = {mark for mark, pattern in SURELY.items() if any(map(pattern.fullmatch, cells))}
        is_known = len(marks) == 1
        decimal = marks.pop() if is_known else "."
        return cls(delimiter, decimal, encoding, options.thousands or "", is_known, skip=skip)

    @property
    def has_free_points(self) -> bool:
        """Whether points may separate thousands: no decimal mark is known, and commas do not separate cells."""
        return self.delimiter in (";", "\t") and not self.is_known and not self.thousands

    def options(self) -> dict[str, Any]:
        """Return the options of ``pandas.read_csv`` for such a file."""
        return {"sep": self.delimiter, "decimal": self.decimal, "encoding": self.encoding, "skiprows": self.skip}

    def records(self, path: Path) -> Iterator[tuple[int, list[str]]]:
        """Yield the header and the rows of a file that are not blank, with the line on which each starts.

        If a cell is too long for the module csv, its row is the last one and has no cells.
        """
        # The mark at the start of a file does not belong to the header.
        encoding = "utf-8-sig" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding
        with open_text(path) as file, reading(path):
            rows = csv.reader(islice(lines(file, path, encoding), self.skip, None), delimiter=self.delimiter)
            start = self.skip + 1
            try:
                for cells in rows:
                    if "".join(cells).strip() or len(cells) > 1:
                        yield start, cells
                    start = self.skip + rows.line_num + 1
            except csv.Error:
                yield start, []

    def words(self) -> str:
        """Describe the form."""
        parts = [DELIMITERS.get(self.delimiter, f"'{self.delimiter}'"), f"decimal {THOUSANDS[self.decimal]}"]
        if self.thousands:
            parts.append(f"{THOUSANDS[self.thousands]} between thousands")
        return ", ".join([*parts, self.encoding])

    def notice(self, path: Path) -> Notice | None:
        """State how drfl read a file; None if it is plain CSV in UTF-8."""
        parts = []
        # Tabs are expected in a .tsv file.
        if self.delimiter != "," and not (self.delimiter == "\t" and ".tsv" in path.suffixes):
            parts.append(f"{DELIMITERS.get(self.delimiter, repr(self.delimiter))} as delimiters")
        if self.decimal != ".":
            parts.append("decimal commas")
        if self.thousands:
            parts.append(f"{THOUSANDS[self.thousands]} between thousands")
        if self.encoding != "utf-8":
            parts.append(f"the encoding {self.encoding}")
        if not parts:
            return None
        read = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
        where = f" of {listing([repr(name) for name in self.columns], 'column')}" if self.columns else ""
        text = f"{path.name} was read with {read}: check a few values{where}"
        return Notice(text, "table-format", path.name)


def holds_rows(cell: str, position: int, columns: int, delimiter: str, numeric: Sequence[int]) -> bool:
    """Return whether a cell holds the end of its row and further rows, because its quotation mark is stray.

    Args:
        cell: The content.
        position: Number of cells before it in its row.
        columns: Number of columns of the table.
        delimiter: The character between cells.
        numeric: Positions of columns of numbers, which distinguish rows from lines of a note.
    """
    first, *others = LINE_BREAK.split(cell)
    if not others or first.count(delimiter) != columns - 1 - position:
        return False
    inner = [line.split(delimiter) for line in others[:-1] if line.strip()]
    rows = [
        cells
        for cells in inner
        if len(cells) == columns and all(NUMBER_OR_BLANK.fullmatch(cells[k]) is not None for k in numeric)
    ]
    # Without lines between, a single quotation mark shows that the cell ends where another one was to begin.
    return 2 * len(rows) > len(inner) if inner else len(others) == 1 and cell.count('"') % 2 == 1


def stray_quote(place: str, line: int, cell: str) -> InputError:
    """Return the error for a cell that holds rows, see :func:`holds_rows`."""
    count = len(LINE_BREAK.split(cell))
    return InputError(
        f"{place}, line {line}: a quotation mark opens a cell of {count} lines, which look like rows of the table. "
        "Remove the quotation mark, or close it on its line",
        code="damaged-file",
        field=place,
    )


def row_error(path: Path, form: TextForm, *, is_open: bool) -> InputError | None:
    """Return the error for the first row with more cells than the header, if any.

    Args:
        path: The file.
        form: Its form.
        is_open: Whether the last cell has an opening quotation mark and no closing one.
    """
    rows = form.records(path)
    line, cells = top, header = next(rows, (1, []))
    count, earlier, numeric = len(header), 0, list[int]()
    for line, cells in rows:
        at = line
        if not numeric and len(cells) == count:
            numeric = [k for k, cell in enumerate(cells) if cell.strip() and NUMBER_OR_BLANK.fullmatch(cell)]
        for k, cell in enumerate(cells):
            if count > 1 and holds_rows(cell, k, count, form.delimiter, numeric):
                return stray_quote(str(path), at, cell)
            at += len(LINE_BREAK.findall(cell))
        # pandas ignores a delimiter at the end of all rows.
        if len(cells) > count + (cells[-1:] == [""]):
            break
        earlier += 1
    else:
        if not is_open:
            return None
        line += sum(len(LINE_BREAK.findall(cell)) for cell in cells[:-1])
        return InputError(
            f"{path}, line {line}: a quotation mark opens a cell that does not end. Close or remove the quotation mark",
            code="damaged-file",
            field=str(path),
        )
    shown, after = f"{count} cell{'s' * (count != 1)}", [len(cells) for _, cells in islice(rows, SIMILAR_ROWS)]
    if (earlier == 0 or count == 1) and (after or count == 1) and set(after) <= {len(cells)}:
        remedy = "Remove the lines above the header"
        if len(cells) == count + 1:
            remedy = "Give the first column a name, or quote cells that contain the delimiter"
            remedy = remedy if count > 1 else "Remove the lines above the header, or give the first column a name"
        text = f"{path}: the header (line {top}) has {shown}, and line {line} has {len(cells)}. {remedy}"
    else:
        text = (
            f"{path}, line {line}: expected {shown} as in the header, found {len(cells)}. Quote cells that contain the "
            "delimiter"
        )
    return InputError(text, code="damaged-file", field=str(path))


def _encoding(path: Path) -> str:
    with open_text(path) as file, reading(path):
        start = file.read(4)
        # The mark of UTF-32 begins with that of UTF-16.
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and start != codecs.BOM_UTF32_LE:
            return "utf-16"
        # UTF-8 first: nearly all bytes are characters in cp1252.
        for encoding in ("utf-8", "cp1252"):
            file.seek(0)
            decoder = codecs.getincrementaldecoder(encoding)()
            with suppress(UnicodeDecodeError):
                while chunk := file.read(CHUNK):
                    # A hole in a file can be endless.
                    if b"\0" in chunk:
                        raise InputError(
                            f"{path} holds zero bytes, so it is not a text table in UTF-8: save it as CSV in UTF-8",
                            code="damaged-file",
                            field=str(path),
                        )
                    decoder.decode(chunk)
                decoder.decode(b"", final=True)
                return encoding
    raise InputError(
        f"{path} is neither in UTF-8 nor in cp1252: name its encoding with `encoding`, or save it as CSV in UTF-8",
        code="damaged-file",
        field=str(path),
    )
