"""How the values of a metric are read and shown; apart from :mod:`drfl.task.metrics`, as reports do without torch."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from drfl.core.errors import InputError

NAME = re.compile(r"[a-z][a-z0-9_]*")

WORDS = {"auc": "AUC", "f1": "F1", "brier": "Brier score", "mae": "MAE", "rmse": "RMSE", "r2": "R²", "ppv": "PPV"}
"""What metrics are called in sentences, where it is not their name."""


TAKEN = {"loss": "files have the loss", "rows": "files have the rows", "starts": "files have the clients"}
"""Names that no measure can have, as files have something else under them."""


NOTHING = "–"
"""What is shown in place of a value that is undefined or unknown."""

LARGEST_SUM = 1e100
"""No sum over rows of a run comes near; what is beyond is taken for none, and its square would be infinite."""


class Rows(StrEnum):
    """What a measure says of a single row, and so which sums over rows there are to reckon its uncertainty from."""

    BINARY = "binary"
    """0 or 1, a share of right answers."""

    UNIT = "unit"
    """A number in [0, 1] whose mean counts."""

    REAL = "real"
    """A number without bounds whose mean counts."""

    RANKS = "ranks"
    """The order of the rows of two classes, as in the AUC."""

    RATE = "rate"
    """0 or 1 for some of the rows, as a threshold decides: sensitivity, specificity and PPV."""

    WHOLE = "whole"
    """Nothing: it is a number of all rows together, such as F1, calibration error, RMSE, R² or balanced accuracy."""

    @property
    def mean(self) -> bool:
        """Whether the measure is the mean of a number of each row."""
        return self in (Rows.BINARY, Rows.UNIT, Rows.REAL)

    @property
    def paired(self) -> bool:
        """Whether two models can be compared row by row."""
        return self.mean or self is Rows.RANKS


@dataclass(frozen=True)
class Measure:
    """What is known of a metric without its function: how its values are read and shown.

    Args:
        name: What files and tables call it: small letters, digits and _.
        more_is_better: Whether the worst client is the one with the smallest value.
        percent: Whether it is a fraction in [0, 1] that readers want in percent.
        rows: What it says of a single row.

    Raises:
        InputError: If the name is none.
    """

    name: str
    more_is_better: bool = field(default=True, kw_only=True)
    percent: bool = field(default=False, kw_only=True)
    rows: Rows = field(default=Rows.WHOLE, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or NAME.fullmatch(self.name) is None:
            raise InputError(
                f"metric {self.name!r}: name it by small letters, digits and _, beginning with a letter",
                code="invalid-name",
                field="metric",
            )
        if self.name in TAKEN:
            raise InputError(
                f"a metric cannot be called '{self.name}': {TAKEN[self.name]} under that name, give another",
                code="invalid-name",
                field="metric",
            )
        if self.rows not in tuple(Rows):
            raise InputError(
                f"metric '{self.name}' has rows={self.rows!r}: give one of {', '.join(Rows)}",
                code="unknown-name",
                field="rows",
            )
        # Files give a plain string.
        object.__setattr__(self, "rows", Rows(self.rows))

    @property
    def scale(self) -> float:
        """What values are multiplied by where they are shown."""
        return 100.0 if self.percent else 1.0

    @property
    def digits(self) -> int:
        """How many decimals are shown."""
        return 1 if self.percent else 3

    @property
    def unit(self) -> str:
        """Behind a value that is shown."""
        return "%" if self.percent else ""

    @property
    def words(self) -> str:
        """Its name in a sentence."""
        return WORDS.get(self.name, self.name.replace("_", " "))

    def number(self, value: float) -> str:
        """A value without its unit, as in "87.9" or "0.912"; a dash if it is undefined."""
        return number(self.scale * value, self.digits)

    def shown(self, value: float) -> str:
        """A value with its unit, as in "87.9 %" or "0.912"; a dash if it is undefined."""
        return self.number(value) if math.isnan(value) else f"{self.number(value)} {self.unit}".rstrip()

    def interval(self, low: float, high: float) -> str:
        """Both ends without the unit, as in "80.1 – 90.0"; a dash if there is no interval."""
        if math.isnan(low) or math.isnan(high):
            return NOTHING
        # A hyphen next to the dash of the interval is hard to read, so this is a minus sign.
        return " – ".join(self.number(end).replace("-", "−").replace("inf", "∞") for end in (low, high))


PLAIN = Measure("accuracy", percent=True)
"""What a run measures that says nothing else."""


def number(value: float, digits: int) -> str:
    """A number with so many decimals; a dash if it is NaN."""
    return NOTHING if math.isnan(value) else f"{value:.{digits}f}"


def undefined_share(undefined: Sequence[int], clients: Sequence[int]) -> str:
    """How many clients a statistic over clients leaves out, as in "2 of 45" or "2 to 3 of 45"; "" if none.

    Args:
        undefined: The clients at which the measure is undefined, for each of the models that the statistic is of.
        clients: All clients, for each of these models.
    """
    if not any(undefined):
        return ""
    ends = ([min(counts), max(counts)] for counts in (undefined, clients))
    return " of ".join(f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in ends)


def undefined_note(undefined: Sequence[int], clients: Sequence[int]) -> str:
    """What follows such a statistic in a line, as in " (2 of 45 clients undefined)"; see :func:`undefined_share`."""
    share = undefined_share(undefined, clients)
    return f" ({share} clients undefined)" if share else ""
