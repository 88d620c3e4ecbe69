"""Numbers and dates as people write them: decimal commas, separators of thousands, and days before months."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from drfl.data.tables.text_form import ReadOptions

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = {",": ",", ".": r"\.", "'": "['\u2019]", " ": "[ \u00a0\u2009\u202f]"}
"""Mark between thousands → pattern of the characters that people use for it."""

LIKE_NUMBER = re.compile(r"[-+]?[\d.,][\d.,'\u2019 \u00a0\u2009\u202f]*(?:[eE][-+]?\d+)?")
LIKE_DATE = re.compile(r"(\d{1,4})([-./])(\d{1,2})\2(\d{1,4})(?:[T ]+(\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?))?")

ISO = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].*)?")
"""Format of a date that needs no order."""

ORDERS = ("DMY", "MDY")
"""Orders of day and month in dates such as 03.04.2021."""


class NumberForm(NamedTuple):
    """How numbers are written; "" means that thousands have no mark between them."""

    decimal: str
    thousands: str

    def matches(self, text: str) -> bool:
        """Return whether a text is such a number."""
        return _pattern(self).fullmatch(text) is not None

    def plain(self, text: str) -> str:
        """Return a number with a decimal point and without separators; other texts are not changed."""
        if not self.matches(text):
            return text
        bare = re.sub(SEPARATORS[self.thousands], "", text) if self.thousands else text
        return bare.replace(self.decimal, ".")


@cache
def _pattern(form: NumberForm) -> re.Pattern[str]:
    d = re.escape(form.decimal)
    groups = rf"|[1-9]\d{{0,2}}(?:{SEPARATORS[form.thousands]}\d{{3}})+" if form.thousands else ""
    return re.compile(rf"[-+]?(?:(?:\d+{groups})(?:{d}\d*)?|{d}\d+)(?:[eE][-+]?\d+)?")


PLAIN, POINTS = NumberForm(".", ""), NumberForm(",", ".")
FORMS = (
    PLAIN, NumberForm(",", ""), NumberForm(".", ","), POINTS, NumberForm(".", "'"), NumberForm(",", "'"),
    NumberForm(".", " "), NumberForm(",", " "),
)  # fmt: skip
"""Forms of numbers, the usual ones first."""


SEVERAL = 5
"""Different numbers such as 1.367 which, next to whole numbers such as 950, may have points between thousands."""

POINTED = re.compile(r"[-+]?[1-9]\d{0,2}\.\d{3}")
SMALL = re.compile(r"[-+]?\d{1,3}")


def mixes_thousands(numbers: Sequence[str]) -> bool:
    """Return whether different numbers are several such as 1.367 and some such as 950, and no others."""
    pointed, small = (sum(pattern.fullmatch(text) is not None for text in numbers) for pattern in (POINTED, SMALL))
    return pointed >= SEVERAL and small > 0 and pointed + small == len(numbers)


def may_mix_thousands(cells: pd.Series) -> bool:
    """Return whether numbers that were read with decimal points can be those of :func:`mixes_thousands`."""
    if cells.dtype.kind != "f":
        return False
    sizes = np.unique(np.abs(cells.dropna().to_numpy()))
    has_range = len(sizes) > SEVERAL and sizes[-1] < 1000 and bool(((sizes >= 1) | (sizes == 0)).all())
    return has_range and np.allclose(sizes * 1000, np.round(sizes * 1000), rtol=0, atol=1e-6)


class Undecided(NamedTuple):
    """A number that can be read in several ways, or in none because it contradicts the declared marks."""

    text: str
    readings: tuple[str, ...]


def number_form(
    texts: Sequence[str], options: ReadOptions, known: str | None, *, has_free_points: bool = False
) -> NumberForm | Undecided | None:
    """Detect how the numbers of a column are written.

    Args:
        texts: The different cells.
        options: Declared marks.
        known: The decimal mark of the file, if it is known.
        has_free_points: Whether points may also separate thousands if all numbers have the usual form, because the
            delimiter of the file is one of countries with decimal commas.

    Returns:
        The form; None if numbers are plain or the texts have no common form; or a number that is not clear.
    """
    numbers = [text for text in texts if LIKE_NUMBER.fullmatch(text) and not LIKE_DATE.fullmatch(text)]
    allowed = [form for form in FORMS if options.decimal in (None, form.decimal)]
    allowed = [form for form in allowed if options.thousands in (None, form.thousands)]
    forms = [form for form in allowed if all(map(form.matches, numbers))]
    if not forms:
        # A plain number would be read although it contradicts the declared marks.
        odd = [text for text in numbers if PLAIN.matches(text) and not any(form.matches(text) for form in allowed)]
        return Undecided(odd[0], ()) if odd else None
    usual = [form for form in forms if form.decimal == known] or forms
    if usual[0] == PLAIN:
        if not has_free_points or POINTS not in usual or not mixes_thousands(numbers):
            return None
        text = next(text for text in numbers if POINTED.fullmatch(text))
        return Undecided(text, (PLAIN.plain(text), POINTS.plain(text)))
    for text in numbers:
        readings = tuple(dict.fromkeys(form.plain(text) for form in usual))
        if len({*map(float, readings)}) > 1:
            return Undecided(text, readings)
    return usual[0]


class Days(NamedTuple):
    """Dates (n,) as days since 1970-01-01; NaN for texts that are not dates, and for ambiguous ones.

    ``orders`` are the orders of day and month that all dates allow; empty if none does, or no date needs one.
    """

    values: np.ndarray
    orders: tuple[str, ...]
    is_ambiguous: np.ndarray


def days_of(texts: pd.Series, order: str | None = None) -> Days:
    """Read dates such as 2021-03-31, 31.3.2021 and 3/31/2021, with or without a time; None detects their order."""
    import pandas as pd

    is_iso = texts.str.fullmatch(ISO).to_numpy(dtype=bool, na_value=False)
    values = since_1970(pd.to_datetime(texts.where(is_iso), format="ISO8601", errors="coerce", utc=True))
    parts = texts.where(~is_iso).str.extract(rf"^{LIKE_DATE.pattern}$")
    year_first = parts[0].str.len().eq(4).to_numpy(dtype=bool)
    values = np.where(year_first, _days(parts, 0, 2, 3), values)
    open_ones = parts[3].str.len().eq(4).to_numpy(dtype=bool) & ~year_first
    if not open_ones.any():
        return Days(values, (), np.zeros(len(values), bool))
    # Columns of the parts that hold month and day.
    readings = np.stack([_days(parts, 3, *((2, 0) if name == "DMY" else (0, 2))) for name in ORDERS])
    # Dates that do not exist, such as 31.02.2021, do not determine the order.
    exists = ~np.isnan(readings).all(axis=0)
    orders = tuple(name for name, days in zip(ORDERS, readings, strict=True) if not np.isnan(days[exists]).any())
    if order is None and len(orders) == 2 and not np.array_equal(*readings, equal_nan=True):
        return Days(values, orders, open_ones)
    # If a column mixes both orders, the dates in the rarer one are wrong.
    most = int(np.isnan(readings).sum(axis=1).argmin()) if order is None else ORDERS.index(order)
    return Days(np.where(open_ones, readings[most], values), orders, np.zeros(len(values), bool))


def _days(parts: pd.DataFrame, year: int, month: int, day: int) -> np.ndarray:
    """Return days from the columns of year, month and day and of the time."""
    import pandas as pd

    written = parts[year] + "-" + parts[month].str.zfill(2) + "-" + parts[day].str.zfill(2)
    dates = pd.to_datetime(written, format="%Y-%m-%d", errors="coerce")
    clock = parts[4].fillna("0:00")
    # pandas needs seconds, which people omit.
    times = pd.to_timedelta(clock.where(clock.str.count(":") == 2, clock + ":00"), errors="coerce")
    return since_1970((dates + times).dt.tz_localize("UTC"))


def since_1970(dates: pd.Series) -> np.ndarray:
    """Return dates (n,) as days since 1970-01-01; NaN for blank ones."""
    # pandas counts nanoseconds in places, and these do not reach the year 9999.
    times = dates.dt.tz_localize(None).to_numpy(dtype="datetime64[us]")
    return np.where(np.isnat(times), np.nan, times.astype(np.int64) / (24 * 3600 * 1e6))
