"""Numbers as readers see them: metrics in percent or points, a mean with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scipy.special import stdtrit

from drfl.errors import unknown
from drfl.history import SMALL_IS_GOOD

NONE = "–"
"""What stands where there is no number."""


class Measure(NamedTuple):
    """How a metric is shown.

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


_NAMES = {
    "avg_accuracy": ("average accuracy", "%"),
    "worst_accuracy": ("worst accuracy", "%"),
    "std_accuracy": ("standard deviation", "points"),
    "worst20_accuracy": ("worst-20 % accuracy", "%"),
    "best20_accuracy": ("best-20 % accuracy", "%"),
    "avg_loss": ("average loss", ""),
    "worst_loss": ("worst loss", ""),
}


def measure(metric: str) -> Measure:
    """How one of `drfl.history.Metrics` is shown.

    Raises:
        InputError: there is no such metric.
    """
    if metric not in _NAMES:
        raise unknown("metric", metric, _NAMES)
    name, unit = _NAMES[metric]
    return Measure(name, unit, 100.0 if unit else 1.0, 1 if unit else 3, metric in SMALL_IS_GOOD)


class Interval(NamedTuple):
    """A mean over repeats and how sure it is.

    Args:
        mean: of the values.
        half: half the width of the 95 % t-interval of the mean; NaN for one value.
        std: sample standard deviation; NaN for one value.
        n: how many values.
    """

    mean: float
    half: float
    std: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Of at least one value."""
        n = len(values)
        if n < 2:
            return cls(statistics.fmean(values), math.nan, math.nan, n)
        std = statistics.stdev(values)
        return cls(statistics.fmean(values), float(stdtrit(n - 1, 0.975)) * std / math.sqrt(n), std, n)

    def text(self, digits: int, scale: float = 1.0) -> str:
        """Both, times scale, as "87.9 ± 0.4"; one value has no ±."""
        middle = f"{scale * self.mean:.{digits}f}"
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
