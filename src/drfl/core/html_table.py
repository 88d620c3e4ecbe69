"""Small tables for notebooks."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

LONGEST = 40
"""Letters of a cell; longer ones are cut."""


def html_table(title: str, frame: pd.DataFrame, more: int = 0) -> str:
    """A title and a table, escaped; names are cut to :data:`LONGEST` letters.

    Args:
        title: above the table.
        frame: few rows.
        more: how many rows there are beside these.
    """
    # Cells are cut before they are escaped, so that no entity is cut in two.
    cells = frame.map(lambda cell: cell[: LONGEST - 1] + "…" if isinstance(cell, str) and len(cell) > LONGEST else cell)
    rest = f"<p>and {more:,} more</p>" if more > 0 else ""
    return f"<p>{html.escape(title)}</p>{cells.to_html(index=False, border=0, float_format='{:.3f}'.format)}{rest}"
