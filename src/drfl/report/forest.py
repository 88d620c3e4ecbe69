"""The forest plot: a row per client with its value and interval as text and to scale, and one for the worst client."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drfl.assessment.clients import Assessment
from drfl.report.formatting import NOTHING, count
from drfl.report.svg import FAINT, SOFT, AxisScale, Picture, path

ROW = 19.0
"""Distance between rows."""

PART = 50
"""Maximum number of clients in one picture; a page has no room for more."""

LEFT, ROWS, VALUE, INTERVAL = 4.0, 240.0, 305.0, 415.0
"""Start of the names, and ends of the columns of numbers."""

START, END = 440.0, 810.0
"""Ends of the axis."""

MARGIN = 0.04
"""Share of the axis beyond the outermost ends."""

WORST, EQUAL = "Worst client, whichever it is", "Expected if equal"
"""Labels of the rows below the clients."""


def draw_forests(assessment: Assessment, most: int) -> list[str]:
    """Draw the worst clients of a model, in several pictures with one scale if a page has no room for all."""
    shown = assessment.order[:most]
    return [_forest(assessment, shown, shown[start : start + PART]) for start in range(0, len(shown), PART)]


def _forest(assessment: Assessment, shown: Sequence[int], part: Sequence[int]) -> str:
    """Draw some of the clients on an axis for all clients shown."""
    measure, scale = assessment.measure, assessment.measure.scale
    rows = [(assessment.names[i], count(float(assessment.samples[i])), i) for i in part]
    band = None if assessment.equal is None else (scale * assessment.equal.low, scale * assessment.equal.high)
    known = [value for value in assessment.values.tolist() if math.isfinite(value)]
    # Each client counts once, whatever its number of rows, as in the tables.
    average = scale * sum(known) / len(known)
    values = [float(end[i]) for i in shown for end in (assessment.values, assessment.low, assessment.high)]
    values += [assessment.worst.value, assessment.worst.low, assessment.worst.high]
    finite = [scale * value for value in values if math.isfinite(value)] + [average, *(band or ())]
    room = MARGIN * (max(finite) - min(finite)) or 1.0
    low, high = min(finite) - room, max(finite) + room
    if measure.percent:  # the axis of a percentage ends just beyond 0 and 100
        low, high = max(low, -room), min(high, 100 + room)

    first, last = 24.0, 24.0 + ROW * (len(rows) + 1.4 + (band is not None))
    picture, x = Picture(820, last + 42), AxisScale(low, high, START, END)
    picture.write(LEFT, 14, "Client", bold=True)
    for end, head in ((ROWS, "Test rows"), (VALUE, "Value"), (INTERVAL, "Interval")):
        picture.write(end, 14, head, anchor="end", bold=True)
    # Draw band, grid and average first, behind the marks.
    if band is not None:
        left, right = (min(max(x.at(end), START), END) for end in band)
        # Draw at least a pixel, because a band of a single value would be invisible.
        width = max(1.0, right - left)
        picture.draw("rect", x=left, y=first, width=width, height=last - first, fill_opacity=FAINT)
    for value, label in x.ticks():
        picture.line(x.at(value), last, x.at(value), last + 4)
        picture.write(x.at(value), last + 17, label, anchor="middle", opacity=SOFT)
    picture.line(START, last, END, last)
    axis = f"{measure.words}, {measure.unit}".rstrip(", ") + ("" if measure.more_is_better else " (less is better)")
    picture.write((START + END) / 2, last + 34, axis, anchor="middle", opacity=SOFT)
    picture.line(x.at(average), first, x.at(average), last, stroke_dasharray="1.5 3", stroke_width=1.5)

    for place, (name, size, i) in enumerate(rows):
        y, value = first + ROW * (place + 0.5), float(assessment.values[i])
        picture.write(LEFT, y + 4, name, width=ROWS - LEFT - 55)
        picture.write(ROWS, y + 4, size, anchor="end")
        if math.isnan(value):
            picture.write(VALUE, y + 4, NOTHING, anchor="end")
            picture.write(INTERVAL, y + 4, "unknown", anchor="end")
            continue
        ends = float(assessment.low[i]), float(assessment.high[i])
        picture.write(VALUE, y + 4, measure.shown(value), anchor="end")
        picture.write(INTERVAL, y + 4, measure.interval(*ends), anchor="end")
        _mark(picture, x, y, scale * value, scale * ends[0], scale * ends[1], filled=bool(assessment.candidates[i]))
    rule = first + ROW * (len(rows) + 0.2)
    picture.line(LEFT, rule, INTERVAL, rule, opacity=0.5)
    y, ends = first + ROW * (len(rows) + 0.9), (assessment.worst.low, assessment.worst.high)
    picture.write(LEFT, y + 4, WORST, bold=True)
    picture.write(VALUE, y + 4, measure.shown(assessment.worst.value), anchor="end", bold=True)
    picture.write(INTERVAL, y + 4, measure.interval(*ends), anchor="end", bold=True)
    left, middle, right = (
        min(max(x.at(scale * end), START), END) for end in (ends[0], assessment.worst.value, ends[1])
    )
    picture.draw("path", d=path([(left, y), (middle, y - 5.5), (right, y), (middle, y + 5.5)]) + "z")
    if assessment.equal is not None:
        picture.write(LEFT, y + ROW + 4, EQUAL)
        picture.write(VALUE, y + ROW + 4, measure.shown(assessment.equal.worst), anchor="end")
        picture.write(
            INTERVAL, y + ROW + 4, measure.interval(assessment.equal.low, assessment.equal.high), anchor="end"
        )
    return picture.text


def legend(assessment: Assessment) -> str:
    """Explain how to read the plot."""
    percent = f"{100 * assessment.level:g} %"
    lines = [
        f"Filled square: could be the worst client ({percent} confidence). Open circle: could not. Line: the client's "
        f"{percent} confidence interval, simultaneous over the clients of an algorithm (Bonferroni; "
        f"{assessment.method}). "
        "Diamond: confidence interval for the true value of the worst client, whichever it is. Dotted line: average "
        "over clients."
    ]
    if assessment.equal is not None:
        lines.append(
            "Last row and grey band (expected if equal): the worst value to expect from sampling noise alone if all "
            "clients were equally good, on average and in 95 of 100 federations."
        )
    # Unbounded values have infinite intervals if there are few rows.
    if any(math.isinf(x) for ends in (assessment.low, assessment.high) for x in ends.tolist()):
        lines.append("Arrow: the interval extends beyond the axis.")
    return " ".join(lines)


def describe_forest(assessment: Assessment, label: str) -> str:
    """Describe the plot in words, for readers who cannot see it."""
    measure, i = assessment.measure, assessment.order[0]
    ends = measure.interval(float(assessment.low[i]), float(assessment.high[i]))
    percent, candidates = f"{100 * assessment.level:g} %", count(float(assessment.candidates.sum()))
    return (
        f"Clients' test {measure.words} with {percent} confidence intervals, the worst first. {label}: "
        f"{assessment.names[i]} has the {measure.worst_word} measured {measure.words}, "
        f"{measure.shown(float(assessment.values[i]))}, {percent}: {ends}; "
        f"{candidates} of {count(len(assessment.names))} could be the worst{assessment.note}"
    )


def _mark(picture: Picture, x: AxisScale, y: float, value: float, low: float, high: float, *, filled: bool) -> None:
    """Draw a client's interval and its value: a filled square, or an open circle."""
    place, radius = x.at(value), 3.6
    for end, direction in ((low, -1), (high, 1)):
        to = min(max(x.at(end), START), END) if math.isfinite(end) else (START if direction < 0 else END)
        if direction * (to - place) > radius:  # the line ends at the edge of the mark
            picture.line(place + direction * radius, y, to, y, stroke_width=1.2)
        if x.low <= end <= x.high:
            picture.line(to, y - 3, to, y + 3, stroke_width=1.2)
        else:  # an arrow: the interval extends beyond the axis
            tip = path([(to - 5 * direction, y - 3), (to, y), (to - 5 * direction, y + 3)])
            picture.draw("path", d=tip, fill="none", stroke="currentColor")
    if filled:
        picture.draw("rect", x=place - radius, y=y - radius, width=2 * radius, height=2 * radius)
    else:
        picture.draw("circle", cx=place, cy=y, r=radius - 0.4, fill="none", stroke="currentColor", stroke_width=1.2)
