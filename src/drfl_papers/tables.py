"""Tables as data, for Markdown and the screen; the table of final metrics beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from drfl.core.run_end import failures_text
from drfl.experiments.run.measures import Interval, MetricColumn, column, paper_text
from drfl.task.measure import NOTHING
from drfl_papers.plan import Plan
from drfl_papers.records import Runs, finals


class TableEntry(NamedTuple):
    """One cell of a table."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class ResultTable:
    """A table, ready for display."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[TableEntry, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """Format a heading, the table with the best values in bold, and the notes."""
        lines = [[_safe(text) for text in self.header]]
        for row in self.rows:
            lines.append([_safe(f"**{entry.text}**" if entry.best else entry.text) for entry in row])
        # Align columns in the plain text too, with numbers at the right.
        widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
        lines.insert(1, ["-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:])])
        texts = []
        for line in lines:
            rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
            texts.append("| " + " | ".join([line[0].ljust(widths[0]), *rest]) + " |")
        return "\n\n".join([f"## {plain(self.title)}", "\n".join(texts), *self.notes]) + "\n"


def final(plan: Plan, found: Runs, beside: bool = True) -> tuple[ResultTable, ...]:
    """Make one table per metric: methods down, our number and the paper's in each setting across; notes below the last.

    Args:
        plan: The plan of the runs.
        found: The runs; their last points are shown.
        beside: Whether to show the paper's numbers beside ours.
    """
    spec, tables = plan.spec, []
    for place, metric in enumerate(spec.metrics):
        shown = column(metric)
        header, columns = ["method"], [[TableEntry(method.name) for method in spec.methods]]
        for setting in plan.settings:
            texts, means = [], {}
            for k, method in enumerate(spec.methods):
                group = found[setting, method.name]
                # A mean over the other seeds would flatter a method that failed at some seed.
                how = failures_text([run.stopped for run in group])
                if how:
                    texts.append(how)
                    continue
                interval = Interval.of(list(finals(group, metric).values()))
                texts.append(interval.text(shown.digits, shown.scale))
                # Rounded as displayed, so that equal numbers are all bold.
                means[k] = round(shown.scale * interval.mean, shown.digits)
            top = _best(means, shown)
            header.append(setting)
            columns.append([TableEntry(text, k in means and means[k] == top) for k, text in enumerate(texts)])
            if beside and spec.values.get(setting):
                numbers = {name: values[place] for name, values in spec.values[setting].items()}
                top = _best(numbers, shown)
                header.append("paper")
                columns.append(
                    [
                        TableEntry(paper_text(numbers[method.name]), numbers[method.name] == top)
                        if method.name in numbers
                        else TableEntry(NOTHING)
                        for method in spec.methods
                    ]
                )
        tables.append(ResultTable(sentence(shown.label), tuple(header), tuple(zip(*columns, strict=True))))
    notes = []
    if plan.repeats > 1:
        notes.append("Mean over the repeats ± half the width of its 95 % t-interval.")
    notes.append("The best value of a column, to the printed digit, is in bold.")
    if any(failures_text([run.stopped for run in group]) for group in found.values()):
        notes.append("A method that failed at some seed has no mean.")
    *most, last = tables
    return (*most, replace(last, notes=(" ".join(notes),)))


def _best(numbers: Mapping[int, float] | Mapping[str, float], shown: MetricColumn) -> float | None:
    if not numbers:
        return None
    return (min if shown.small else max)(numbers.values())


def sentence(text: str) -> str:
    """Capitalise the first letter, unless it is Greek and therefore a symbol."""
    return text[:1].upper() + text[1:] if text[:1].isascii() else text


def plain(text: str) -> str:
    """Join a text into one line."""
    return " ".join(text.split())


def _safe(text: str) -> str:
    """Escape a text for a cell of a Markdown table."""
    return plain(text).replace("|", "\\|")
