"""How methods approach a known optimum: rate, rounds and remaining distance, as tables and curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from drfl.core.csv_cells import csv_text
from drfl.core.run_end import failures_text
from drfl.experiments.run.measures import signed_text
from drfl.task.measure import NOTHING
from drfl.training import figure_style
from drfl_papers import plots
from drfl_papers.plan import CollectedRuns
from drfl_papers.plots import marker_positions, title
from drfl_papers.records import Place, places, seeds
from drfl_papers.tables import ResultTable, TableEntry

LEVEL = 1e-12
"""A squared distance at which a run counts as having reached the optimum."""

FIT = (1e-20, 1e-3)
"""Squared distances between which the rate is fitted: after the first rounds and above rounding error."""

DISTANCE = "‖w − w*‖²"
COLUMNS = ("setting", "method", "seed", "round", "squared_distance")


@dataclass(frozen=True)
class ErrorCurve:
    """The errors of one seed of one method in one setting.

    Args:
        seed: The seed.
        stopped: "rounds" or "diverged".
        errors: Squared distance after rounds 0, 1, 2, …; empty if the run diverged.
        chosen: Parameters chosen from the method's grid.
    """

    seed: int
    stopped: str
    errors: tuple[float, ...]
    chosen: Mapping[str, float]


class Rate(NamedTuple):
    """A straight line fitted to log10 of the errors.

    Args:
        slope: Slope per round; negative for linear convergence.
        r2: R² of the fit; near 1 if convergence is linear.
    """

    slope: float
    r2: float


def error_curves(collected: CollectedRuns) -> dict[Place, tuple[ErrorCurve, ...]]:
    """Read the distance records of every place, in the specification's order."""
    curves = {}
    for place in places(collected):
        group = []
        for seed, record in zip(seeds(collected, place), collected.records[place], strict=True):
            errors = cast("Sequence[float]", record["errors"]) if record["stopped"] == "rounds" else ()
            chosen = cast("Mapping[str, float]", record["chosen"])
            group.append(ErrorCurve(seed, str(record["stopped"]), tuple(map(float, errors)), chosen))
        curves[place] = tuple(group)
    return curves


def first_round(errors: Sequence[float], level: float = LEVEL) -> int | None:
    """Return the first round whose error is at most a level; None if there is none."""
    return next((r for r, error in enumerate(errors) if error <= level), None)


def rate(errors: Sequence[float]) -> Rate | None:
    """Fit a least-squares line to log10 of the errors within `FIT`; None with fewer than three of them."""
    low, high = FIT
    points = [(r, math.log10(error)) for r, error in enumerate(errors) if low < error < high]
    if len(points) < 3:
        return None
    x, y = np.array(points).T
    slope, level = np.polyfit(x, y, 1)
    spread = float(((y - y.mean()) ** 2).sum())
    rest = float(((y - slope * x - level) ** 2).sum())
    return Rate(float(slope), 1 - rest / spread if spread > 0 else math.nan)


def tables(collected: CollectedRuns) -> tuple[ResultTable, ...]:
    """Make one table per setting with the remaining distance, rounds to `LEVEL` and rate; a note is below the last."""
    curves = error_curves(collected)
    methods = [method.name for method in collected.plan.spec.methods]
    header = ("method", f"last {DISTANCE}", f"rounds to {LEVEL:g}", "log10 per round", "R²")
    note = (
        f"Medians over the seeds; for R², the minimum. The rate is fitted to {DISTANCE} between {FIT[0]:g} and "
        f"{FIT[1]:g}. {NOTHING} means: never reached."
    )
    shown = []
    for setting in collected.plan.settings:
        rows: list[tuple[TableEntry, ...]] = []
        for method in methods:
            group = curves[setting, method]
            how = failures_text([way.stopped for way in group])
            if how:
                rows.append((TableEntry(method), TableEntry(how), *[TableEntry(NOTHING)] * 3))
                continue
            errors = [way.errors for way in group if way.errors]
            left = f"{statistics.median(e[-1] for e in errors):.1e}"
            arrivals = [r for r in map(first_round, errors) if r is not None]
            rounds = f"{len(arrivals)} of {len(errors)} seeds" if arrivals else NOTHING
            if len(arrivals) == len(errors):
                rounds = f"{statistics.median(arrivals):g}"
            texts = [NOTHING, NOTHING]
            rates = [r for r in map(rate, errors) if r is not None]
            if rates:
                texts = [signed_text(statistics.median(r.slope for r in rates), 4), f"{min(r.r2 for r in rates):.4f}"]
            rows.append(tuple(map(TableEntry, (method, left, rounds, *texts))))
        shown.append(ResultTable(setting, header, tuple(rows)))
    *most, last = shown
    return (*most, replace(last, notes=(note,)))


def to_csv(collected: CollectedRuns) -> str:
    """Format every round's squared distance as CSV text."""
    lines = (
        [setting, method, way.seed, r, f"{error:.6e}"]
        for (setting, method), group in error_curves(collected).items()
        for way in group
        for r, error in enumerate(way.errors)
    )
    return csv_text(COLUMNS, lines)


def summary(group: Sequence[ErrorCurve]) -> dict[str, object]:
    """Summarise a place: medians over its seeds, and each seed's choice from the grid."""
    errors = [way.errors for way in group if way.errors]
    rates = [r for r in map(rate, errors) if r is not None]
    return {
        "n": len(errors),
        "diverged": len(group) - len(errors),
        "final": _significant([e[-1] for e in errors]),
        "rounds_to_level": [first_round(e) for e in errors],
        "slope": _significant([r.slope for r in rates]),
        "r2": _significant([min(r.r2 for r in rates)]) if rates else None,
        "chosen": [dict(way.chosen) for way in group],
    }


def draw(collected: CollectedRuns, folder: Path) -> list[str]:
    """Draw curves on a logarithmic axis, one panel per setting: the median over seeds, with a band from min to max.

    Returns:
        The figure's name, without file extension.
    """
    curves, plan = error_curves(collected), collected.plan
    with plots.drawing(folder, "figure", len(plan.settings)) as (figure, axes):
        for axis, setting in zip(axes, plan.settings, strict=True):
            for place, method in enumerate(plan.spec.methods):
                ways = [way.errors for way in curves[setting, method.name] if way.errors]
                if not ways:
                    continue
                # A run ends once its error reaches rounding precision, so take only the rounds that all seeds have.
                # A logarithmic axis cannot show zero.
                length = min(map(len, ways))
                errors = [np.maximum(way[:length], np.finfo(float).tiny) for way in ways]
                look, middle = figure_style.look(place), np.median(errors, axis=0)
                if len(errors) > 1:
                    low, high = np.min(errors, axis=0), np.max(errors, axis=0)
                    axis.fill_between(range(len(low)), low, high, color=look.colour, alpha=0.15, linewidth=0)
                axis.semilogy(
                    middle, color=look.colour, linestyle=look.dash, marker=look.marker, label=method.name,
                    markevery=marker_positions(len(middle), place),
                )  # fmt: skip
            axis.set(title=title(collected, setting), xlabel="communication rounds", ylabel=DISTANCE)
        figure_style.level(axes)
        figure_style.legend(figure, axes)
    return ["figure"]


def _significant(values: Sequence[float]) -> float | None:
    """Return the median rounded to six significant digits; None if there are no values."""
    return float(f"{statistics.median(values):.5e}") if values else None
