"""What a report says, as plain text and pictures, before it is a page or a PDF: sections of blocks of a few kinds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TableCell:
    """A cell of a table that is more than its text.

    Args:
        text: what it says.
        swatch: an SVG picture before the text, a short piece of an algorithm's line.
        strong: whether it is in bold.
        mono: whether it is in letters of one width, as a digest.
    """

    text: str
    swatch: str = ""
    strong: bool = False
    mono: bool = False


@dataclass(frozen=True)
class Heading:
    """What stands above the blocks that follow.

    Args:
        text: what it says.
        swatch: as in `TableCell`.
    """

    text: str
    swatch: str = ""


@dataclass(frozen=True)
class Paragraph:
    """A paragraph.

    Args:
        text: what it says.
        start: in bold before it.
        small: whether it is a note in small print.
    """

    text: str
    start: str = ""
    small: bool = False


@dataclass(frozen=True)
class Points:
    """A list of sentences.

    Args:
        lines: a sentence each.
    """

    lines: Sequence[str]


@dataclass(frozen=True)
class Caution:
    """What to know before believing the numbers.

    Args:
        lines: a sentence each.
    """

    lines: Sequence[str]


@dataclass(frozen=True)
class Facts:
    """The setting, terms and descriptions.

    Args:
        rows: a term and its description each.
    """

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Card:
    """One of the few numbers that matter.

    Args:
        title: what it is.
        value: the number, or its mean over seeds.
        spread: its standard deviation over seeds; empty for one run.
        unit: behind the number, with the space between.
        note: whose it is.
    """

    title: str
    value: str
    spread: str = ""
    unit: str = ""
    note: str = ""


@dataclass(frozen=True)
class Cards:
    """The few numbers that matter.

    Args:
        cards: side by side.
    """

    cards: Sequence[Card]


@dataclass(frozen=True)
class TableBlock:
    """A table.

    Args:
        caption: said above the table.
        head: the columns' titles.
        rows: cells; the first of a row is its heading.
        words: how many columns, from the left, hold words; the others hold numbers, flush right.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | TableCell]]
    words: int = 1


@dataclass(frozen=True)
class Code:
    """Lines whose columns matter, such as a configuration.

    Args:
        caption: said above.
        lines: in order; their indentation is kept.
    """

    caption: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Figure:
    """A picture.

    Args:
        svg: the picture, of which :mod:`drfl.report.svg` has escaped every text.
        alt: the picture in words.
        heading: above it; none if empty.
        caption: below it; none if empty.
        swatch: before the heading, as in `TableCell`.
    """

    svg: str
    alt: str
    heading: str = ""
    caption: str = ""
    swatch: str = ""


@dataclass(frozen=True)
class Figures:
    """Small pictures, as many side by side as there is room for.

    Args:
        figures: in order.
    """

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Legend:
    """Whose the lines and marks of the section's pictures are.

    Args:
        entries: of each algorithm the key in the pictures (``data-group``), its swatch and its label.
    """

    entries: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Fold:
    """What a page shows once the reader opens it.

    Args:
        title: what it is.
        blocks: in order.
    """

    title: str
    blocks: Sequence[Block]


Block = (
    Heading | Paragraph | Points | Caution | Facts | Cards | TableBlock | Code | Figure | Figures | Legend | Fold
)  # fmt: skip


@dataclass(frozen=True)
class Section:
    """A section.

    Args:
        name: the id of its heading.
        title: its heading, mostly a question.
        answer: one sentence, which the head of the report has too; none if empty.
        blocks: what the answer rests on.
    """

    name: str
    title: str
    answer: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Document:
    """A report.

    Args:
        title: the heading.
        head: before the answers and the sections.
        sections: in order.
        writer: what wrote it.
    """

    title: str
    head: Sequence[Block]
    sections: Sequence[Section]
    writer: str


def plain(content: object) -> object:
    """Content as dictionaries, lists, strings and numbers; a block has its class's name under "kind"."""
    if dataclasses.is_dataclass(content):
        own = {field.name: plain(getattr(content, field.name)) for field in dataclasses.fields(content)}
        return {"kind": type(content).__name__, **own}
    if isinstance(content, Sequence) and not isinstance(content, str):
        return [plain(one) for one in content]
    return content
