"""Detect the delimiter, decimal mark and encoding of a text table from its content."""

from __future__ import annotations

import codecs
import csv
import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from drfl.core.errors import InputError, Notice, listing, unknown
from drfl.core.files import lines, open_text, reading

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""Characters between cells, the usual one first, and what messages call them."""

THOUSANDS = {",": "commas", ".": "points", "'": "apostrophes", " ": "blanks"}
"""Characters between thousands, and what messages call them."""

ROWS = 200
"""Rows from which the decimal mark is recognised."""

CHUNK = 2**20
"""Bytes that are decoded at once."""


@dataclass(frozen=True)
class ReadOptions:
    """Properties of tables that drfl should not detect.

    Args:
        delimiter: Character between the cells of a text file, or "tab".
        decimal: Decimal mark, "." or ",".
        thousands: Mark between thousands: ",", ".", "'" or " ".
        encoding: Encoding of a text file, such as "latin-1".
        missing: Words that stand for a missing value, like a blank cell. Case matters.

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
        object.__setattr__(self, "missing", tuple(word.strip() for word in self.missing))
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
    """

    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    thousands: str = ""
    is_known: bool = False
    columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, path: Path, options: ReadOptions = DETECT) -> TextForm:
        """Detect what the options do not say."""
        encoding = options.encoding or _encoding(path)
        with open_text(path) as file, reading(path):
            head = next(lines(file, path, encoding), "")
        # Inside quotes these characters are part of a name.
        bare = re.sub(r'"[^"]*"', "", head)
        # A tie goes to the usual delimiter, which is first.
        delimiter = options.delimiter or max(DELIMITERS, key=bare.count)
        marks = {options.decimal} if options.decimal else set[str]()
        if not marks:
            with open_text(path) as file, reading(path), suppress(csv.Error):
                rows = islice(csv.reader(lines(file, path, encoding), delimiter=delimiter), 1, ROWS)
                cells = [cell for row in rows for cell in row]
                marks = {mark for mark, pattern in SURELY.items() if any(map(pattern.fullmatch, cells))}
        is_known = len(marks) == 1
        return cls(delimiter, marks.pop() if is_known else ".", encoding, options.thousands or "", is_known)

    def options(self) -> dict[str, Any]:
        """Return the options of ``pandas.read_csv`` for such a file."""
        return {"sep": self.delimiter, "decimal": self.decimal, "encoding": self.encoding}

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
