"""Small tables for notebooks."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

LONGEST = 40
"""Maximum number of characters in a cell. Longer cells are truncated."""

MOST = 12
"""Maximum number of rows of a long table."""


def html_table(title: str, frame: pd.DataFrame, more: int = 0) -> str:
    """Render a title and a table as escaped HTML, with cells truncated to :data:`LONGEST` characters.

    Args:
        title: Text above the table.
        frame: Rows to show.
        more: Number of rows that are not shown.
    """
    # Truncate cells before escaping them, so that no HTML entity is cut in two.
    cells = frame.map(lambda cell: cell[: LONGEST - 1] + "…" if isinstance(cell, str) and len(cell) > LONGEST else cell)
    rest = f"<p>and {more:,} more</p>" if more > 0 else ""
    return f"<p>{html.escape(title)}</p>{cells.to_html(index=False, border=0, float_format='{:.3f}'.format)}{rest}"
