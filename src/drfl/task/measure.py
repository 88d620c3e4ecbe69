"""Properties and number formats of metrics. Unlike :mod:`drfl.task.metrics`, this module does not import torch."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from drfl.core.errors import InputError

NAME = re.compile(r"[a-z][a-z0-9_]*")

WORDS = {"auc": "AUC", "f1": "F1", "brier": "Brier score", "mae": "MAE", "rmse": "RMSE", "r2": "R²", "ppv": "PPV"}
"""Display names of metrics in sentences, if they differ from the name."""


RESERVED = {"loss": "the loss", "rows": "the rows", "starts": "the clients"}
"""Reserved names and what files use them for."""


NOTHING = "–"
"""Placeholder for a value that is undefined or unknown."""

LARGEST_SUM = 1e100
"""Limit of sums over rows, far above real ones. Larger sums are treated as missing, because their squares overflow."""


class Rows(StrEnum):
    """The information that a metric gives about a single row, which determines how its uncertainty is computed."""

    BINARY = "binary"
    """0 or 1 per row, with the mean as the share of correct answers."""

    UNIT = "unit"
    """A number in [0, 1] per row, to be averaged."""

    REAL = "real"
    """An unbounded number per row, to be averaged."""

    RANKS = "ranks"
    """The order of the rows of two classes, as in the AUC."""

    RATE = "rate"
    """0 or 1 for some of the rows, according to a threshold: sensitivity, specificity and PPV."""

    WHOLE = "whole"
    """Nothing: the metric is defined only for all rows together, such as F1, RMSE, R² or balanced accuracy."""

    @property
    def mean(self) -> bool:
        """Whether the metric is the mean of a number per row."""
        return self in (Rows.BINARY, Rows.UNIT, Rows.REAL)

    @property
    def paired(self) -> bool:
        """Whether two models can be compared row by row."""
        return self.mean or self is Rows.RANKS


SUM_COLUMNS = {
    Rows.BINARY: {"count": 1},
    Rows.UNIT: {"sum": 1, "squares": 2},
    Rows.REAL: {"sum": 1, "squares": 2},
    Rows.RANKS: {"positive": 0, "pairs": 2, "positive_squares": 3, "negative_squares": 4},
    Rows.RATE: {"rows": 0, "count": 1},
    Rows.WHOLE: {},
}
"""Columns of files with the sums of :class:`drfl.federation.federation.Evaluation`: kind of measure → the end of the
column's name, after that of the measure → index of the sum. The other sums follow from these and the number of rows."""

WHOLE_SUMS = ("count", "positive", "rows")
"""Columns of sums that are whole numbers."""


@dataclass(frozen=True)
class Measure:
    """The properties of a metric without its function: how its values are interpreted and displayed.

    Args:
        name: Name in files and tables: lower-case letters, digits and _.
        more_is_better: Whether larger values are better, so that the worst client has the smallest value.
        percent: Whether the metric is a fraction in [0, 1] to be displayed in percent.
        rows: Information that the metric gives about a single row.

    Raises:
        InputError: If the name or ``rows`` is invalid.
    """

    name: str
    more_is_better: bool = field(default=True, kw_only=True)
    percent: bool = field(default=False, kw_only=True)
    rows: Rows = field(default=Rows.WHOLE, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or NAME.fullmatch(self.name) is None:
            raise InputError(
                f"metric name {self.name!r} must consist of lower-case letters, digits and _ and begin with a letter",
                code="invalid-name",
                field="metric",
            )
        if self.name in RESERVED:
            raise InputError(
                f"metric name '{self.name}' is reserved: files use it for {RESERVED[self.name]}. Choose another name.",
                code="invalid-name",
                field="metric",
            )
        if self.rows not in tuple(Rows):
            raise InputError(
                f"metric '{self.name}' has rows={self.rows!r}, expected one of {', '.join(Rows)}",
                code="unknown-name",
                field="rows",
            )
        # Metrics that are read from files have a plain string here.
        object.__setattr__(self, "rows", Rows(self.rows))

    def to_plain(self) -> dict[str, object]:
        """Return the properties as files hold them."""
        return {
            "name": self.name,
            "more_is_better": self.more_is_better,
            "percent": self.percent,
            "rows": self.rows,
        }

    @property
    def scale(self) -> float:
        """Factor for displayed values."""
        return 100.0 if self.percent else 1.0

    @property
    def digits(self) -> int:
        """Number of decimals of displayed values."""
        return 1 if self.percent else 3

    @property
    def unit(self) -> str:
        """Unit of displayed values: "%" or ""."""
        return "%" if self.percent else ""

    @property
    def words(self) -> str:
        """Display name in a sentence."""
        return WORDS.get(self.name, self.name.replace("_", " "))

    @property
    def title(self) -> str:
        """Display name at the start of a sentence."""
        return f"{self.words[:1].upper()}{self.words[1:]}"

    @property
    def worst_word(self) -> str:
        """How the worst client's value compares with the others: "lowest" or "highest"."""
        return "lowest" if self.more_is_better else "highest"

    def number(self, value: float) -> str:
        """Format a value without its unit, as in "87.9" or "0.912"; a dash if it is undefined."""
        return number(self.scale * value, self.digits)

    def shown(self, value: float) -> str:
        """Format a value with its unit, as in "87.9 %" or "0.912"; a dash if it is undefined."""
        return self.number(value) if math.isnan(value) else f"{self.number(value)} {self.unit}".rstrip()

    def interval(self, low: float, high: float) -> str:
        """Format an interval without the unit, as in "80.1 – 90.0"; a dash if there is no interval."""
        if math.isnan(low) or math.isnan(high):
            return NOTHING
        # A hyphen next to the dash of the interval would be hard to read, so use a minus sign.
        return " – ".join(self.number(end).replace("-", "−").replace("inf", "∞") for end in (low, high))


PLAIN = Measure("accuracy", percent=True)
"""The score of a run that names no other."""


def number(value: float, digits: int) -> str:
    """Format a number with a fixed number of decimals; a dash if it is NaN."""
    return NOTHING if math.isnan(value) else f"{value:.{digits}f}"


def undefined_share(undefined: Sequence[int], clients: Sequence[int]) -> str:
    """Format how many clients a statistic excludes, as in "2 of 45" or "2 to 3 of 45"; "" if none.

    Args:
        undefined: Number of clients at which the metric is undefined, for each model.
        clients: Number of all clients, for each model.
    """
    if not any(undefined):
        return ""
    ends = ([min(counts), max(counts)] for counts in (undefined, clients))
    return " of ".join(f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in ends)


def undefined_note(undefined: Sequence[int], clients: Sequence[int]) -> str:
    """Format a note for a statistic, as in " (2 of 45 clients undefined)"; see :func:`undefined_share`."""
    share = undefined_share(undefined, clients)
    return f" ({share} clients undefined)" if share else ""
