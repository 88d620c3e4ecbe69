"""The forest plot: a row per client with its value and interval in words and to scale, and one for the worst client."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drfl.assessment.clients import Assessment
from drfl.report.formatting import NOTHING, count
from drfl.report.svg import FAINT, SOFT, Picture, Scale, path

ROW = 19.0
"""From row to row."""

PART = 50
"""Clients of one picture: a page has room for no more."""

LEFT, ROWS, VALUE, INTERVAL = 4.0, 240.0, 305.0, 415.0
"""Where names start, and where the columns of numbers end."""

START, END = 440.0, 810.0
"""Of the axis."""

MARGIN = 0.04
"""Of the axis, beyond the outermost ends."""

WORST, EQUAL = "The worst client, whoever it is", "The worst, if all were equal"
"""The rows below the clients."""


def forests(found: Assessment, most: int) -> list[str]:
    """The plot of a model's worst clients; of more than a page has room for, several on one scale.

    Args:
        found: the assessment, names as they are shown.
        most: clients shown.
    """
    shown = found.order[:most]
    return [_forest(found, shown, shown[start : start + PART]) for start in range(0, len(shown), PART)]


def _forest(found: Assessment, shown: Sequence[int], part: Sequence[int]) -> str:
    """The plot of part of the clients, on an axis for all that are shown."""
    own, scale = found.measure, found.measure.scale
    rows = [(found.names[i], count(float(found.samples[i])), i) for i in part]
    band = None if found.equal is None else (scale * found.equal.low, scale * found.equal.high)
    known = [value for value in found.values.tolist() if math.isfinite(value)]
    average = scale * sum(known) / len(known)
    values = [float(end[i]) for i in shown for end in (found.values, found.low, found.high)]
    values += [found.worst.value, found.worst.low, found.worst.high]
    finite = [scale * value for value in values if math.isfinite(value)] + [average, *(band or ())]
    room = MARGIN * (max(finite) - min(finite)) or 1.0
    low, high = min(finite) - room, max(finite) + room
    if own.percent:  # the axis of a share ends just beyond 0 and 100
        low, high = max(low, -room), min(high, 100 + room)

    first, last = 24.0, 24.0 + ROW * (len(rows) + 1.4 + (band is not None))
    picture, x = Picture(820, last + 42), Scale(low, high, START, END)
    picture.write(LEFT, 14, "Client", bold=True)
    for end, head in ((ROWS, "Test rows"), (VALUE, "Value"), (INTERVAL, "Interval")):
        picture.write(end, 14, head, anchor="end", bold=True)
    # Draw band, grid and average first, behind the marks.
    if band is not None:
        left, right = (min(max(x.at(end), START), END) for end in band)
        width = max(1.0, right - left)
        picture.draw("rect", x=left, y=first, width=width, height=last - first, fill_opacity=FAINT)
    for value, label in x.ticks():
        picture.line(x.at(value), last, x.at(value), last + 4)
        picture.write(x.at(value), last + 17, label, anchor="middle", opacity=SOFT)
    picture.line(START, last, END, last)
    axis = f"{own.words}, {own.unit}".rstrip(", ") + ("" if own.more_is_better else " (less is better)")
    picture.write((START + END) / 2, last + 34, axis, anchor="middle", opacity=SOFT)
    picture.line(x.at(average), first, x.at(average), last, stroke_dasharray="1.5 3", stroke_width=1.5)

    for place, (name, size, i) in enumerate(rows):
        y, value = first + ROW * (place + 0.5), float(found.values[i])
        picture.write(LEFT, y + 4, name, width=ROWS - LEFT - 55)
        picture.write(ROWS, y + 4, size, anchor="end")
        if math.isnan(value):
            picture.write(VALUE, y + 4, NOTHING, anchor="end")
            picture.write(INTERVAL, y + 4, "not known", anchor="end")
            continue
        ends = float(found.low[i]), float(found.high[i])
        picture.write(VALUE, y + 4, own.shown(value), anchor="end")
        picture.write(INTERVAL, y + 4, own.interval(*ends), anchor="end")
        _mark(picture, x, y, scale * value, scale * ends[0], scale * ends[1], filled=bool(found.candidates[i]))
    rule = first + ROW * (len(rows) + 0.2)
    picture.line(LEFT, rule, INTERVAL, rule, opacity=0.5)
    y, ends = first + ROW * (len(rows) + 0.9), (found.worst.low, found.worst.high)
    picture.write(LEFT, y + 4, WORST, bold=True)
    picture.write(VALUE, y + 4, own.shown(found.worst.value), anchor="end", bold=True)
    picture.write(INTERVAL, y + 4, own.interval(*ends), anchor="end", bold=True)
    left, middle, right = (min(max(x.at(scale * end), START), END) for end in (ends[0], found.worst.value, ends[1]))
    picture.draw("path", d=path([(left, y), (middle, y - 5.5), (right, y), (middle, y + 5.5)]) + "z")
    if found.equal is not None:
        picture.write(LEFT, y + ROW + 4, EQUAL)
        picture.write(VALUE, y + ROW + 4, own.shown(found.equal.worst), anchor="end")
        picture.write(INTERVAL, y + ROW + 4, own.interval(found.equal.low, found.equal.high), anchor="end")
    return picture.text


def legend(found: Assessment) -> str:
    """How the plot is read."""
    percent = f"{100 * found.level:g} %"
    lines = [
        f"Filled square: could be the worst client ({percent} confidence); open circle: could not. Line: the client's "
        f"{percent} interval, which holds for all clients of an algorithm together (Bonferroni; {found.method}). "
        "Diamond: the true value of whichever client is truly the worst. Dotted line: average over clients."
    ]
    if found.equal is not None:
        lines.append(
            "Grey band and last row: where the worst would measure in 95 of 100 federations, and on average, if all "
            "clients were equally good."
        )
    # Values without bounds have endless intervals if there are few rows.
    if any(math.isinf(x) for ends in (found.low, found.high) for x in ends.tolist()):
        lines.append("Arrow: the interval goes beyond the axis.")
    return " ".join(lines)


def in_words(found: Assessment, label: str) -> str:
    """The plot for those who do not see it.

    Args:
        found: the assessment, names as they are shown.
        label: of the algorithm.
    """
    own, i = found.measure, found.order[0]
    ends = own.interval(float(found.low[i]), float(found.high[i]))
    return (
        f"Clients' test {own.words} with {100 * found.level:g} % intervals, the worst first. {label}: the worst, "
        f"{found.names[i]}, {own.words} {own.shown(float(found.values[i]))}, {100 * found.level:g} %: {ends}, and "
        f"{count(float(found.candidates.sum()))} of {count(len(found.names))} could be the worst{found.note}"
    )


def _mark(picture: Picture, x: Scale, y: float, value: float, low: float, high: float, *, filled: bool) -> None:
    """A client's interval and its value: a filled square, or an open circle."""
    place, radius = x.at(value), 3.6
    for end, away in ((low, -1), (high, 1)):
        to = min(max(x.at(end), START), END) if math.isfinite(end) else (START if away < 0 else END)
        if away * (to - place) > radius:  # the line stops where the mark begins
            picture.line(place + away * radius, y, to, y, stroke_width=1.2)
        if x.low <= end <= x.high:
            picture.line(to, y - 3, to, y + 3, stroke_width=1.2)
        else:  # an arrow: the interval goes on beyond the axis
            tip = path([(to - 5 * away, y - 3), (to, y), (to - 5 * away, y + 3)])
            picture.draw("path", d=tip, fill="none", stroke="currentColor")
    if filled:
        picture.draw("rect", x=place - radius, y=y - radius, width=2 * radius, height=2 * radius)
    else:
        picture.draw("circle", cx=place, cy=y, r=radius - 0.4, fill="none", stroke="currentColor", stroke_width=1.2)
