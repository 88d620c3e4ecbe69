"""Drawing a forest plot: a row a client, its value and interval in words and, to scale, beside them."""

from __future__ import annotations

import math

from fpdf import FPDF

from drfl.report.pdf.content import Forest, ForestRow

ROW = 4.6
"""Millimetres from row to row."""

FOOT = 10.0
"""Below the rows: ticks, numbers and what they are."""

COLUMNS = (("Client", 44.0, "L"), ("Test rows", 18.0, "R"), ("Value", 17.0, "R"), ("Interval", 26.0, "R"))
"""Head, width in millimetres and alignment of the columns left of the plot."""

GAP = 5.0
"""Between them and the plot."""

TICKS = 6
"""At most."""

SIZE = 7.5
BAND, RULE, INK = 222, 190, 0


def height_of(block: Forest) -> float:
    """Millimetres that the plot takes, without caption and notes."""
    return ROW * (len(block.rows) + 2.4) + FOOT


def draw_forest(sheet: FPDF, block: Forest) -> None:
    """Draw a plot from where the sheet is, which has room for it; afterwards the sheet is below it."""
    left = sheet.l_margin + sum(width for _, width, _ in COLUMNS) + GAP
    plot = _Plot(left, sheet.l_margin + sheet.epw - left, block.ends)
    top = sheet.y
    _cells(sheet, top, tuple(head for head, _, _ in COLUMNS), bold=True)
    first, last = top + ROW, top + ROW * (len(block.rows) + 2.4)

    # Draw band and dotted line first, behind the marks.
    if block.band is not None:
        low, high = map(plot.x, block.band)
        sheet.set_fill_color(BAND)
        sheet.rect(low, first, max(0.3, high - low), last - first, style="F")
    sheet.set_draw_color(INK)
    sheet.set_line_width(0.2)
    sheet.set_dash_pattern(dash=0.3, gap=0.8)
    average = plot.x(block.line)
    sheet.line(average, first, average, last)
    sheet.set_dash_pattern()

    for place, row in enumerate([*block.rows, block.worst]):
        is_last = place == len(block.rows)
        y = first + ROW * (place + (0.4 if is_last else 0))
        _cells(sheet, y, (row.name, row.rows, row.shown, row.interval), bold=is_last)
        if math.isfinite(row.value):
            _mark(sheet, plot, row, y + ROW / 2, diamond=is_last)
    sheet.set_draw_color(INK)
    sheet.set_line_width(0.15)
    rule = first + ROW * (len(block.rows) + 0.2)
    sheet.line(sheet.l_margin, rule, left - GAP, rule)

    sheet.set_line_width(0.2)
    sheet.line(plot.left, last, plot.left + plot.width, last)
    sheet.set_font("text", "", SIZE - 0.5)
    places, digits = ticks(*block.ends)
    for value in places:
        x = plot.x(value)
        sheet.line(x, last, x, last + 1)
        sheet.set_xy(x - 8, last + 1.2)
        sheet.cell(16, 3, f"{value:.{digits}f}", align="C")
    sheet.set_xy(plot.left, last + 4.8)
    sheet.cell(plot.width, 3.4, block.axis, align="C")
    sheet.set_y(last + FOOT)


class _Plot:
    """Where values lie on the paper."""

    def __init__(self, left: float, width: float, ends: tuple[float, float]) -> None:
        self.left, self.width, self.ends = left, width, ends

    def x(self, value: float) -> float:
        """The place of a value; of one beyond the axis its end."""
        low, high = self.ends
        return self.left + self.width * (min(max(value, low), high) - low) / (high - low)

    def beyond(self, value: float) -> bool:
        return not self.ends[0] <= value <= self.ends[1]


def _cells(sheet: FPDF, y: float, texts: tuple[str, ...], *, bold: bool = False) -> None:
    sheet.set_font("text", "B" if bold else "", SIZE)
    sheet.set_text_color(INK)
    x = sheet.l_margin
    for text, (_, width, align) in zip(texts, COLUMNS, strict=True):
        # A long name may extend into an empty next column.
        room = width + (COLUMNS[1][1] if not texts[1] and align == "L" else 0) - 1
        sheet.set_xy(x, y)
        sheet.cell(width, ROW, fitted(sheet, text, room), align=align)
        x += width


def fitted(sheet: FPDF, text: str, width: float) -> str:
    """Text cut to a width."""
    if sheet.get_string_width(text) <= width:
        return text
    while text and sheet.get_string_width(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"


def _mark(sheet: FPDF, plot: _Plot, row: ForestRow, y: float, *, diamond: bool) -> None:
    """An interval and its value: a square, a circle, or a diamond as wide as the interval."""
    low, high, x = plot.x(row.low), plot.x(row.high), plot.x(row.value)
    sheet.set_draw_color(INK)
    sheet.set_line_width(0.25)
    if diamond:
        sheet.set_fill_color(INK)
        sheet.polygon([(low, y), (x, y - 1.3), (high, y), (x, y + 1.3)], style="F")
        return
    sheet.line(low, y, high, y)
    for end, place, side in ((row.low, low, 1), (row.high, high, -1)):
        # An arrow if the interval continues beyond the axis, otherwise a short bar.
        if plot.beyond(end):
            sheet.line(place, y, place + 1.2 * side, y - 0.8)
            sheet.line(place, y, place + 1.2 * side, y + 0.8)
        else:
            sheet.line(place, y - 0.6, place, y + 0.6)
    if row.candidate:
        sheet.set_fill_color(INK)
        sheet.rect(x - 0.9, y - 0.9, 1.8, 1.8, style="F")
    else:
        sheet.set_fill_color(255)
        sheet.circle(x, y, 0.9, style="DF")


def ticks(low: float, high: float) -> tuple[list[float], int]:
    """Round numbers between the ends, and how many decimals they need."""
    step = 10.0 ** math.floor(math.log10((high - low) / TICKS))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) <= TICKS)
    # 1e-9: do not lose a tick at an end to rounding.
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)], max(0, -math.floor(math.log10(step) + 1e-9))
