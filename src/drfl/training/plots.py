"""Curves of runs and comparisons over rounds, drawn with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from drfl.core.byte_units import byte_unit
from drfl.core.errors import InputError, unknown
from drfl.task.measure import Measure
from drfl.training import figure_style
from drfl.training.history import History, columns_of, smaller_is_better

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class CostAxis(NamedTuple):
    """What the x axis of curves shows.

    Args:
        columns: The columns of a history whose sum it is.
        title: Its label.
    """

    columns: tuple[str, ...]
    title: str


AXES: Mapping[str, CostAxis] = {
    "rounds": CostAxis(("round",), "communication rounds"),
    "bytes": CostAxis(("bytes_up", "bytes_down"), "bytes, both directions"),
    "gradients": CostAxis(("gradient_evaluations",), "gradient evaluations"),
    "seconds": CostAxis(("seconds",), "seconds"),
}
"""The costs over which curves can be drawn, by name."""

STATISTICS = {"worst_score": "worst client", "worst20_score": "worst fifth of clients", "avg_score": "average client"}
"""Fields of :class:`drfl.training.history.Metrics` that the curves of a run show, with their labels."""


def plot_history(history: History) -> Figure:
    """Plot score and loss over the rounds: worst client, worst fifth of clients and average.

    Dashed curves show the validation rows, if the history has them.

    Raises:
        InputError: If matplotlib is not installed or the history has no rows.
    """
    if not history.rows:
        raise InputError("the history has no rows, so there is nothing to plot", code="no-results", field="history")
    frame, score = history.to_frame(), history.score
    with figure_style.panels_of(2) as (figure, axes):
        for place, (field, label) in enumerate(STATISTICS.items()):
            name, style = field.replace("_score", f"_{score.name}"), figure_style.look(place)
            axes[0].plot(frame["round"], score.scale * frame[name], color=style.colour, label=label)
            if history.validated:
                values = score.scale * frame[f"validation_{name}"]
                axes[0].plot(frame["round"], values, color=style.colour, dashes=(4, 2), label=f"{label}, validation")
        for field, place in (("worst_loss", 0), ("avg_loss", 2)):
            axes[1].plot(frame["round"], frame[field], color=figure_style.look(place).colour)
        _name(axes[0], axis_title(score) + history.last.note)
        _name(axes[1], "loss")
        figure_style.legend(figure, axes)
    return figure


def plot_histories(
    histories: pd.DataFrame,
    score: Measure,
    shown: tuple[str, ...] = ("worst", "avg"),
    note: str = "",
    x: str = "rounds",
) -> Figure:
    """Plot one curve per algorithm: the mean over seeds, with its 95 % t-interval as a band.

    A curve ends at the last round of the algorithm's shortest run. Over another cost than rounds, the mean at a round
    is drawn at the mean cost of that round.

    Args:
        histories: Rows of runs with columns "algorithm", "seed", "round" and the metrics, see
            :meth:`drfl.training.history.History.to_frame`.
        score: The score that the metrics summarise.
        shown: The statistics, one panel each: "worst", "worst20", "avg", "best20" or "std", or the names of their
            columns, such as "worst_accuracy".
        note: Note on clients at which the score is undefined, see :func:`drfl.task.measure.undefined_note`.
        x: One of :data:`AXES`.

    Raises:
        InputError: If matplotlib is not installed, there are no rows, or a statistic or the axis is unknown.
    """
    from scipy.special import stdtrit  # SciPy loads slowly

    names = [f"{what.removesuffix(f'_{score.name}')}_{score.name}" for what in shown]
    known = columns_of(score.name)
    missing = next((what for what, name in zip(shown, names, strict=True) if name not in known), None)
    if missing is not None:
        raise InputError(
            f"no column '{missing}' to plot. Expected {', '.join(known[:5])}, or their first words.",
            code="unknown-name",
            field=missing,
        )
    if x not in AXES:
        raise unknown("axis", x, AXES, field="x")
    if histories.empty:
        raise InputError("no run has finished, so there is nothing to plot", code="no-results", field="runs")
    unit, title = 1.0, AXES[x].title
    if x == "bytes":
        unit, prefix = byte_unit(float(histories[list(AXES[x].columns)].sum(axis=1).max()))
        title = f"{prefix}, both directions"
    with figure_style.panels_of(len(names)) as (figure, axes):
        for axis, name in zip(axes, names, strict=True):
            for place, algorithm in enumerate(dict.fromkeys(histories["algorithm"])):
                own = histories[histories["algorithm"] == algorithm]
                values = own.pivot_table(index="round", columns="seed", values=name, dropna=False)
                values, style = score.scale * values.dropna(), figure_style.look(place)
                costs = own[list(AXES[x].columns)].sum(axis=1).groupby(own["round"]).mean()[values.index] / unit
                mean, n = values.mean(axis=1), values.shape[1]
                axis.plot(costs, mean, color=style.colour, linestyle=style.dash, label=algorithm)
                if n > 1:
                    half = float(stdtrit(n - 1, 0.975)) / math.sqrt(n) * values.std(axis=1)
                    axis.fill_between(costs, mean - half, mean + half, color=style.colour, alpha=0.15, linewidth=0)
            better = " (lower is better)" if smaller_is_better(name.replace(score.name, "score"), score) else ""
            _name(axis, axis_title(score, name.partition("_")[0]) + better + note, title)
        figure_style.legend(figure, axes)
    return figure


WORDS = {"avg": "average", "worst20": "worst fifth of clients:", "best20": "best fifth of clients:", "std": "std of"}


def axis_title(score: Measure, what: str = "") -> str:
    """Return the label, with its unit, of an axis for the score or a statistic of it."""
    unit = f" ({score.unit})" if score.unit else ""
    return f"{WORDS.get(what, what)} {score.words}{unit}".strip()


def _name(axis: Axes, title: str, over: str = AXES["rounds"].title) -> None:
    axis.set_xlabel(over)
    axis.set_ylabel(title)
