"""Figures of the papers, drawn with matplotlib."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from drfl.errors import InputError, unknown
from drfl.experiments.measures import Interval, measure
from drfl.history import DIGITS, Metrics, csv_text
from drfl.papers.plan import Collected
from drfl.papers.records import EvaluatedRound, Place, Run, finals, runs
from drfl.papers.specification import Panel
from drfl.papers.tables import sentence

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
"""Okabe and Ito's colours, which the colour-blind tell apart, a brown for the yellow, which is too pale; then more."""

DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "*", ">", "p")
"""Of lengths without a common divisor with the colours': methods differ in all three, so that grey print tells them."""

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
    """How a method is drawn, wherever it is.

    Args:
        colour: of line, marker and band.
        dash: matplotlib's line style.
        marker: matplotlib's marker.
    """

    colour: str
    dash: str | tuple[float, tuple[float, ...]]
    marker: str


def look(place: int) -> Look:
    """Of the method at this place in the specification."""
    return Look(COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)], MARKERS[place % len(MARKERS)])


def check() -> None:
    """Make sure that figures can be drawn.

    Raises:
        InputError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("figures need matplotlib: pip install 'drfl[experiments]'")


@contextmanager
def drawing(folder: Path, name: str, panels: int) -> Iterator[tuple[Figure, Sequence[Axes]]]:
    """A figure with so many panels, saved as ``name.png`` and ``name.svg`` in a folder when the block ends.

    Raises:
        InputError: matplotlib is not installed.
    """
    check()
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    across = 2 if panels == 4 else min(panels, IN_A_ROW)
    down = -(-panels // across)
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever the user's matplotlibrc says
        mpl.rcParams.update(STYLE)
        figure = Figure(
            figsize=(PANEL[0] * across, PANEL[1] * down + 0.6),
            dpi=DPI,
            layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06),
        )
        FigureCanvasAgg(figure)
        yield figure, [figure.add_subplot(down, across, k + 1) for k in range(panels)]
        figure.savefig(folder / f"{name}.png", metadata={"Software": None})
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})


def level(axes: Sequence[Axes]) -> None:
    """Give all panels the same y axis."""
    ends = [axis.get_ylim() for axis in axes]
    for axis in axes:
        axis.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all panels, below them."""
    found: dict[str, Artist] = {}
    for axis in axes:
        handles, names = axis.get_legend_handles_labels()
        for handle, name in zip(handles, names, strict=True):
            found.setdefault(str(name), handle)
    if found:
        longest = max(map(len, found))
        room = int(figure.get_figwidth() * 13 / (longest + 7))  # about 13 letters an inch
        columns = max(1, min(len(found), room))
        rows = -(-len(found) // columns)
        figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=-(-len(found) // rows))


AXES = {"round": "communication rounds", "iterations": "local iterations of a client", "bytes": "MB sent, both ways"}
"""What the x axis of a curve may be, and how it is called."""

MEGA = 1e6

COLUMNS = ("setting", "method", "seed", *AXES, *Metrics._fields)


class Curve(NamedTuple):
    """A metric's mean over repeats.

    Args:
        x: places on the x axis; bytes in MB.
        mean: of the metric, as it is in records.
        half: half the width of the 95 % t-interval of the mean; NaN for one repeat.
    """

    x: tuple[float, ...]
    mean: tuple[float, ...]
    half: tuple[float, ...]

    @property
    def banded(self) -> bool:
        """Whether there is an interval to show."""
        return not any(math.isnan(half) for half in self.half)


def curve(group: Sequence[Run], x: str, metric: str) -> Curve | None:
    """The mean over the runs that ended, at the rounds that all of them have, so that it ends where the first does.

    Args:
        group: repeats of one method in one setting.
        x: one of `AXES`.
        metric: one of `drfl.history.Metrics`.

    Returns:
        None where no run ended.

    Raises:
        InputError: there is no such x axis.
    """
    if x not in AXES:
        raise unknown("x axis", x, AXES)
    ended = [run for run in group if run.ended]
    if not ended:
        return None
    tables = [{point.round: point for point in run.points} for run in ended]
    rounds = [r for r in tables[0] if all(r in table for table in tables)]
    places = [
        math.fsum(_at(run, table[r], x) for run, table in zip(ended, tables, strict=True)) / len(ended) for r in rounds
    ]
    spread = [Interval.of([table[r].values[metric] for table in tables]) for r in rounds]
    return Curve(tuple(places), tuple(i.mean for i in spread), tuple(i.half for i in spread))


def to_csv(collected: Collected) -> str:
    """Every evaluated round of every run as CSV text; bytes are both ways."""
    lines = []
    for (setting, method), group in runs(collected).items():
        for run in group:
            for point in run.points:
                metrics = (f"{point.values[name]:.{DIGITS}f}" for name in Metrics._fields)
                where = (point.round, point.round * run.steps, int(point.bytes))
                lines.append([setting, method, run.seed, *where, *metrics])
    return csv_text(COLUMNS, lines)


def _at(run: Run, point: EvaluatedRound, x: str) -> float:
    if x == "bytes":
        return point.bytes / MEGA
    return float(point.round * (run.steps if x == "iterations" else 1))


MARKS = 8
"""Markers on a curve."""


def draw(collected: Collected, folder: Path) -> list[str]:
    """A figure a setting with all panels of the specification: curves, or a scatter plot of the final metrics.

    Returns:
        the figures' names, without ending.
    """
    found, names = runs(collected), numbered(collected)
    for name, setting in zip(names, collected.plan.settings, strict=True):
        _figure(collected, found, setting, folder, name)
    return names


def numbered(collected: Collected) -> list[str]:
    """The names of a figure for each setting, without ending: numbered where there are several."""
    count = len(collected.plan.settings)
    return ["figure"] if count == 1 else [f"figure-{k}" for k in range(1, count + 1)]


def title(collected: Collected, setting: str) -> str:
    """What stands above a figure or panel: the setting, and whether it is on the paper's data."""
    return f"{setting} (stand-in)" if collected.plan.scale.stand_in else setting


def _figure(collected: Collected, found: Mapping[Place, Sequence[Run]], setting: str, folder: Path, name: str) -> None:
    spec = collected.plan.spec
    panels = spec.panels or [Panel()]
    groups = {method.name: found[setting, method.name] for method in spec.methods}
    with drawing(folder, name, len(panels)) as (figure, axes):
        figure.suptitle(title(collected, setting), fontsize=10)
        for axis, panel in zip(axes, panels, strict=True):
            if spec.kind == "scatter":
                _points(axis, panel, groups)
            else:
                _curves(axis, panel, groups)
                for target in spec.targets:
                    if target.metric == panel.y:
                        level = measure(panel.y).scale * target.value
                        axis.axhline(level, color="#777777", linestyle=(0, (4, 3)), linewidth=0.9)
        legend(figure, axes)


def _curves(axis: Axes, panel: Panel, groups: Mapping[str, Sequence[Run]]) -> None:
    shown = measure(panel.y)
    for place, (method, group) in enumerate(groups.items()):
        found, style = curve(group, panel.x, panel.y), look(place)
        if found is None:
            continue
        mean, half = shown.scale * np.array(found.mean), shown.scale * np.array(found.half)
        if found.banded:
            low = np.maximum(mean - half, 0.0)  # no metric is negative, and no accuracy above 1
            high = np.minimum(mean + half, shown.scale if shown.unit == "%" else np.inf)
            axis.fill_between(found.x, low, high, color=style.colour, alpha=0.13, linewidth=0)
        axis.plot(
            found.x, mean, color=style.colour, linestyle=style.dash, marker=style.marker, label=method,
            markevery=spaced(len(mean), place),
        )  # fmt: skip
    axis.set(xlabel=AXES[panel.x], ylabel=sentence(shown.label))
    if panel.x != "bytes":
        axis.locator_params(axis="x", integer=True)


def _points(axis: Axes, panel: Panel, groups: Mapping[str, Sequence[Run]]) -> None:
    """A point a method with a cross of its intervals; x and y are metrics."""
    across, up = measure(panel.x), measure(panel.y)
    for place, (method, group) in enumerate(groups.items()):
        values, others = finals(group, panel.x), finals(group, panel.y)
        if not values:
            continue
        x, y = Interval.of(list(values.values())), Interval.of(list(others.values()))
        colour, _, marker = look(place)
        axis.errorbar(
            across.scale * x.mean, up.scale * y.mean, label=method, color=colour, marker=marker, markersize=6,
            linestyle="none", elinewidth=0.9, capsize=2,
            xerr=across.scale * x.half if x.n > 1 else None, yerr=up.scale * y.half if y.n > 1 else None,
        )  # fmt: skip
    axis.set(xlabel=sentence(across.label), ylabel=sentence(up.label))


def spaced(points: int, place: int) -> tuple[int, int]:
    """Which points of a curve carry a marker: some, and others for every method, lest they hide each other."""
    step = max(1, points // MARKS)
    return (place * max(1, step // 4)) % step, step
