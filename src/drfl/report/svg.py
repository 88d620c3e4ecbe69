"""SVG pictures: shapes, text and axes in the colour of the surrounding text, so that they suit light and dark pages."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

SIZE = 12.0
"""Height of letters in units of the picture, which are pixels on a page that shows it at its natural size."""

SOFT, FAINT = 0.7, 0.15
"""Opacity of text beside the data, and of grids."""

DASHES = {
    "solid": "",
    "dash": "7 4",
    "dot": "2 3",
    "dashdot": "7 3 2 3",
    "longdash": "13 4",
    "dashdotdot": "7 3 2 3 2 3",
}

MARKS = {
    "circle": "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z",
    "square": "M-2.7-2.7h5.4v5.4h-5.4z",
    "diamond": "M0-3.8L3.8 0 0 3.8-3.8 0z",
    "up": "M0-3.6L3.4 2.6h-6.8z",
    "down": "M0 3.6L3.4-2.6h-6.8z",
    "cross": "M-3-1.2h1.8v-1.8h2.4v1.8h1.8v2.4h-1.8v1.8h-2.4v-1.8h-1.8z",
    "bar": "M-1.4-3.6h2.8v7.2h-2.8z",
}
"""Paths of the marks, centred on the position of a value."""

TICKS = 6
"""Maximum number of ticks on an axis."""

NARROW, WIDE = "iIjl.,:;'|!()[] ftr1", "mwMW%@ABCDGHKNOQRUVXYZ_"


class AxisScale(NamedTuple):
    """Map from values to positions in a picture.

    Args:
        low: Value at the start.
        high: Value at the end; larger.
        start: Position of ``low``.
        end: Position of ``high``.
        log: Whether equal factors have equal lengths.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value."""
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self, *, whole: bool = False) -> list[tuple[float, str]]:
        """Return round numbers between the ends with their labels; with ``whole`` only whole numbers."""
        if self.log:
            # Use powers of ten, and values between them if there are fewer than two powers.
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            every = -(-len(powers) // TICKS)
            for factors in ((1,), (1, 2, 5)):
                places = [m * 10.0**e for e in powers[::every] for m in factors]
                places = [place for place in places if self.low <= place <= self.high]
                if len(places) > 1:
                    break
            return [(place, f"{place:g}") for place in places]
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / TICKS))
        step *= next(factor for factor in (1, 2, 5, 10) if (self.high - self.low) / (factor * step) <= TICKS)
        step = max(1.0, step) if whole else step
        # The tolerance of 1e-9 prevents losing a tick at an end by rounding.
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        # Print plain numbers unless they are very large or very small.
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        form = f".{digits}f" if 1e-5 <= step < 1e6 else "g"
        return [(k * step, format(k * step + 0.0, form)) for k in range(first, last + 1)]


class Picture:
    """A picture to which elements are added.

    Args:
        width: Width in pixels on a page that shows it at its natural size.
        height: Height, likewise.
    """

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self._parts: list[str] = []

    def draw(self, tag: str, content: str = "", /, **attributes: str | float) -> None:
        """Add an element, see :func:`element`."""
        self._parts.append(element(tag, content, **attributes))

    def line(
        self, x1: float, y1: float, x2: float, y2: float, *, opacity: float = 1.0, **attributes: str | float
    ) -> None:
        """Add a straight line."""
        self.draw("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke="currentColor", stroke_opacity=opacity, **attributes)

    def write(
        self, x: float, y: float, text: str, *, width: float = math.inf, anchor: str = "start", size: float = SIZE,
        bold: bool = False, opacity: float = 1.0,
    ) -> None:  # fmt: skip
        """Add a line of text, cut to a width.

        Args:
            x: Position of its start, middle or end.
            y: Position of the baseline.
            text: Any text; it is escaped here.
            width: Maximum width, by an estimate of the letters' widths.
            anchor: The part of the text at x: "start", "middle" or "end".
            size: Height of the letters.
            bold: Whether the text is bold.
            opacity: Less than 1 for text beside the data.
        """
        weight = {"font_weight": "bold"} if bold else {}
        words = html.escape(fit_text(text, width / size))
        self.draw("text", words, x=x, y=y, text_anchor=anchor, font_size=size, fill_opacity=opacity, **weight)

    def frame(self, x: AxisScale, y: AxisScale, x_title: str, y_title: str, *, whole: bool = False) -> None:
        """Add the axes below and left of a plot, with a grid of horizontal lines."""
        for value, label in y.ticks():
            self.line(x.start, y.at(value), x.end, y.at(value), opacity=FAINT)
            self.write(x.start - 6, y.at(value) + 4, label, anchor="end", opacity=SOFT)
        self.line(x.start, y.start, x.end, y.start, opacity=2 * FAINT)
        for value, label in x.ticks(whole=whole):
            self.line(x.at(value), y.start, x.at(value), y.start + 4, opacity=2 * FAINT)
            self.write(x.at(value), y.start + 17, label, anchor="middle", opacity=SOFT)
        self.write((x.start + x.end) / 2, y.start + 33, x_title, anchor="middle", opacity=SOFT)
        self.write(x.start, y.end - 8, y_title, opacity=SOFT)

    def window(self, x: AxisScale, y: AxisScale, content: Sequence[str]) -> None:
        """Add elements that are clipped at the axes."""
        width, height = x.end - x.start, y.start - y.end
        self.draw(
            # A nested svg element clips its content at its border.
            "svg", "".join(content), x=x.start, y=y.end, width=width, height=height,
            viewBox=f"{number(x.start)} {number(y.end)} {number(width)} {number(height)}",
        )  # fmt: skip

    @property
    def text(self) -> str:
        """The picture as an SVG document."""
        return element(
            "svg", "".join(self._parts), xmlns="http://www.w3.org/2000/svg", width=self.width, height=self.height,
            viewBox=f"0 0 {number(self.width)} {number(self.height)}", font_size=SIZE, fill="currentColor",
        )  # fmt: skip


def element(tag: str, content: str = "", /, **attributes: str | float) -> str:
    """Build an SVG element.

    Args:
        tag: Name of the element.
        content: Elements, or escaped text.
        attributes: Attributes, with underscores for hyphens; they are escaped here.
    """
    listed = "".join(
        f' {name.replace("_", "-")}="{html.escape(value) if isinstance(value, str) else number(value)}"'
        for name, value in attributes.items()
    )
    return f"<{tag}{listed}>{content}</{tag}>" if content else f"<{tag}{listed}/>"


def number(value: float) -> str:
    """Format a position with at most two decimals, which is finer than anyone can see."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"


def hint(*lines: str) -> str:
    """Build a tooltip; it must be the first content of its element."""
    return element("title", html.escape("\n".join(lines)))


def path(points: Sequence[tuple[float, float]]) -> str:
    """Build the path along some points."""
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)


def mark(shape: str, x: float, y: float, content: str = "", *, scale: float = 1.0) -> str:
    """Draw the mark of a value, one of `MARKS`, in the colour of the surrounding element."""
    place = f"translate({number(x)} {number(y)})" + ("" if scale == 1 else f" scale({number(scale)})")
    return element("path", content, d=MARKS[shape], transform=place)


def fit_text(text: str, width: float) -> str:
    """Cut text to a width in units of its letters' height; widths are estimates, because no font is known."""
    if width_of(text) <= width:
        return text
    room, place = width - 0.7, 0  # room for the ellipsis
    while place < len(text) and (room := room - width_of(text[place])) >= 0:
        place += 1
    return f"{text[:place].rstrip()}…"


def width_of(text: str) -> float:
    """Estimate the width of text in units of its letters' height, without a font."""
    return sum(
        0.36 if letter in NARROW
        else 0.85 if letter in WIDE
        else 1.0 if unicodedata.east_asian_width(letter) in "WF"
        else 0.56
        for letter in text
    )  # fmt: skip
