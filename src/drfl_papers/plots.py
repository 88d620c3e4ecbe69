"""The papers' figures, drawn with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from drfl.core.csv_cells import csv_text
from drfl.core.errors import unknown
from drfl.experiments.run.measures import Interval, column
from drfl.training.figure_style import legend, look, panels_of
from drfl.training.history import ACCURACY_COLUMNS, DIGITS
from drfl_papers.plan import CollectedRuns
from drfl_papers.records import Run, finals, runs
from drfl_papers.specification import Panel
from drfl_papers.tables import sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@contextmanager
def drawing(folder: Path, name: str, panels: int) -> Iterator[tuple[Figure, Sequence[Axes]]]:
    """Open a figure with a number of panels; save it as ``name.png`` and ``name.svg`` in a folder when the block ends.

    Raises:
        InputError: If matplotlib is not installed.
    """
    with panels_of(panels) as (figure, axes):
        yield figure, axes
        # Omit date and version, so that the same records give the same bytes.
        figure.savefig(folder / f"{name}.png", metadata={"Software": None})
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})


AXES = {"round": "communication rounds", "iterations": "local iterations of a client", "bytes": "MB sent, both ways"}
"""Quantities on the x axis of a curve, with their labels."""

MEGA = 1e6

COLUMNS = ("setting", "method", "seed", *AXES, *ACCURACY_COLUMNS)


class Curve(NamedTuple):
    """A metric's mean over repeats.

    Args:
        x: Positions on the x axis; bytes in MB.
        mean: Mean of the metric, as it is in records.
        half: Half the width of the 95 % t-interval of the mean; NaN for one repeat.
    """

    x: tuple[float, ...]
    mean: tuple[float, ...]
    half: tuple[float, ...]

    @property
    def has_band(self) -> bool:
        """Whether there is an interval to show."""
        return not any(math.isnan(half) for half in self.half)


def curve(group: Sequence[Run], x: str, metric: str) -> Curve | None:
    """Average the runs of a method at the rounds that all of them have; the curve ends with the shortest run.

    Returns:
        The curve; None if a run failed.

    Raises:
        InputError: If `x` is not one of `AXES`.
    """
    if x not in AXES:
        raise unknown("x axis", x, AXES, field="x")
    if not all(run.has_ended for run in group):
        return None
    tables = [{point.round: point for point in run.points} for run in group]
    rounds = [r for r in tables[0] if all(r in table for table in tables)]
    places = []
    for r in rounds:
        if x == "bytes":
            total = math.fsum(table[r].bytes / MEGA for table in tables)
        else:
            total = math.fsum(float(r * (run.steps if x == "iterations" else 1)) for run in group)
        places.append(total / len(group))
    spread = [Interval.of([table[r].values[metric] for table in tables]) for r in rounds]
    return Curve(tuple(places), tuple(i.mean for i in spread), tuple(i.half for i in spread))


def to_csv(collected: CollectedRuns) -> str:
    """Format every evaluated round of every run as CSV text; bytes count both directions."""
    lines = []
    for (setting, method), group in runs(collected).items():
        for run in group:
            for point in run.points:
                metrics = (f"{point.values[name]:.{DIGITS}f}" for name in ACCURACY_COLUMNS)
                progress = (point.round, point.round * run.steps, int(point.bytes))
                lines.append([setting, method, run.seed, *progress, *metrics])
    return csv_text(COLUMNS, lines)


MARKS = 8
"""Number of markers on a curve."""


def draw(collected: CollectedRuns, folder: Path) -> list[str]:
    """Draw one figure per setting with all panels of the specification: curves, or scatter plots of the final metrics.

    Returns:
        The figures' names, without file extension.
    """
    run_groups, names, spec = runs(collected), figure_names(collected), collected.plan.spec
    panels = spec.panels or [Panel()]
    for name, setting in zip(names, collected.plan.settings, strict=True):
        groups = {method.name: run_groups[setting, method.name] for method in spec.methods}
        with drawing(folder, name, len(panels)) as (figure, axes):
            figure.suptitle(title(collected, setting), fontsize=10)
            for axis, panel in zip(axes, panels, strict=True):
                if spec.kind == "scatter":
                    _points(axis, panel, groups)
                    continue
                _curves(axis, panel, groups)
                for target in spec.targets:
                    if target.metric == panel.y:
                        level = column(panel.y).scale * target.value
                        axis.axhline(level, color="#777777", linestyle=(0, (4, 3)), linewidth=0.9)
            legend(figure, axes)
    return names


def figure_names(collected: CollectedRuns) -> list[str]:
    """Name a figure for each setting, without file extension; the names are numbered if there are several."""
    count = len(collected.plan.settings)
    return ["figure"] if count == 1 else [f"figure-{k}" for k in range(1, count + 1)]


def title(collected: CollectedRuns, setting: str) -> str:
    """Return the title of a figure or panel: the setting, marked if the data are a stand-in."""
    return f"{setting} (stand-in)" if collected.plan.scale.stand_in else setting


def _curves(axis: Axes, panel: Panel, groups: Mapping[str, Sequence[Run]]) -> None:
    shown = column(panel.y)
    for place, (method, group) in enumerate(groups.items()):
        means, style = curve(group, panel.x, panel.y), look(place)
        if means is None:
            continue
        mean, half = shown.scale * np.array(means.mean), shown.scale * np.array(means.half)
        if means.has_band:
            low = np.maximum(mean - half, 0.0)  # no metric is negative, and no accuracy is above 1
            high = np.minimum(mean + half, shown.scale if shown.unit == "%" else np.inf)
            axis.fill_between(means.x, low, high, color=style.colour, alpha=0.13, linewidth=0)
        axis.plot(
            means.x, mean, color=style.colour, linestyle=style.dash, marker=style.marker, label=method,
            markevery=marker_positions(len(mean), place),
        )  # fmt: skip
    axis.set(xlabel=AXES[panel.x], ylabel=sentence(shown.label))
    if panel.x != "bytes":
        axis.locator_params(axis="x", integer=True)


def _points(axis: Axes, panel: Panel, groups: Mapping[str, Sequence[Run]]) -> None:
    """Draw one point per method, with a cross of its intervals; x and y are metrics."""
    across, up = column(panel.x), column(panel.y)
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


def marker_positions(points: int, place: int) -> tuple[int, int]:
    """Choose the points of a curve that carry a marker; they differ by method, so that markers do not overlap."""
    step = max(1, points // MARKS)
    return (place * max(1, step // 4)) % step, step
