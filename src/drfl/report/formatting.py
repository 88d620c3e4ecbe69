"""Formatting of numbers, lists and external text for reports, as plain text."""

from __future__ import annotations

import math
import re
import statistics
import unicodedata
from collections.abc import Iterable, Sequence

from drfl.core.byte_units import byte_unit
from drfl.core.errors import printable
from drfl.task.measure import NOTHING, Measure

THIN = "\u202f"  # narrow no-break space, between a number and its unit

UNDEFINED = "Undefined"
"""Column title for the share of clients at which the measure of the column before is undefined."""

QUOTED = re.compile(r"""(["'])(?:~?/|[A-Za-z]:\\)[^"']*[/\\]([^"'/\\]*)\1""")
PATH = re.compile(r"(?<![\w.…/<\\-])(?:~?/|[A-Za-z]:\\+|\\\\+)(?:[^/\\\s'\"<>]+[/\\]+)+([^/\\\s'\"<>]*)")
"""An absolute path and its last part. Quoted paths may contain spaces. Web addresses do not match."""

ISOLATE, ISOLATE_END = "\u2068", "\u2069"
"""Isolates around right-to-left text, which would otherwise move the numbers after it to its other side."""


def clean(value: object, limit: int = 200) -> str:
    """Format external text as one line, without control characters and cut to ``limit`` characters.

    Only the last part of an absolute path is kept: reports are shared, and the path would reveal the name of a home
    folder.
    """
    whole = printable(str(value).replace(ISOLATE, "").replace(ISOLATE_END, ""))
    # Remove folders before cutting: a path that was cut might no longer be recognised.
    text = printable(PATH.sub(r"…/\1", QUOTED.sub(r"\1…/\2\1", whole)), limit)
    if not text.isascii() and any(unicodedata.bidirectional(c) in ("R", "AL") for c in text):
        return f"{ISOLATE}{text}{ISOLATE_END}"
    return text


def percent(values: Sequence[float], digits: int = 1) -> str:
    """Format fractions in percent as "87.9 ± 0.4": mean ± sample standard deviation; a single value has no ±.

    The result is a dash if a value is not finite: the mean of the others would hide the run that failed.
    """
    return spread([100 * value for value in values], digits)


def score_text(values: Sequence[float], score: Measure) -> str:
    """Format values of a score like :func:`percent`, in the score's own scale and without its unit."""
    return spread([score.scale * value for value in values], score.digits)


def spread(values: Sequence[float], digits: int) -> str:
    """Format values as "mean ± sample standard deviation"; no ± for a single value, a dash if one is not finite."""
    if not values or not all(math.isfinite(value) for value in values):
        return NOTHING
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def scientific(values: Sequence[float]) -> str:
    """Format values like `spread`, the mean to four and the standard deviation to two significant digits."""
    if not values or not all(math.isfinite(value) for value in values):
        return NOTHING
    mean = f"{statistics.fmean(values):.4g}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2g}"


def size(count: float) -> str:
    """Format bytes with a decimal prefix, as "1.25 GB"; a dash if not finite."""
    if not math.isfinite(count):
        return NOTHING
    # Three digits print 999.5 as 1e+03, so the next unit starts there.
    unit, name = byte_unit(abs(count) / 0.9995)
    return f"{count / unit:.3g}{THIN}{'B' if unit == 1 else name}"


def count(value: float) -> str:
    """Format a count with thin spaces between thousands; a dash if not finite."""
    return f"{value:,.0f}".replace(",", THIN) if math.isfinite(value) else NOTHING


def duration(seconds: float) -> str:
    """Format a wall time as "42 s", "3 min 20 s" or "2 h 5 min"; a dash if not finite."""
    if not math.isfinite(seconds):
        return NOTHING
    if seconds < 60:
        return f"{seconds:.3g}{THIN}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{THIN}min {rest}{THIN}s"
    return f"{minutes // 60}{THIN}h {minutes % 60}{THIN}min"


def mean(values: Iterable[float]) -> float:
    """Compute the mean; NaN without values or if one is NaN."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else math.nan


def listing(words: Sequence[str]) -> str:
    """Join words as "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def plural(number: int, one: str) -> str:
    """Format a number with its noun, as "1 round" or "3 rounds"."""
    return f"{count(number)} {one if number == 1 else one + 's'}"


def span(values: Iterable[float]) -> str:
    """Format counts as a range, as "50 to 100", or as one number if all are equal; "?" if none is known."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return "?"
    low, high = min(known), max(known)
    return count(low) if low == high else f"{count(low)} to {count(high)}"
