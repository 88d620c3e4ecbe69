"""Write CSV whose cells a spreadsheet would not evaluate as formulas."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Characters that begin a formula in spreadsheets."""


def escape_formula(cell: object) -> object:
    """Put an apostrophe before a cell that a spreadsheet would evaluate as a formula; numbers stay unchanged.

    Client names come from other parties. A name such as "=HYPERLINK(…)" would run on the machine that opens the file.
    """
    return f"'{cell}" if isinstance(cell, str) and _is_formula(cell) else cell


def unescape_formula(cell: str) -> str:
    """Reverse :func:`escape_formula`."""
    return cell[1:] if cell.startswith("'") and _is_formula(cell[1:]) else cell


def _is_formula(cell: str) -> bool:
    # Apostrophes are skipped, so that a formula that already has one in front gets another, and `unescape_formula`
    # restores it.
    bare = cell.lstrip("'")
    if not bare.startswith(FORMULA):
        return False
    try:
        # A number may begin with a sign and is not a formula.
        float(cell)
    except ValueError:
        return True
    return False


def csv_text(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return CSV text with plain line ends, in which no spreadsheet sees formulas; see :mod:`drfl.core.csv_cells`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([escape_formula(cell) for cell in header])
    writer.writerows([escape_formula(cell) for cell in row] for row in rows)
    return text.getvalue()
