"""Numbers and dates that seem to represent missing values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from drfl.core.errors import Notice
from drfl.data.checks.raw_table import SAMPLE, SEVERAL, RawTable, column_warning

COARSE = 0.5
"""An outlier makes the resolution of its column coarse; at this resolution, whole numbers cannot be distinguished."""

CODES = (-9.0, -99.0, -999.0, -9999.0, -1.0, 99.0, 999.0, 9999.0, 99999.0, 0.0)
"""Numbers that represent missing values in many tables."""

USUAL_CODE = re.compile(r"-?(9*[789]|8+|7+|66|([1-6])\2{2,})")
"""Whole numbers that often represent missing values: 7, 88, 998, 9999, 1111, also with a minus sign."""

SPIKES = (7.0, 8.0, 9.0, 77.0, 88.0, 99.0, 777.0, 888.0, 999.0)
"""Numbers that represent missing values at one client, even if they are within the range of the column."""

SPIKE = 4
"""A number is a spike if it has at least as many rows, and is this many times as frequent as the three nearest ones."""

GAP = 3.0
"""A repeated number looks like a code if its gap to all others exceeds this multiple of their range."""

MOST_CODES = 3
"""Number of codes to search for at each end of a column's range, such as 997, 998 and 999."""

DATES = tuple(
    float((np.datetime64(date) - np.datetime64("1970-01-01")).astype(int))
    for date in ("0001-01-01", "1753-01-01", "1899-12-30", "1900-01-01", "1970-01-01", "2099-12-31", "9999-12-31")
)
"""Dates that represent missing or open ones, as days since 1970-01-01."""

FREQUENT = 0.05
"""One of these dates within the range of the others is a code if at least this share of a client's rows has it."""


def code_warning(table: RawTable, coded: Sequence[tuple[int, float, str]], advice: str) -> list[Notice]:
    """Warn of a case that :func:`codes` has found."""
    cases = [(k, f"{where} ({table.shown(k, value)})") for k, value, where in coded]
    return column_warning(
        table, "missing-code", "numbers that look like codes for missing values", cases, "case", advice
    )


def codes(table: RawTable, by_class: bool, *, zero: bool = True) -> list[tuple[int, float, str]]:
    """List columns and numbers that seem to represent missing values, and the clients that have them.

    Args:
        table: The table.
        by_class: Whether a partition gave the rows to clients by class.
        zero: Whether 0 may be a code of all clients; otherwise, only if one client alone has it.
    """
    found, several = [], table.n > 1 and not by_class
    # In coarser columns, whose numbers are rounded, a code cannot be distinguished from its neighbours.
    for k in np.flatnonzero(table.resolution < COARSE).tolist():
        if k in table.dates:
            continue
        column = table.values[:, k]
        # Skip numbers outside the column's range, which most of the lists are, because each comparison reads all rows.
        low, high = column.min() - table.resolution[k], column.max() + table.resolution[k]
        listed = [c for c in CODES if low <= c <= high and _is_listed_code(table, k, c, by_class, zero=zero)]
        spikes = [c for c in SPIKES if low <= c <= high and _is_spike(table, k, c)] if several else []
        for code in dict.fromkeys([*listed, *_far_codes(column, table.resolution[k], by_class), *spikes]):
            hits = np.abs(column - code) <= table.resolution[k]
            found.append((k, code, _at_holders(table, hits)))
    for k in sorted(table.dates):
        days = np.floor(table.values[:, k] + table.resolution[k])
        for code in DATES:
            hits = np.abs(days - code) <= table.resolution[k]
            if _is_date_code(table, code, days, hits):
                found.append((k, code, _at_holders(table, hits)))
    return found


def _at_holders(table: RawTable, hits: np.ndarray) -> str:
    """Name the clients that have a code, if these are few and not all."""
    holders = [name for name, rows in zip(table.names, table.rows, strict=True) if hits[rows].any()]
    return f" at {', '.join(holders)}" if len(holders) < table.n and len(holders) < 4 else ""


def _is_date_code(table: RawTable, code: float, days: np.ndarray, hits: np.ndarray) -> bool:
    """Return whether a date of the list is beyond all others of its column (n,), or frequent at a client."""
    count, rest = int(hits.sum()), days[~hits]
    rest = rest[~np.isin(rest, DATES)]
    if not count or not len(rest):
        return False
    width, gap = float(np.ptp(rest)), max(rest.min() - code, code - rest.max())
    if gap > 0 and (count > 1 or gap > width):
        return True
    shares = [hits[rows].mean() for rows in table.rows if hits[rows].sum() >= 3]
    return max(shares, default=0.0) >= FREQUENT and len(np.unique(rest)) > SEVERAL


def _far_codes(column: np.ndarray, resolution: float, by_class: bool) -> Iterator[float]:
    """Yield repeated numbers (n,) at an end of their column, if a gap larger than the range of the rest is between."""
    for sign in (-1.0, 1.0):
        rest, ends = sign * column, list[tuple[float, int]]()
        for _ in range(MOST_CODES):
            end = float(rest.max())
            is_end = rest >= end - resolution
            ends.append((sign * end, int(is_end.sum())))
            rest = rest[~is_end]
            if 2 * len(rest) < 0.8 * len(column):  # codes that fill most rows are the column's usual values
                break
            width, gap = float(np.ptp(rest)), end - float(rest.max())
            # Usual codes need no gap if they are the only negative numbers of their column.
            is_negative = sign < 0 and end > resolution >= float(rest.max()) and _is_usual_code(ends[0][0], resolution)
            if not (gap > width > 0 or is_negative):
                continue
            few = len(np.unique(rest[:: -(-len(rest) // SAMPLE)])) <= SEVERAL
            for value, count in ends:
                is_usual = _is_usual_code(value, resolution)
                if few:  # a single digit may be a level beyond a gap
                    is_code = is_usual and gap > (2.0 if 0 < value < SEVERAL else 1.0) * width
                else:
                    is_code = gap > (1.0 if is_usual else GAP) * width or is_negative
                if count >= 2 and is_code and not (by_class and -9 < value < 0):
                    yield float(round(value)) if abs(value - round(value)) <= resolution else value
            break


def _is_usual_code(value: float, resolution: float) -> bool:
    return abs(value - round(value)) <= resolution and USUAL_CODE.fullmatch(str(round(value))) is not None


def _is_listed_code(table: RawTable, k: int, code: float, by_class: bool, *, zero: bool) -> bool:
    """Return whether a number of the list is far from all others of its column, or occurs at a single client."""
    column = table.values[:, k]
    hits = np.abs(column - code) <= table.resolution[k]
    # A single hit may be a real value, and a code in most rows would be the column's usual value.
    if not 2 <= int(hits.sum()) <= 0.6 * len(column):
        return False
    rest = np.unique(column[~hits])
    if len(rest) <= SEVERAL:
        # Columns of −1, 0 and 1 are common, but not at a single client.
        is_odd = code == -1 and not by_class and bool(np.isin(rest.round(), (0, 1)).all())
        holder = _holder(table, hits) if is_odd else None
        return holder is not None and len(np.unique(table.values_at(holder, k))) > len(rest)
    if code < 0:
        return bool(rest[0] >= 0) and (code <= -9 or not by_class)
    if code > 0:
        return bool(code >= 1.5 * rest[-1]) and bool(rest[0] > -code)
    if rest[0] <= 0:
        return False
    # Zero is a code if it lies far below a positive quantity, or if one client alone has it.
    apart = rest[0] >= 10 * np.median(np.diff(rest)) and rest[0] >= 0.25 * np.median(rest)
    if (zero and apart) or by_class or table.n == 1:
        return bool(zero and apart)
    holder = _holder(table, hits)
    if holder is None:
        return False
    # At the client, 0 is as near to the other values as these are to each other, such as the ages of children.
    own = np.unique(table.values_at(holder, k))
    is_next = len(own) > SEVERAL and own[1] - own[0] <= 2 * np.median(np.diff(own[1:])) + table.resolution[k]
    return not is_next or _is_spike(table, k, code)


def _holder(table: RawTable, hits: np.ndarray) -> int | None:
    """Return the client that alone has a number, given the rows (n,) with it; None if chance explains it."""
    shares = np.array([hits[rows].mean() for rows in table.rows])
    (holders,) = shares.nonzero()
    if len(holders) != 1:
        return None
    others = sum(len(rows) for i, rows in enumerate(table.rows) if i != holders[0])
    # If all clients had the holder's share, the others would have this many rows with the number.
    return int(holders[0]) if shares[holders[0]] * others >= 8 else None


def _is_spike(table: RawTable, k: int, code: float) -> bool:
    """Return whether a client alone has a number, and far more often than the nearest numbers of a column."""
    hits = np.abs(table.values[:, k] - code) <= table.resolution[k]
    holder = _holder(table, hits) if int(hits.sum()) >= SPIKE else None
    if holder is None:
        return False
    values, counts = np.unique(table.values_at(holder, k), return_counts=True)
    itself, *nearest = np.argsort(np.abs(values - code))[:4]
    return len(values) > SEVERAL and bool(counts[itself] > SPIKE * counts[nearest].max())
