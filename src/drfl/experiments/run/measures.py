"""Numbers as readers see them: metrics in percent or points, a mean with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from drfl.core.errors import unknown
from drfl.task.measure import Measure, number
from drfl.task.metrics import ACCURACY
from drfl.training.history import columns_of, other_columns, smaller_is_better


class Column(NamedTuple):
    """How a column of numbers over clients is shown.

    Args:
        name: in words.
        unit: "%", "points" (of percent) or "".
        scale: what the metric is multiplied by.
        digits: after the point.
        small: whether less is better.
    """

    name: str
    unit: str
    scale: float
    digits: int
    small: bool

    @property
    def label(self) -> str:
        """Name and unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def text(self, value: float) -> str:
        """A value as it stands in a table under the label."""
        return number(self.scale * value, self.digits)


_WORDS = {"avg": "average", "worst": "worst", "worst20": "worst-20 %", "best20": "best-20 %"}


def column(name: str, measures: Sequence[Measure] = (ACCURACY,)) -> Column:
    """How a column of files is shown that holds statistics over clients, such as "worst_accuracy" or "avg_loss".

    Args:
        name: the column's.
        measures: what was measured, the score first.

    Raises:
        InputError: there is no such column.
    """
    known = (*columns_of(measures[0].name), *other_columns(measures))
    if name not in known:
        raise unknown("metric", name, known)
    what, _, of = name.partition("_")
    if of == "loss":
        return Column(f"{_WORDS[what]} loss", "", 1.0, 3, True)
    measure = next(measure for measure in measures if measure.name == of)
    small = smaller_is_better(f"{what}_score", measure)
    if what == "std":
        return Column("standard deviation", "points" if measure.percent else "", measure.scale, measure.digits, small)
    return Column(f"{_WORDS[what]} {measure.words}", measure.unit, measure.scale, measure.digits, small)


def deviation(values: Sequence[float]) -> float:
    """The sample standard deviation; NaN of one value, and where one is not finite, such as the loss of a lost run."""
    return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan


class Interval(NamedTuple):
    """A mean over repeats and how sure it is.

    Args:
        mean: of the values.
        half: half the width of the 95 % t-interval of the mean; NaN where std is.
        std: see :func:`deviation`.
        n: how many values.
    """

    mean: float
    half: float
    std: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Of at least one value."""
        from scipy.special import stdtrit  # it takes a while to load

        n, std = len(values), deviation(values)
        if math.isnan(std):
            return cls(statistics.fmean(values), math.nan, math.nan, n)
        return cls(statistics.fmean(values), float(stdtrit(n - 1, 0.975)) * std / math.sqrt(n), std, n)

    def text(self, digits: int, scale: float = 1.0) -> str:
        """Both, times scale, as "87.9 ± 0.4"; one value has no ±."""
        middle = number(scale * self.mean, digits)
        return middle if math.isnan(self.half) else f"{middle} ± {scale * self.half:.{digits}f}"


def signed(value: float, digits: int) -> str:
    """A difference with its sign; what rounds to zero has none."""
    shown = f"{abs(value):.{digits}f}"
    if float(shown) == 0:
        return shown
    return f"{'+' if value > 0 else '−'}{shown}"


def as_printed(value: float) -> str:
    """A paper's number with at least two digits after the point, and more where it was printed with more."""
    return f"{value:.{max(2, len(repr(float(value)).partition('.')[2]))}f}"
