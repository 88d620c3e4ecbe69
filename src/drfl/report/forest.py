"""Every client with its interval: a row a client, the worst first, below what the worst of equal ones would show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from drfl.report.figures import empty, label, numbers
from drfl.report.formatting import clean, count, plural
from drfl.report.side_by_side import Told

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from drfl.task.measure import Measure

SYMBOLS = {
    "circle": "●", "square": "■", "diamond": "◆", "triangle-up": "▲", "triangle-down": "▼", "star": "★", "cross": "✚",
    "circle-open": "○", "square-open": "□", "diamond-open": "◇", "triangle-up-open": "△", "triangle-down-open": "▽",
    "star-open": "☆", "x": "✖",
}  # fmt: skip
"""Of the algorithms, which readers without colours tell apart by them, and as text."""

MOST = 30
"""Clients of one figure, of a simulation."""

BARS = 120
"""Of one figure: with many algorithms it has fewer clients, but not fewer than `FEWEST`."""

FEWEST = 10

EQUAL = "If all were equal"
"""The first row: the worst of clients that are all equally good."""


def forest(told: Sequence[Told], rows: Sequence[int]) -> go.Figure:
    """A dot and its 95 % interval for every client and algorithm.

    Args:
        told: runs on the same clients, at least one.
        rows: the clients to show, first row first.
    """
    measure, equal = told[0].found.measure, any(one.found.equal is not None for one in told)
    figure = empty(f"Test {measure.words} (%)" if measure.percent else f"Test {measure.words}", "")
    ends = [float(end[i]) for one in told for end in (one.found.low, one.found.high, one.found.values) for i in rows]
    ends += [end for one in told if one.found.equal is not None for end in (one.found.equal.low, one.found.equal.high)]
    known = [measure.scale * end for end in ends if math.isfinite(end)]
    margin = 0.03 * (max(known) - min(known)) or 1e-3 * measure.scale
    least, most = min(known) - margin, max(known) + margin
    for k, one in enumerate(told):
        # Stack the algorithms within a row, which is 1 high.
        shift = ((k + 0.5) / len(told) - 0.5) * 0.76
        figure.add_scatter(**_bars(one, rows, shift, list(SYMBOLS)[k % len(SYMBOLS)], 3 * (most - least)))
    figure.update_layout(hovermode="closest", height=round(70 + (len(rows) + equal) * (10 + 8 * len(told))))
    figure.update_xaxes(range=[least, most], showgrid=True)
    found = told[0].found
    names = ["* " * _marked(told, i) + label(found.names[i], 24) for i in rows]
    figure.update_yaxes(
        # Reversed, so that the first row is on top.
        range=[len(rows) - 0.4, -1.6 if equal else -0.6], showgrid=False, ticks="", tickfont={"size": 11},
        tickvals=list(range(-1 if equal else 0, len(rows))), ticktext=[*([EQUAL] if equal else []), *names],
    )  # fmt: skip
    return figure


def shown_rows(told: Sequence[Told]) -> list[int]:
    """The clients in the rows: those with a value, by the worst that any algorithm gives them, the worst first."""
    import numpy as np

    from drfl.assessment.clients import turned

    # fmin ignores NaN: one algorithm may lack a value that others have.
    worst = np.fmin.reduce([turned(one.found.values, one.found.measure) for one in told])
    order = [int(i) for i in np.argsort(worst, kind="stable") if math.isfinite(worst[i])]
    return order[: told[0].run.most_shown(min(MOST, max(FEWEST, BARS // len(told))))]


def legend(told: Sequence[Told], rows: Sequence[int]) -> str:
    """What is said below the figure: whose the signs are, what is not shown, and what the first row is."""
    found, said = told[0].found, []
    if len(told) > 1:
        keys = (f"{sign} {one.group.label}" for one, sign in zip(told, [*SYMBOLS.values()] * len(told), strict=False))
        said.append(f"In each row, from above: {', '.join(keys)}.")
    if any(len(one.group.runs) > 1 for one in told):
        said.append(f"Seed {clean(told[0].run.seed, 24)} alone: every seed is another model.")
    if len(rows) < len(found.names):
        said.append(f"The {len(rows)} worst of {plural(len(found.names), 'client')}{found.note}.")
    if any(_marked(told, i) for i in rows):
        said.append("* could be the worst.")
    if any(one.found.equal is not None for one in told):
        said.append(f"{EQUAL}: what the worst of clients that are all equally good would show, 95 times of 100.")
    return " ".join(said)


def in_words(told: Sequence[Told]) -> str:
    """The figure for those who do not see it."""
    ends = "; ".join(
        f"{one.group.label}: the worst, {clean(one.found.names[i], 40)}, {_point(one, i)}, and "
        f"{count(float(one.found.candidates.sum()))} of {count(len(one.found.names))} could be the worst"
        f"{one.found.note}"
        for one in told
        for i in one.found.order[:1]
    )
    return f"Clients' test {told[0].found.measure.words} with 95 % intervals, the worst first. {ends}"


def _bars(one: Told, rows: Sequence[int], shift: float, symbol: str, far: float) -> dict[str, object]:
    """The trace of one algorithm, whose intervals without an end reach far."""
    found, scale = one.found, one.found.measure.scale
    points = [(float(found.values[i]), float(found.low[i]), float(found.high[i])) for i in rows]
    details = []
    for i in rows:
        more = f"{count(float(found.samples[i]))} test samples"
        more += ", could be the worst" if found.candidates[i] else ""
        details.append([label(found.names[i], 60), _point(one, i), more])
    at = [r + shift for r in range(len(rows))]
    if found.equal is not None:
        points = [(found.equal.worst, found.equal.low, found.equal.high), *points]
        told = f"{_number(found.measure, found.equal.worst)} on average, 95 of 100 times "
        details = [[EQUAL, told + found.measure.interval(found.equal.low, found.equal.high), ""], *details]
        at = [-1 + shift, *at]

    def length(value: float, end: float) -> float:
        return far if math.isinf(end) else scale * abs(end - value)

    name = label(one.group.label, 40)
    return {
        "x": numbers([scale * value for value, _, _ in points]), "y": numbers(at), "mode": "markers", "name": name,
        "legendgroup": one.group.key, "marker": {"color": one.group.colour, "size": 7, "symbol": symbol},
        "error_x": {
            "type": "data", "symmetric": False, "color": one.group.colour, "thickness": 1.5, "width": 3,
            "array": numbers([length(value, high) for value, _, high in points]),
            "arrayminus": numbers([length(value, low) for value, low, _ in points]),
        },
        "customdata": details,
        "hovertemplate": (
            f"<b>%{{customdata[0]}}</b><br>{name.replace('%{', '% {')}"
            "<br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>"
        ),
    }  # fmt: skip


def _marked(told: Sequence[Told], client: int) -> bool:
    """Of one algorithm alone: with several, others could be the worst with each."""
    return len(told) == 1 and bool(told[0].found.candidates[client])


def _point(one: Told, client: int) -> str:
    found = one.found
    ends = found.measure.interval(float(found.low[client]), float(found.high[client]))
    return f"{_number(found.measure, float(found.values[client]))}, 95 %: {ends}"


def _number(measure: Measure, value: float) -> str:
    return f"{measure.words} {measure.shown(value)}"
