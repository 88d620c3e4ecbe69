"""The style of figures drawn with matplotlib: colours, lines, panels and legends."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from drfl.core.packages import require

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import RcKeyType


DPI = 150
PANEL = (4.2, 3.1)
"""Width and height of a panel in inches."""

IN_A_ROW = 3

COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00", "#8B5A2B"),
    *("#6A3D9A", "#8C8C8C", "#7A9A01", "#00505C"),
)
"""Okabe and Ito's colour-blind-safe palette, with brown in place of the pale yellow, followed by more colours."""

DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "*", ">", "p")
"""The lengths of the three lists have no common divisor, so methods differ in all three, even in greyscale print."""

STYLE: dict[RcKeyType, float | str | bool] = {
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E0E0E0",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.0,
    "svg.hashsalt": "drfl",
    "svg.fonttype": "path",
}


class Look(NamedTuple):
    """The style of a method, the same in all figures.

    Args:
        colour: Colour of line, marker and band.
        dash: matplotlib's line style.
        marker: matplotlib's marker.
    """

    colour: str
    dash: str | tuple[float, tuple[float, ...]]
    marker: str


def look(place: int) -> Look:
    """Return the style of the method at this position in the specification."""
    return Look(COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)], MARKERS[place % len(MARKERS)])


def check() -> None:
    """Check that figures can be drawn.

    Raises:
        InputError: If matplotlib is not installed.
    """
    require("matplotlib", "figures require matplotlib: pip install 'drfl[experiments]'")


@contextmanager
def panels_of(panels: int) -> Iterator[tuple[Figure, Sequence[Axes]]]:
    """Make a figure with this number of panels; inside the block the user's matplotlibrc has no effect.

    Raises:
        InputError: If matplotlib is not installed.
    """
    check()
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    class Shown(Figure):
        """A figure that notebooks display without pyplot, which would keep it in memory forever."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    across = 2 if panels == 4 else min(panels, IN_A_ROW)
    down = -(-panels // across)
    with mpl.rc_context():
        # The user's matplotlibrc would change sizes and colours.
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        figure = Shown(
            figsize=(PANEL[0] * across, PANEL[1] * down + 0.6),
            dpi=DPI,
            layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06),
        )
        # A canvas without pyplot: pyplot would keep every figure in memory, and needs a display.
        FigureCanvasAgg(figure)
        yield figure, [figure.add_subplot(down, across, k + 1) for k in range(panels)]


def level(axes: Sequence[Axes]) -> None:
    """Set the same y limits on all panels."""
    ends = [axis.get_ylim() for axis in axes]
    for axis in axes:
        axis.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Add one legend for all panels, below them."""
    entries: dict[str, Artist] = {}
    for axis in axes:
        handles, names = axis.get_legend_handles_labels()
        for handle, name in zip(handles, names, strict=True):
            entries.setdefault(str(name), handle)
    if entries:
        longest = max(map(len, entries))
        room = int(figure.get_figwidth() * 13 / (longest + 7))  # about 13 letters per inch
        # The legend has as few rows as possible, of equal lengths.
        columns = max(1, min(len(entries), room))
        rows = -(-len(entries) // columns)
        figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=-(-len(entries) // rows))
