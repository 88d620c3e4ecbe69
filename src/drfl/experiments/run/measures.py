"""How metrics are shown: in percent or points, and means with their intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from drfl.core.errors import unknown
from drfl.task.measure import Measure, number
from drfl.task.metrics import ACCURACY
from drfl.training.history import columns_of, other_columns, smaller_is_better


class MetricColumn(NamedTuple):
    """How a column of numbers over clients is shown.

    Args:
        name: Its name in words.
        unit: "%", "points" (of percent) or "".
        scale: The factor from the metric to the unit.
        digits: The number of digits after the point.
        small: Whether less is better.
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
        """Format a value for a table under the label."""
        return number(self.scale * value, self.digits)


_WORDS = {"avg": "average", "worst": "worst", "worst20": "worst-20 %", "best20": "best-20 %"}


def column(name: str, measures: Sequence[Measure] = (ACCURACY,)) -> MetricColumn:
    """Return how a column of files with statistics over clients, such as "worst_accuracy" or "avg_loss", is shown."""
    known = (*columns_of(measures[0].name), *other_columns(measures))
    if name not in known:
        raise unknown("metric", name, known)
    what, _, of = name.partition("_")
    if of == "loss":
        return MetricColumn(f"{_WORDS[what]} loss", "", 1.0, 3, True)
    measure = next(measure for measure in measures if measure.name == of)
    small = smaller_is_better(f"{what}_score", measure)
    if what == "std":
        return MetricColumn(
            "standard deviation", "points" if measure.percent else "", measure.scale, measure.digits, small
        )
    return MetricColumn(f"{_WORDS[what]} {measure.words}", measure.unit, measure.scale, measure.digits, small)


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation; NaN for a single value, or if a value is not finite."""
    return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan


class Interval(NamedTuple):
    """A mean over repetitions with its uncertainty.

    Args:
        mean: The mean.
        half: Half the width of the 95 % t-interval of the mean; NaN if std is.
        std: See :func:`deviation`.
        n: The number of values.
    """

    mean: float
    half: float
    std: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Compute it from at least one value."""
        from scipy.special import stdtrit  # it takes a while to load

        n, std = len(values), deviation(values)
        if math.isnan(std):
            return cls(statistics.fmean(values), math.nan, math.nan, n)
        return cls(statistics.fmean(values), float(stdtrit(n - 1, 0.975)) * std / math.sqrt(n), std, n)

    def text(self, digits: int, scale: float = 1.0) -> str:
        """Format mean and half width, multiplied by ``scale``, as "87.9 ± 0.4"; a single value has no ±."""
        middle = number(scale * self.mean, digits)
        return middle if math.isnan(self.half) else f"{middle} ± {scale * self.half:.{digits}f}"


def signed_text(value: float, digits: int) -> str:
    """Format a difference with its sign; a value that rounds to zero has none."""
    shown = f"{abs(value):.{digits}f}"
    if float(shown) == 0:
        return shown
    return f"{'+' if value > 0 else '−'}{shown}"


def paper_text(value: float) -> str:
    """Format a paper's number with at least two digits after the point, and with more if it was printed with more."""
    return f"{value:.{max(2, len(repr(float(value)).partition('.')[2]))}f}"
