"""What a report's template is filled with: plain text and numbers. The template alone makes HTML of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from drfl.report.groups import Group


@dataclass(frozen=True)
class TableCell:
    """A cell of a table that is more than its text.

    Args:
        text: what it says.
        line: the algorithm of whose line a short piece stands before the text.
        strong: whether it is in bold.
    """

    text: str
    line: Group | None = None
    strong: bool = False


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
class Takeaway:
    """The comparison in a sentence or two.

    Args:
        start: with which the first sentence begins: the best algorithm, or that none is shown to be.
        rest: how it goes on.
    """

    start: str
    rest: str


@dataclass(frozen=True)
class Figure:
    """A place in the page where its script draws a figure.

    Args:
        name: the element's id.
        alt: the figure in words.
        height: in pixels.
        heading: above it; none if empty.
        caption: below it; none if empty.
        line: the algorithm of whose line a short piece stands before the heading.
    """

    name: str
    alt: str
    height: int
    heading: str = ""
    caption: str = ""
    line: Group | None = None


@dataclass(frozen=True)
class Section:
    """A section of figures.

    Args:
        name: the id of its heading.
        title: its heading.
        figures: in order.
        note: said above the figures; nothing if empty.
        columns: how many figures may stand side by side where the page is wide: "two", "three", or "" for one.
        tables: below the figures.
    """

    name: str
    title: str
    figures: Sequence[Figure]
    note: str = ""
    columns: str = ""
    tables: Sequence[TableBlock] = ()


@dataclass(frozen=True)
class Configuration:
    """How to repeat an algorithm's first run.

    Args:
        algorithm: its label.
        seed: of the run.
        run: the folder of the run.
        command: what repeats it.
        settings: the configuration's lines; empty if none was kept.
        seeds: how many seeds there are.
    """

    algorithm: str
    seed: str
    run: str
    command: str
    settings: str
    seeds: int


@dataclass(frozen=True)
class Details:
    """What a reader opens when they want to know exactly.

    Args:
        clients: of the only run; None where there are several.
        runs: how each ended.
        ledger: what each cost.
        configurations: one per algorithm.
        versions: of the software; None if unknown.
    """

    clients: TableBlock | None
    runs: TableBlock
    ledger: TableBlock
    configurations: Sequence[Configuration]
    versions: TableBlock | None


@dataclass(frozen=True)
class Page:
    """A whole report but for its style and scripts.

    Args:
        title: the heading.
        lead: one sentence, what was run.
        facts: the setting, terms and descriptions.
        notices: what to know before believing the numbers.
        cards: the few numbers that matter.
        takeaway: the comparison in words; None for one algorithm.
        summary: a row per algorithm; None for one run.
        legend: the algorithms that buttons show and hide; none for one algorithm.
        sections: the figures.
        details: the tables that are closed at first.
        drawn: plotly's data and layout by the figure's name, as plain JSON values.
    """

    title: str
    lead: str
    facts: Sequence[tuple[str, str]]
    notices: Sequence[str]
    cards: Sequence[Card]
    takeaway: Takeaway | None
    summary: TableBlock | None
    legend: Sequence[Group]
    sections: Sequence[Section]
    details: Details
    drawn: dict[str, object] = field(repr=False)
