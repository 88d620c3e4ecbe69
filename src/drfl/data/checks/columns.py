"""Columns in another unit, codes for missing values, outliers, and columns that should not be learnt from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from drfl.core.errors import Notice, listing
from drfl.data.checks.raw_table import SAMPLE, RawTable, column_warning, plain_name, warning
from drfl.data.tables.columns import RARE
from drfl.data.tables.schema import TableSchema

FAR = 1e4
"""A value this many interquartile ranges from the median of its column is probably an error."""

COARSE = 0.5
"""An outlier makes the resolution of its column coarse; at this resolution, whole numbers cannot be distinguished."""

FINER = 1e-3
"""Fraction of the resolution that the differences between most values of a column with an outlier exceed."""

ABSURD = 1e9
"""Larger values are probably errors if most of their column is one value and has no interquartile range."""

LARGE = 1e6
"""Columns with larger values have no suitable step size unless they are standardised."""

SCALES = 1e4
"""A column this many times as large as the median column hides the others from one common step size."""

FROM_ZERO = 20.0
"""Columns whose mean is this multiple of their standard deviation hardly differ in direction from a constant."""

RATIO, RATIO_OF_TWO = 2.2, 4.0
"""A client's median may have another unit if it is this multiple of the others', with several others or only one."""

SPREADS = 20.0
"""A client's interquartile range may have another unit if it is this multiple of the other clients'."""

SHIFT, SHIFT_OF_TWO = 3.5, 5.0
"""A client's median is far off if it is this many standard deviations from the others', with several or only one."""

BEYOND = 2.5
"""A client differs from the others if it is this many times as far from their middle as any of them."""

ERRORS = 4.0
"""Standard errors of a median that a difference must exceed."""

SWAPPED = 0.85
"""0 and 1 may be swapped at a client if one of them has at least this share elsewhere, and the other one there."""

UNITS = {
    2.2046: "kilograms and pounds",
    2.54: "inches and centimetres",
    3.2808: "metres and feet",
    7.0: "weeks and days",
    10.0: "units a power of ten apart",
    18.016: "mmol/L and mg/dL of glucose",
    24.0: "days and hours",
    38.67: "mmol/L and mg/dL of cholesterol",
    60.0: "minutes and hours",
    88.42: "µmol/L and mg/dL of creatinine",
    100.0: "per cent and fractions, or units a power of ten apart",
    365.25: "years and days",
    1000.0: "units a power of ten apart",
}
"""Factors between units that are often mixed up."""

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

CHANCE = 1e-3
"""Probability below which a client's values are not chance."""

SEVERAL = 10
"""A column with more distinct values is treated as a quantity, not as a code of a few levels."""


def column_warnings(table: RawTable, raw: bool, by_class: bool, schema: TableSchema | None = None) -> list[Notice]:
    """Warn of columns that are likely to be wrong; raw ones are trained on without standardisation."""
    found = [*outliers(table), *(_unscaled(table) if raw else ()), *_identifiers(table)]
    if len(table.large) and not by_class:
        found += [*_constant(table), *_blank(table, schema), *_swapped(table), *_other_codes(table)]
    coded = codes(table, by_class)
    # The option `missing` applies to all columns, and the number may be a valid value of another one.
    advice = "remove these rows, or add the number to 'missing' of the column in a schema"
    found += code_warning(table, coded, advice)
    if len(table.large) > 1 and not by_class:
        apart = {k for k, _, _ in coded}
        odd = [
            (k, f" at {table.names[table.large[j]]} ({text})") for k, j, text in odd_medians(table) if k not in apart
        ]
        advice = "check the unit, the sign and the order of the columns there"
        found += column_warning(table, "unit-mismatch", "values unlike those of other clients", odd, "case", advice)
    return found


def outliers(table: RawTable) -> list[Notice]:
    """Warn of values that are far from all others of their column."""
    low, middle, high = np.quantile(table.values[:: -(-len(table.values) // SAMPLE)], (0.25, 0.5, 0.75), axis=0)
    distance = np.abs(table.values - middle)
    most, rows, spread = distance.max(0), distance.argmax(0), high - low
    # The raw value decides if a column is mostly one value and has no spread to compare with. The resolution is that of
    # the outlier itself, and most values, which are nearer to the mean, are far more accurate.
    bad = (most > FAR * spread) & ((spread > FINER * table.resolution) | (most > ABSURD))
    cases = [
        (k, f"{_at(table, rows[k])} ({table.shown(k, float(table.values[rows[k], k]))})") for k in bad.nonzero()[0]
    ]
    advice = "look for a typing error or a code for missing values"
    return column_warning(
        table, "outlier", f"values more than {FAR:,.0f} interquartile ranges from the median", cases, "column", advice
    )


def _unscaled(table: RawTable) -> list[Notice]:
    """Warn of columns that are very large or far larger than the others, and of tables mostly far from 0."""
    sizes = np.abs(table.values)
    cases = [(k, _at(table, int(sizes[:, k].argmax()))) for k in (sizes.max(0) > LARGE).nonzero()[0]]
    advice = "no step size suits such inputs: standardise them"
    found = column_warning(table, "not-standardised", f"values beyond {LARGE:,.0f}", cases, "column", advice)
    if found:
        return found
    mean, spread = table.values.mean(0), table.values.std(0)
    varies = spread > table.resolution
    if not varies.any():
        return []
    size = np.hypot(mean, spread)
    columns = (varies & (size > SCALES * np.median(size[varies]))).nonzero()[0]
    far = (varies & (np.abs(mean) > FROM_ZERO * spread)).nonzero()[0]
    what = f"columns more than {SCALES:,.0f} times as large as the others"
    if not len(columns):
        if 2 * len(far) <= varies.sum():
            return []
        columns, what = far, f"columns whose mean is more than {FROM_ZERO:g} times their standard deviation"
    advice = "no step size suits all columns: standardise them"
    return column_warning(table, "not-standardised", what, [(k, "") for k in columns], "column", advice)


def _at(table: RawTable, row: int) -> str:
    owner = table.owner[row]
    return "" if owner < 0 else f" at {table.names[owner]}"


def _identifiers(table: RawTable) -> list[Notice]:
    """Warn of columns of whole numbers that number the rows or name them."""
    numbered, named = [], []
    for k in table.is_whole.nonzero()[0]:
        if k in table.dates:  # few visits are on the same day, and the days of a series follow each other
            continue
        values = table.values[:, k].round()  # free of the rounding of standardised values
        different = len(np.unique(values))
        if different <= SEVERAL:
            continue
        # In a file of all clients the numbers continue from client to client.
        if all((np.diff(values[rows]) == 1).all() for rows in table.rows) or (np.diff(values) == 1).all():
            numbered.append((k, ""))
        elif different == len(values) >= 2 * SEVERAL:
            named.append((k, ""))
    advice = "exclude them with `drop`, or the model learns the order of the file"
    found = column_warning(table, "row-number", "columns that number the rows", numbered, "column", advice)
    return found + column_warning(
        table, "identifier", "columns whose whole numbers differ in every row, like names", named, "column", advice
    )


def _constant(table: RawTable) -> list[Notice]:
    """Warn of columns that do not vary at a client but elsewhere have more than two values."""
    values = table.values
    low, high = values.min(0), values.max(0)
    # A column of two values, such as sex, may well be constant at one client.
    several = ((values != low) & (values != high)).any(0)
    spread = np.stack([np.ptp(values[table.rows[i]], axis=0) for i in table.large])
    if table.known is not None:  # a column that a client does not measure is not constant there
        spread[np.stack([~table.known[table.rows[i]].any(0) for i in table.large])] = np.inf
    cases = []
    for j, k in np.argwhere((spread == 0) & several):
        rows = table.rows[table.large[j]]
        is_same = values[:, k] == values[rows[0], k]
        # A column that is nearly always 0 may be 0 in all rows of a client by chance.
        share = (is_same.sum() - len(rows)) / max(1, len(values) - len(rows))
        if share ** len(rows) < CHANCE:
            cases.append((k, f" at {table.names[table.large[j]]}"))
    advice = "check whether they are measured there"
    return column_warning(table, "constant-column", "columns that vary elsewhere are constant", cases, "case", advice)


def _blank(table: RawTable, schema: TableSchema | None) -> list[Notice]:
    """Warn of columns that are blank in all rows of a client, but not of all of several clients."""
    if table.known is None or schema is None:
        return []
    # The features of a category are known or missing together.
    column_of = {feature: column.name for column in schema.columns for feature in column.features}
    cases = dict[str, list[str]]()
    # A site checks its data as those of a single client, which does not show whether others have values.
    for k in np.flatnonzero((table.known.any(0) | (table.n == 1)) & ~table.known.all(0)).tolist():
        lacking = [table.names[i] for i in table.large if not table.known[table.rows[i], k].any()]
        if lacking:
            cases[column_of[plain_name(table.columns[k])]] = lacking
    texts = [f"'{name}' at {listing(lacking, 'client')}" for name, lacking in cases.items()]
    advice = "check whether they are measured there"
    return warning("blank-column", "columns that are blank in all rows of a client", texts, [*cases], "column", advice)


def _swapped(table: RawTable) -> list[Notice]:
    """Warn of columns of 0 and 1 that seem to mean the opposite at one client."""
    is_binary = ((np.abs(table.values) <= table.resolution) | (np.abs(table.values - 1) <= table.resolution)).all(
        axis=0
    )
    if len(table.large) < 3 or not is_binary.any():
        return []
    shares = np.stack([table.values[table.rows[i]].mean(0) for i in table.large])
    ordered = np.sort(shares, axis=0)
    cases = []
    for k in np.flatnonzero(is_binary):
        # The second smallest is the smallest of the others if the smallest is the odd one; likewise at the other end.
        if ordered[0, k] <= 1 - SWAPPED and ordered[1, k] >= SWAPPED:
            j = int(shares[:, k].argmin())
        elif ordered[-1, k] >= SWAPPED and ordered[-2, k] <= 1 - SWAPPED:
            j = int(shares[:, k].argmax())
        else:
            continue
        cases.append((k, f" at {table.names[table.large[j]]} (mean {shares[j, k]:.2f})"))
    advice = "check whether 0 and 1 are swapped there"
    return column_warning(
        table, "levels-swapped", "columns of 0 and 1 with the opposite of all other clients", cases, "case", advice
    )


def _other_codes(table: RawTable) -> list[Notice]:
    """Warn of columns with two values that some clients code as 0 and 1, and others as 1 and 2, or as −1 and 1."""
    whole, cases = table.values.round(), list[tuple[int, str]]()
    is_code = (np.abs(table.values - whole) <= table.resolution) & (whole >= -1) & (whole <= 2)
    for k in np.flatnonzero(is_code.all(0) & (np.ptp(whole, axis=0) > 1)).tolist():
        kinds = dict[int, tuple[int, ...]]()
        for i in table.large.tolist():
            values, counts = np.unique(table.values_at(i, k).round(), return_counts=True)
            # In a column that is nearly always 0, the other value is chance.
            kinds[i] = tuple(values.astype(int)) if len(values) > 2 or counts.min() >= RARE else ()
        pairs = Counter(kind for kind in kinds.values() if len(kind) == 2)
        if len(pairs) < 2 or max(map(len, kinds.values())) > 2:
            continue
        (usual, _), *others = pairs.most_common()
        for kind, _ in others:
            at = listing([table.names[i] for i in kinds if kinds[i] == kind], "client")
            cases.append((k, f" at {at} ({kind[0]} and {kind[1]}; {usual[0]} and {usual[1]} elsewhere)"))
    advice = "use the same values everywhere"
    return column_warning(
        table, "values-differ", "some clients use other numbers for two values", cases, "case", advice
    )


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


def odd_medians(table: RawTable) -> Iterator[tuple[int, int, str]]:
    """Yield columns, indices of `large` clients, and descriptions of medians that are far from all others."""
    for k in range(table.values.shape[1]):
        of_clients = [table.values_at(i, k) for i in table.large]
        members = np.arange(len(of_clients))
        low, middle, high = table.quartiles[:, :, k]
        if table.known is not None:
            members, of_clients, quartiles = _with_several(members, of_clients)
            if len(members) < 2:
                continue
            low, middle, high = quartiles
        is_mostly_zero = abs(np.median(middle)) <= table.resolution[k] and low.min() >= -table.resolution[k]
        if is_mostly_zero or np.median(high - low) <= table.resolution[k]:
            # For counts of rare events, compare only those that are not 0.
            of_clients = [values[np.abs(values) > table.resolution[k]] for values in of_clients]
            members, of_clients, quartiles = _with_several(members, of_clients)
            if len(members) < 2:
                continue
            low, middle, high = quartiles
        values = np.concatenate(of_clients)
        # A code of a few levels has no unit.
        if len(np.unique(values[:: -(-len(values) // SAMPLE)])) <= SEVERAL or np.median(high - low) <= 0:
            continue
        # For normal values, the interquartile range is 1.349 standard deviations.
        spread, sizes, is_pair = (high - low) / 1.349, np.array(list(map(len, of_clients))), len(members) == 2
        positive = np.array([bool((values > table.resolution[k]).all()) for values in of_clients])
        is_date = k in table.dates  # has no unit, and a client may cover few days
        if positive.all() and not is_date:
            # Two groups of clients, in each of which the medians are close together, may have different units.
            logs = np.log(middle)
            order = np.argsort(logs)
            gaps = np.diff(logs[order])
            cut = int(gaps.argmax()) + 1
            groups = order[:cut], order[cut:]
            # If both groups have the same size, name the one with the larger values.
            many, few = groups if len(groups[0]) >= len(groups[1]) else groups[::-1]
            is_apart = gaps[cut - 1] > BEYOND * max(float(np.ptp(logs[group])) for group in groups)
            factor, is_known = _factor(float(np.median(logs[few]) - np.median(logs[many])))
            for j in few if len(few) > 1 and is_apart and is_known else ():
                yield k, int(members[j]), factor
        for j in np.argsort(-spread):  # if there are two clients, name the one with the larger values
            text = None
            if np.delete(positive, j).all() and not is_date:
                text = _ratio(middle, low, high, sizes, j, RATIO_OF_TWO if is_pair else RATIO)
            text = text or (None if is_date else _spread(spread, j))
            width = np.median(np.delete(spread, j))
            if text is None and width > 0:
                distance = _distance(middle / width, 1.0, sizes, j, SHIFT_OF_TWO if is_pair else SHIFT)
                text = None if distance is None else f"{distance:+.1f} standard deviations"
            if text is not None:
                yield k, int(members[j]), text
                if is_pair:
                    break


def _with_several(members: np.ndarray, of_clients: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Return the clients with at least SEVERAL values, these values, and their quartiles (3, clients)."""
    enough = [j for j, values in enumerate(of_clients) if len(values) >= SEVERAL]
    kept = [of_clients[j] for j in enough]
    quartiles = [np.quantile(values, (0.25, 0.5, 0.75)) for values in kept]
    return members[enough], kept, np.stack(quartiles, axis=1) if kept else np.empty((3, 0))


def _ratio(
    middle: np.ndarray, low: np.ndarray, high: np.ndarray, sizes: np.ndarray, j: int, least: float
) -> str | None:
    """Describe the factor between a client's median and the positive medians of the others; None if it is normal."""
    others = np.arange(len(middle)) != j
    if high[j] < 0:
        return "negative, all others positive"
    if low[j] <= 0:
        return None
    logs = np.log(middle)
    width = float(np.median(np.log(high[others] / low[others]))) / 1.349
    distance = _distance(logs, width, sizes, j, np.log(least))
    if distance is None:
        return None
    as_fahrenheit = 1.8 * np.median(middle[others]) + 32
    # Of large values, °F are less than twice the °C.
    is_warm = as_fahrenheit > least * np.median(middle[others])
    if is_warm and abs(middle[j] - as_fahrenheit) < 0.5 * (high[j] - low[j]):
        return f"{np.exp(distance):.3g} times, as °F in place of °C"
    return _factor(distance)[0]


def _factor(distance: float) -> tuple[str, bool]:
    """Describe a factor by its logarithm, and return whether it is one between two units."""
    factor = np.exp(abs(distance))
    unit = min(UNITS, key=lambda known: abs(np.log(known / factor)))
    is_known = abs(np.log(unit / factor)) < 0.1
    times = f"{float(f'{np.exp(distance):.3g}'):,g} times"
    return times + (f", as between {UNITS[unit]}" if is_known else ""), is_known


def _distance(middle: np.ndarray, width: float, sizes: np.ndarray, j: int, least: float) -> float | None:
    """Return the distance of a client's median from the others'; None if it is explained by noise or their differences.

    ``width`` is the standard deviation of the values, and ``sizes`` (k,) counts the values of each median.
    """
    others = np.arange(len(middle)) != j
    errors = 1.2533 * width / np.sqrt(sizes)  # of medians of normal values
    centre = np.median(middle[others])
    distance = float(middle[j] - centre)
    # Part of the others' differences is their own sampling error, whose square adds to that of the true difference.
    squares = (middle[others] - centre) ** 2 - (1.5 * errors[others]) ** 2
    differences = np.sqrt(np.maximum(squares, 0).max())
    return distance if abs(distance) >= max(least, BEYOND * differences, ERRORS * errors[j]) else None


def _spread(spread: np.ndarray, j: int) -> str | None:
    """Describe the factor between a client's interquartile range and those of the others; None if it is normal."""
    others = spread[np.arange(len(spread)) != j]
    if spread[j] <= 0 or (others <= 0).any():
        return None
    logs = np.log(others)
    distance = np.log(spread[j]) - np.median(logs)
    if abs(distance) < max(np.log(SPREADS), BEYOND * np.abs(logs - np.median(logs)).max()):
        return None
    return f"a range {np.exp(distance):.3g} times that of the others"
