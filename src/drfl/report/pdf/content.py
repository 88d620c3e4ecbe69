"""What is on the sheets of a printed report, as plain text and numbers; :mod:`drfl.report.pdf.sheet` draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drfl.report.content import TableBlock


@dataclass(frozen=True)
class Paragraph:
    """A paragraph.

    Args:
        text: what it says.
        heading: whether it stands above what follows, in bold.
        small: whether it is a note in small print.
    """

    text: str
    heading: bool = False
    small: bool = False


@dataclass(frozen=True)
class Points:
    """A list of sentences.

    Args:
        lines: a sentence each.
    """

    lines: Sequence[str]


@dataclass(frozen=True)
class Listing:
    """Lines whose columns matter, such as a configuration.

    Args:
        caption: said above.
        lines: in order; indentation is kept.
    """

    caption: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Digests:
    """What files are known by.

    Args:
        caption: said above.
        rows: whose it is, or nothing where it is that of the row above; of what it is; and its hexadecimal digits, or
            words where there are none.
    """

    caption: str
    rows: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class ForestRow:
    """A client in a forest plot.

    Args:
        name: the client's.
        rows: test rows, as shown.
        shown: its value, as shown.
        interval: its interval, as shown.
        value: its value in the axis' unit; NaN = nothing is drawn.
        low: lower end of the interval.
        high: upper end.
        candidate: whether it could be the worst.
    """

    name: str
    rows: str
    shown: str
    interval: str
    value: float
    low: float
    high: float
    candidate: bool


@dataclass(frozen=True)
class Forest:
    """A forest plot with its table: a row a client, value and interval beside it.

    Args:
        caption: said above.
        axis: what the values are, with the unit.
        rows: the clients, the worst first.
        worst: the row of the worst client, whoever it is, drawn as a diamond.
        band: where the worst of equally good clients would measure, both ends; None = not known.
        line: the average over clients.
        ends: of the axis.
    """

    caption: str
    axis: str
    rows: Sequence[ForestRow]
    worst: ForestRow
    band: tuple[float, float] | None
    line: float
    ends: tuple[float, float]


Block = Paragraph | Points | Listing | Digests | Forest | TableBlock


@dataclass(frozen=True)
class Question:
    """A section, which begins a page.

    Args:
        asked: its heading.
        answer: one sentence.
        blocks: what the answer rests on.
    """

    asked: str
    answer: str
    blocks: Sequence[Block]

    @property
    def short(self) -> bool:
        """Whether it is a few sentences, which need no page of their own."""
        return all(isinstance(block, Paragraph | Points) for block in self.blocks)


@dataclass(frozen=True)
class Document:
    """A printed report.

    Args:
        title: the heading.
        lead: one sentence, what was run.
        facts: the setting, terms and descriptions.
        notices: what to know before believing the numbers.
        questions: in order; the first page has each answer.
        writer: what wrote it, in the foot of every page.
    """

    title: str
    lead: str
    facts: Sequence[tuple[str, str]]
    notices: Sequence[str]
    questions: Sequence[Question]
    writer: str
