"""Copies of rows: in training and test, at several clients, and nearly equal rows of one person or machine."""

from __future__ import annotations

import numpy as np

from drfl.core.errors import Notice, listing
from drfl.core.key import Key
from drfl.data.checks.raw_table import FEW, RawTable, warning

LEAST = 3
"""Smallest number of pairs of copies for a warning."""

EXCESS, ROOM = 5.0, 0.5
"""Pairs of copies are reported if they are this many times the expected number and ROOM more: coarse rows coincide."""

SHUFFLES = 5
"""Number of shuffles of the columns to count coincidences."""

NEAR, SHARE = 0.1, 0.3
"""A client has near-copies if this share of its test rows is this much nearer to a training row than expected."""

MOST_ROWS = 2500
"""Number of rows of a client, from the start of its file, that are searched for near-copies."""

MOST_CLIENTS = 100
"""Number of clients that are searched for near-copies."""


def sum_warnings(table: RawTable) -> list[Notice]:
    """Warn of clients whose last row has the sums of the rows above it."""
    cases, names = [], []
    for name, rows in zip(table.names, table.rows, strict=True):
        above, last = table.values[rows[:-1]], table.values[rows[-1]]
        if len(above) < 2:
            continue
        if table.known is not None:
            above = np.where(table.known[rows[:-1]], above, 0.0)
        # A sum of rounded values is as inexact as all of them.
        is_sum = np.abs(last - above.sum(0)) <= table.resolution * len(rows) + 1e-9 * np.abs(last)
        columns = np.flatnonzero(is_sum & (np.abs(last) > 2 * np.abs(above).max(0)))
        if len(columns) > 1:
            sums = [f"{table.columns[k]} {last[k]:g}" for k in columns]
            cases.append(f"{name} ({listing(sums, 'column', 2)})")
            names.append(name)
    return warning("sum-row", "last rows that are sums of the rows above", cases, names, "client", "remove these rows")


def copy_warnings(table: RawTable) -> list[Notice]:
    """Warn of clients whose rows occur more than once, and of pairs of clients that share rows."""
    rows = np.concatenate(table.rows)
    owners = table.owner[rows]
    whole = canonical_rows(table.values[rows], table.targets[rows])
    _, kinds = np.unique(_hashes(whole), return_inverse=True)
    # How often each kind of row occurs at each client that has it.
    cells, counts = np.unique(np.stack((kinds, owners)), axis=1, return_counts=True)
    totals = np.bincount(kinds)
    n, sizes = table.n, np.array([len(own) for own in table.rows], dtype=float)
    inside = np.bincount(cells[1], counts * (counts - 1) / 2, n)
    pairs_between = (sizes.sum() ** 2 - (sizes**2).sum()) / 2
    all_pairs = (totals * (totals - 1) / 2).sum()
    between = all_pairs - inside.sum()
    # Rows of coarse answers coincide as often between clients as within one.
    rate_between = between / pairs_between if pairs_between else 0.0
    expected = rate_between * sizes * (sizes - 1) / 2
    odd = []
    for i in np.argsort(-inside):
        if inside[i] < LEAST or inside[i] <= EXCESS * (expected[i] + ROOM):
            continue
        # If the columns were independent, this many pairs of rows would be equal by coincidence.
        generator = Key(0).fold("coincidences", table.names[i]).generator()
        pairs = 0.0
        for _ in range(SHUFFLES):
            shuffled = generator.permuted(whole[owners == i], axis=0)
            each = np.unique(_hashes(shuffled), return_counts=True)[1]
            pairs += float((each * (each - 1) / 2).sum())
        if inside[i] > EXCESS * (pairs / SHUFFLES + ROOM):
            odd.append(i)
    test = np.zeros(len(table.values), bool)
    test[np.concatenate(table.test)] = True
    kind_in_training = np.zeros(len(totals), bool)
    cases, any_crossing = [], False
    for i in odd:
        own = owners == i
        kind_in_training[:] = False
        kind_in_training[kinds[own & ~test[rows]]] = True
        crossing = int(kind_in_training[kinds[own & test[rows]]].sum())
        any_crossing |= crossing > 0
        copies = int((counts[cells[1] == i] - 1).sum())
        cases.append(f"{table.names[i]} ({copies} copies, {crossing} of its test rows are also in training)")
    harm = "the test rows measure what the model has memorised" if any_crossing else "they count several times"
    advice = f"remove the copies, or {harm}"
    found = warning("copies", "rows that occur more than once", cases, [table.names[i] for i in odd], "client", advice)
    return found + _between(table, cells, counts, inside, sizes)


def _between(
    table: RawTable, cells: np.ndarray, counts: np.ndarray, inside: np.ndarray, sizes: np.ndarray
) -> list[Notice]:
    """Warn of pairs of clients that share more rows than other pairs do."""
    shared: dict[tuple[int, int], int] = {}
    starts = np.flatnonzero(np.diff(cells[0], prepend=-1))
    for start, end in zip(starts, [*starts[1:], cells.shape[1]], strict=True):
        if end - start > 1:
            holders = cells[1, start:end]
            if len(holders) > FEW:  # a row that many clients have
                continue
            for a in range(len(holders)):
                for b in range(a + 1, len(holders)):
                    pair = (int(holders[a]), int(holders[b]))
                    shared[pair] = shared.get(pair, 0) + int(min(counts[start + a], counts[start + b]))
    if not shared:
        return []
    rates = {(a, b): count / (sizes[a] * sizes[b]) for (a, b), count in shared.items()}
    inner = inside.sum() / (sizes * (sizes - 1) / 2).sum() if (sizes > 1).any() else 0.0
    odd = []
    for pair, count in shared.items():
        rest = sorted(rate for other, rate in rates.items() if not set(other) & set(pair))
        usual = max(inner, rest[len(rest) // 2] if rest else 0.0)
        # A whole file under another name is found even if its rows are coarse.
        whole = count >= FEW and count >= 0.98 * min(sizes[pair[0]], sizes[pair[1]])
        if whole or (count >= LEAST and count > EXCESS * (usual * sizes[pair[0]] * sizes[pair[1]] + ROOM)):
            odd.append((count, pair))
    odd.sort(reverse=True)
    cases = [f"{table.names[a]} and {table.names[b]} ({count})" for count, (a, b) in odd]
    advice = "check whether a file, or a patient, is in both"
    return warning("shared-rows", "clients share equal rows", cases, cases, "pair", advice)


def near_copy_warnings(table: RawTable) -> list[Notice]:
    """Warn of clients whose test rows are far nearer to training rows than independent rows would be."""
    odd = []
    for i in table.large[:MOST_CLIENTS]:
        rows = table.rows[i][:MOST_ROWS]
        values = table.values[rows]
        scale = values.std(0)
        columns = scale > table.resolution
        is_test = np.isin(rows, table.test[i])
        if not columns.any() or is_test.sum() < 5 or (~is_test).sum() < 5:
            continue
        values = values[:, columns] / scale[columns]
        train = values[~is_test]
        # Shuffle the columns, which gives rows with the same values that were not derived from another row.
        shuffled = Key(0).fold("near copies", table.names[i]).generator().permuted(train, axis=0)
        near, far = _nearest(values[is_test], train), _nearest(values[is_test], shuffled)
        # Equal rows are copies, or answers too coarse to distinguish rows.
        share = float(((near > 0) & (near < NEAR * far)).mean())
        if share >= SHARE:
            odd.append((share, table.names[i]))
    odd.sort(reverse=True)
    cases = [f"{name} ({share:.0%} of the test rows)" for share, name in odd]
    advice = "keep the rows of one patient or machine on one side of the split: name the column with `patient`"
    names = [name for _, name in odd]
    return warning("near-copies", "test rows nearly equal to training rows", cases, names, "client", advice)


def _nearest(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return (len(a),), the distance from each row of a to the nearest row of b."""
    squares = (b**2).sum(1)
    parts = [(part**2).sum(1)[:, None] - 2 * part @ b.T + squares for part in np.array_split(a, -(-len(a) // 100))]
    return np.sqrt(np.maximum(np.concatenate([part.min(1) for part in parts]), 0))


def canonical_rows(values: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Join inputs (n, …) and targets (n, …) to rows (n, k) float64 that have the same bytes if they are equal."""
    whole = np.column_stack((values.reshape(len(values), -1), targets.reshape(len(targets), -1))) + 0.0  # no -0.0
    whole[np.isnan(whole)] = np.nan
    return whole


def _hashes(rows: np.ndarray) -> np.ndarray:
    """Return (n,) uint64 hashes of canonical rows. Different rows collide with probability 2^-64 per pair."""
    # Sorting a million whole rows takes a minute, and pandas, which has such a function, takes a second to load.
    found = np.zeros(len(rows), np.uint64)
    for column in rows.T:
        found = (found ^ np.ascontiguousarray(column).view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(29)
    return found
