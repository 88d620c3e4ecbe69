"""Cells of a CSV file that no spreadsheet takes for formulas."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula."""


def quoted(cell: object) -> object:
    """A cell with an apostrophe before it where a spreadsheet would run what it says; numbers stay as they are.

    Names of clients are somebody else's: "=HYPERLINK(…)" would be run on the machine of whoever opens the file.
    """
    return f"'{cell}" if isinstance(cell, str) and _is_formula(cell) else cell


def unquoted(cell: str) -> str:
    """The text that :func:`quoted` was given."""
    return cell[1:] if cell.startswith("'") and _is_formula(cell[1:]) else cell


def _is_formula(cell: str) -> bool:
    # behind apostrophes too, so that nothing is unquoted that was not quoted
    bare = cell.lstrip("'")
    if not bare.startswith(FORMULA):
        return False
    try:
        # A number may begin with a sign without being a formula.
        float(cell)
    except ValueError:
        return True
    return False
