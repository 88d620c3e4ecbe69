"""Detect the delimiter, decimal mark and encoding of a text table from its content."""

from __future__ import annotations

import codecs
import csv
import re
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from drfl.core.errors import InputError, Notice
from drfl.core.files import LONGEST_LINE, lines, open_text, reading

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""Characters between cells, the usual one first, and what messages call them."""

ROWS = 200
"""Rows from which the decimal mark is recognised."""

CHUNK = 2**20
"""Bytes that are decoded at once."""

WITH_COMMA, WITH_POINT = re.compile(r"\s*-?\d+,\d+\s*"), re.compile(r"\s*-?\d+\.\d+\s*")


class TextForm(NamedTuple):
    """Delimiter, decimal mark and encoding of a text table.

    Args:
        delimiter: The character between cells.
        decimal: "." or ",".
        encoding: "utf-8", or "cp1252", that of Windows in Western Europe.
    """

    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"

    @classmethod
    def of(cls, path: Path) -> TextForm:
        """Detect the delimiter, decimal mark and encoding of a file.

        Raises:
            InputError: If the file cannot be read, or has neither encoding.
        """
        encoding = _encoding(path)
        with open_text(path) as file, reading(path):
            head = file.readline(LONGEST_LINE).decode(encoding, errors="replace")
        # Inside quotes these characters are part of a name.
        bare = re.sub(r'"[^"]*"', "", head)
        delimiter = max(DELIMITERS, key=bare.count)
        decimal, cells = ".", []
        if delimiter != ",":
            cells: list[str] = []
            with open_text(path) as file, reading(path), suppress(csv.Error):
                rows = islice(csv.reader(lines(file, path, encoding), delimiter=delimiter), 1, ROWS)
                cells.extend(cell for row in rows for cell in row)
            if any(map(WITH_COMMA.fullmatch, cells)) and not any(map(WITH_POINT.fullmatch, cells)):
                decimal = ","
        return cls(delimiter, decimal, encoding)

    def options(self) -> dict[str, Any]:
        """Return the options of ``pandas.read_csv`` for such a file."""
        return {"sep": self.delimiter, "decimal": self.decimal, "encoding": self.encoding}

    def notice(self, path: Path) -> Notice | None:
        """State how drfl read a file; None if it is plain CSV in UTF-8."""
        parts = []
        # Tabs are expected in a .tsv file.
        if self.delimiter != "," and not (self.delimiter == "\t" and ".tsv" in path.suffixes):
            parts.append(f"{DELIMITERS[self.delimiter]} as delimiters")
        if self.decimal != ".":
            parts.append("decimal commas")
        if self.encoding != "utf-8":
            parts.append(f"the encoding {self.encoding}")
        if not parts:
            return None
        text = f"{path.name} was read with {' and '.join(parts)}: check a few values"
        return Notice(text, "table-format", path.name)


def _encoding(path: Path) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_text(path) as file, reading(path):
        try:
            while chunk := file.read(CHUNK):
                # A hole in a file can be endless, and UTF-16 has a zero byte per letter.
                if b"\0" in chunk:
                    raise InputError(
                        f"{path} holds zero bytes, so it is not a text table in UTF-8: save it as CSV in UTF-8",
                        code="damaged-file",
                        field=str(path),
                    )
                decoder.decode(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            pass
        else:
            return "utf-8"
        file.seek(0)
        try:
            while chunk := file.read(CHUNK):
                chunk.decode("cp1252")
        except UnicodeDecodeError:
            raise InputError(
                f"{path} is neither in UTF-8 nor in cp1252: save it as CSV in UTF-8",
                code="damaged-file",
                field=str(path),
            ) from None
    return "cp1252"
