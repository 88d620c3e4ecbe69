"""Mean curves over repeats, and all their points as CSV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from drfl.errors import unknown
from drfl.experiments.reproduce.measures import Interval
from drfl.experiments.reproduce.plan import Collected
from drfl.experiments.reproduce.runs import Point, Run, runs
from drfl.history import DIGITS, Metrics, csv_text

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


def _at(run: Run, point: Point, x: str) -> float:
    if x == "bytes":
        return point.bytes / MEGA
    return float(point.round * (run.steps if x == "iterations" else 1))
