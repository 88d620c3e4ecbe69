"""The cost of reaching a target: rounds, bytes, gradients and seconds, with intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from drfl.core.errors import InputError
from drfl.experiments.run.measures import Interval, column
from drfl.task.measure import Measure
from drfl.training.plots import AXES

if TYPE_CHECKING:
    import pandas as pd


def parse_target(text: str, measures: Sequence[Measure]) -> tuple[str, float]:
    """Return the metric and the value of a target such as "worst_accuracy=0.8"."""
    metric, _, value = (part.strip() for part in text.partition("="))
    try:
        level = float(value)
    except ValueError:
        level = math.nan
    if not math.isfinite(level):
        raise InputError(
            f"`target` '{text}': expected METRIC=NUMBER, e.g. worst_accuracy=0.8", code="invalid-format", field="target"
        )
    column(metric, measures)
    return metric, level


def costs_to_target(
    histories: pd.DataFrame, cells: Sequence[tuple[str, int]], metric: str, level: float, measures: Sequence[Measure]
) -> pd.DataFrame:
    """Return a row per algorithm; see :meth:`drfl.experiments.compare.comparison_results.Comparison.costs_to`.

    ``cells`` has algorithm and seed of every run, failed ones included.
    """
    import pandas as pd

    small = column(metric, measures).small
    # If every run failed, there are no histories, and no run reached the target.
    histories = histories.reindex(columns=histories.columns.union(["round", metric], sort=False))
    met = histories[(histories[metric] <= level) if small else (histories[metric] >= level)]
    firsts = met.sort_values("round").drop_duplicates(["algorithm", "seed"])
    rows = []
    for algorithm in dict.fromkeys(name for name, _ in cells):
        seeds = sum(name == algorithm for name, _ in cells)
        reached = firsts[firsts["algorithm"] == algorithm]
        row: dict[str, object] = {"reached": len(reached), "seeds": seeds}
        for name, axis in AXES.items():
            # A mean over the runs that reached it would flatter the algorithm.
            values = reached[list(axis.columns)].sum(axis=1).tolist() if len(reached) == seeds else []
            mean, half = (Interval.of(values)[:2]) if values else (math.nan, math.nan)
            row |= {name: mean, f"{name}_low": mean - half, f"{name}_high": mean + half}
        rows.append(row)
    index = pd.Index(dict.fromkeys(name for name, _ in cells), name="algorithm")
    return pd.DataFrame(rows, index=index)
