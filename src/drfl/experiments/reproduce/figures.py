"""The figures of training cells: curves over rounds, and metrics against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from drfl.experiments.reproduce import canvas
from drfl.experiments.reproduce.curves import AXES, curve
from drfl.experiments.reproduce.measures import Interval, measure
from drfl.experiments.reproduce.plan import Collected
from drfl.experiments.reproduce.runs import Place, Run, finals, runs
from drfl.experiments.reproduce.spec import Panel
from drfl.experiments.reproduce.tables import sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    with canvas.drawing(folder, name, len(panels)) as (figure, axes):
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
        canvas.legend(figure, axes)


def _curves(axis: Axes, panel: Panel, groups: Mapping[str, Sequence[Run]]) -> None:
    shown = measure(panel.y)
    for place, (method, group) in enumerate(groups.items()):
        found, look = curve(group, panel.x, panel.y), canvas.look(place)
        if found is None:
            continue
        mean, half = shown.scale * np.array(found.mean), shown.scale * np.array(found.half)
        if found.banded:
            low = np.maximum(mean - half, 0.0)  # no metric is negative, and no accuracy above 1
            high = np.minimum(mean + half, shown.scale if shown.unit == "%" else np.inf)
            axis.fill_between(found.x, low, high, color=look.colour, alpha=0.13, linewidth=0)
        axis.plot(
            found.x, mean, color=look.colour, linestyle=look.dash, marker=look.marker, label=method,
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
        colour, _, marker = canvas.look(place)
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
