"""Columns that are probably wrong: outliers, swapped levels, identifiers, constant or unscaled columns."""

from __future__ import annotations

from collections import Counter

import numpy as np

from drfl.core.errors import Notice, listing
from drfl.data.checks.missing_codes import code_warning, codes
from drfl.data.checks.raw_table import SAMPLE, SEVERAL, RawTable, column_warning, plain_name, warning
from drfl.data.checks.units import odd_medians
from drfl.data.tables.columns import RARE
from drfl.data.tables.schema import TableSchema

FAR = 1e4
"""A value this many interquartile ranges from the median of its column is probably an error."""

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

SWAPPED = 0.85
"""0 and 1 may be swapped at a client if one of them has at least this share elsewhere, and the other one there."""

CHANCE = 1e-3
"""Probability below which a client's values are not chance."""


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
