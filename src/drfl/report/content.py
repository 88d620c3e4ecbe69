"""The content of a report as plain text and pictures, before it becomes a page or a PDF: sections of blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TableCell:
    """A table cell with more than plain text.

    Args:
        text: The text.
        swatch: SVG picture before the text, a short piece of an algorithm's line.
        strong: Whether the text is bold.
        mono: Whether the text is in a monospaced font, for digests.
    """

    text: str
    swatch: str = ""
    strong: bool = False
    mono: bool = False


@dataclass(frozen=True)
class Heading:
    """A heading above the blocks that follow, with a swatch as in `TableCell`."""

    text: str
    swatch: str = ""


@dataclass(frozen=True)
class Paragraph:
    """A paragraph.

    Args:
        text: The text.
        start: Text before it in bold.
        small: Whether it is a note in small print.
    """

    text: str
    start: str = ""
    small: bool = False


@dataclass(frozen=True)
class Points:
    """A bulleted list, one sentence per item."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Caution:
    """Warnings to read before relying on the numbers, one sentence per warning."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Facts:
    """The setting, as pairs of a term and its description."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Card:
    """One of the key numbers.

    Args:
        title: Name of the number.
        value: The number, or its mean over seeds.
        spread: Standard deviation over seeds; empty for one run.
        unit: Unit after the number, including the space.
        note: The client or algorithm of the number.
    """

    title: str
    value: str
    spread: str = ""
    unit: str = ""
    note: str = ""


@dataclass(frozen=True)
class Cards:
    """The key numbers, as cards side by side."""

    cards: Sequence[Card]


@dataclass(frozen=True)
class TableBlock:
    """A table.

    Args:
        caption: Caption above the table.
        head: Column titles.
        rows: Cells; the first cell of a row is its heading.
        words: Number of text columns, from the left; the others hold numbers and are right-aligned.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | TableCell]]
    words: int = 1


@dataclass(frozen=True)
class Code:
    """Preformatted lines with their indentation, such as a configuration."""

    caption: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Figure:
    """A picture.

    Args:
        svg: The picture, in which :mod:`drfl.report.svg` has escaped every text.
        alt: Description of the picture in words.
        heading: Heading above it; none if empty.
        caption: Caption below it; none if empty.
        swatch: Swatch before the heading, as in `TableCell`.
    """

    svg: str
    alt: str
    heading: str = ""
    caption: str = ""
    swatch: str = ""


@dataclass(frozen=True)
class Figures:
    """Small pictures, as many side by side as there is room for."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Legend:
    """Legend of the algorithms in the section's pictures.

    Args:
        entries: Per algorithm, its key in the pictures (``data-group``), its swatch and its label.
    """

    entries: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Fold:
    """Blocks that a page shows after the reader expands them."""

    title: str
    blocks: Sequence[Block]


Block = (
    Heading | Paragraph | Points | Caution | Facts | Cards | TableBlock | Code | Figure | Figures | Legend | Fold
)  # fmt: skip


@dataclass(frozen=True)
class Section:
    """A section.

    Args:
        name: The id of its heading.
        title: Its heading, usually a question.
        answer: One sentence, repeated at the head of the report; none if empty.
        blocks: The evidence for the answer.
    """

    name: str
    title: str
    answer: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Document:
    """A report.

    Args:
        title: The heading.
        head: Blocks before the answers and the sections.
        sections: The sections in order.
        writer: Name and version of the software that wrote it.
    """

    title: str
    head: Sequence[Block]
    sections: Sequence[Section]
    writer: str


def to_plain(content: object) -> object:
    """Convert content to dictionaries, lists, strings and numbers; "kind" holds the class name of a block."""
    if dataclasses.is_dataclass(content):
        fields = {field.name: to_plain(getattr(content, field.name)) for field in dataclasses.fields(content)}
        return {"kind": type(content).__name__, **fields}
    if isinstance(content, Sequence) and not isinstance(content, str):
        return [to_plain(item) for item in content]
    return content
