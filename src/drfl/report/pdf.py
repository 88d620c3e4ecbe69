"""A report as a PDF of A4 pages, typeset by typst: tagged, with embedded fonts and without a date."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from drfl.core.output_files import write_bytes
from drfl.core.packages import require
from drfl.report.content import Block, Document, Fold, TableBlock, to_plain
from drfl.report.formatting import UNDEFINED
from drfl.report.names import in_glyphs
from drfl.report.svg import width_of

if TYPE_CHECKING:
    from typst import Fonts

PAGE, BESIDE, MOST_WORDS = 61.0, 0.95, 16.0
"""Width of a page, space beside a cell, and largest width of a text column, in units of the height of table letters."""

STANDARD = "ua-1"
"""PDF/UA-1, for screen readers: typst fails on content that would not be accessible."""


def check_typst() -> None:
    """Check that a PDF can be made.

    Raises:
        InputError: If the package typst is not installed.
    """
    require("typst", "a PDF report needs the package typst. Install it with: pip install 'drfl[pdf]'")


def render_pdf(document: Document) -> bytes:
    """Render the PDF; the same document gives the same bytes.

    Raises:
        InputError: If the package typst is not installed.
    """
    check_typst()
    import typst

    sections = [
        dataclasses.replace(section, blocks=_split_wide_tables(section.blocks)) for section in document.sections
    ]
    printed = dataclasses.replace(document, head=_split_wide_tables(document.head), sections=sections)
    # Names chosen by users reach typst only as data, which the template shows as text and never evaluates.
    content = json.dumps(_in_glyphs(to_plain(printed)))
    template = resources.files("drfl.report").joinpath("templates", "report.typ").read_bytes()
    data = typst.compile(
        template, font_paths=_fonts(), sys_inputs={"document": content}, format="pdf", pdf_standards=[STANDARD]
    )
    return bytes(data)


def write_pdf(document: Document, path: Path) -> None:
    """Write the PDF to a file atomically.

    Args:
        document: The content.
        path: The file, in an existing folder; an existing file is replaced.

    Raises:
        InputError: If typst is not installed, or the file cannot be written.
    """
    write_bytes(render_pdf(document), Path(path))


@functools.cache
def _fonts() -> Fonts:
    import typst

    # Use only the fonts in the package: with system fonts the same runs would give different files on other machines.
    return typst.Fonts(include_system_fonts=False)


def _in_glyphs(content: object) -> object:
    """Replace each character that the fonts lack by a box."""
    if isinstance(content, str):
        return in_glyphs(content)
    if isinstance(content, list):
        return [_in_glyphs(item) for item in content]
    if isinstance(content, dict):
        return {name: _in_glyphs(item) for name, item in content.items()}
    return content


def _split_wide_tables(blocks: Sequence[Block]) -> list[Block]:
    printed: list[Block] = []
    for block in blocks:
        if isinstance(block, TableBlock):
            printed += _parts(block)
        else:
            printed.append(
                dataclasses.replace(block, blocks=_split_wide_tables(block.blocks))
                if isinstance(block, Fold)
                else block
            )
    return printed


def _parts(table: TableBlock) -> list[TableBlock]:
    """Split a table into parts that fit on a page, each with the first column."""
    texts = [[cell if isinstance(cell, str) else cell.text for cell in row] for row in table.rows]
    widths = []
    for place, title in enumerate(table.head):
        # Words and titles may wrap onto several lines.
        longest = max((width_of(row[place]) for row in texts), default=0.0)
        title_width = max(map(width_of, title.split()), default=0.0)
        widths.append(max(min(longest, MOST_WORDS) if place < table.words else longest, title_width) + BESIDE)
    # A column with an interval or the number of undefined clients stays beside the column of its value.
    units: list[list[int]] = []
    for place, title in enumerate(table.head[1:], start=1):
        if units and title.startswith(("95", UNDEFINED)):
            units[-1].append(place)
        else:
            units.append([place])
    parts: list[list[int]] = [[0]]
    for unit in units:
        if len(parts[-1]) > 1 and sum(widths[k] for k in (*parts[-1], *unit)) > PAGE:
            parts.append([0])
        parts[-1] += unit
    return [
        TableBlock(
            table.caption if number == 1 else f"{table.caption.partition(';')[0]} (part {number} of {len(parts)})",
            [table.head[k] for k in part],
            [[row[k] for k in part] for row in table.rows],
            sum(k < table.words for k in part),
        )
        for number, part in enumerate(parts, start=1)
    ]
