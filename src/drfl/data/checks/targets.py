"""Targets that a column gives away, that have another unit, or that mean the opposite at a client."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from drfl.core.errors import Notice
from drfl.core.ranks import average_ranks
from drfl.data.checks.clients import FEW_OF_A_CLASS
from drfl.data.checks.columns import outliers
from drfl.data.checks.missing_codes import code_warning, codes
from drfl.data.checks.raw_table import FEW, RawTable, plain_name, warning
from drfl.data.checks.units import odd_medians
from drfl.data.client_data import ClientData
from drfl.data.tables.columns import CATEGORIES
from drfl.data.tables.conform import amount_of
from drfl.data.tables.schema import TableSchema

NEARLY = 0.985
"""A column gives the target away if a rule of thresholds, or of one class per value, is right this often."""

CORRELATED = 0.975
"""A column gives a number away if its ranks correlate with the target's by this much."""

VALUES = 20
"""Maximum number of distinct values of a column for a rule with one class per value."""

GROUPS, MOST_CLASSES = 1000, 20
"""Maximum number of groups of neighbouring values, and of classes, for a rule of several thresholds."""

COLUMNS, CLIENTS = 300, 100
"""Maximum number of columns and of clients for checks of single clients' targets."""

ENOUGH = 5 * VALUES
"""Minimum number of rows of a client for a rule of its own, which chance could make right in fewer rows."""

RIDGE = 1e-2
"""Regularisation of the linear models that compare clients."""


def target_warnings(data: ClientData, table: RawTable | None) -> list[Notice]:
    """Warn of targets that seem wrong, or too easy."""
    if table is None:
        return []
    is_real, found = data.targets.is_floating_point(), list[Notice]()
    if data.targets.ndim == 1:
        if is_real:
            odd = _giving_away_numbers(table)
        else:
            rules = _rules(table, data.schema, np.concatenate(table.rows), NEARLY)
            odd = [(name, f" ({how}right in {right:.1%} of the rows)") for name, how, right in rules]
            odd += _giving_away_at_one_client(table, data.schema, {name for name, _ in odd})
        advice = "exclude a column that is known only after the target"
        cases, names = [f"{name}{text}" for name, text in odd], [plain_name(name) for name, _ in odd]
        found = warning("leak", "columns that nearly determine the target", cases, names, "column", advice)
        classes = data.classes if data.columns is not None and data.classes is not None else ()
        if len(classes) > CATEGORIES and not any(amount_of(name) is None for name in classes):
            name = None if data.schema is None else data.schema.targets[0].name
            text = (
                f"{'the target' if name is None else f'target {name!r}'} has {len(classes)} classes, which are all "
                "numbers: if it is a quantity such as an age, use `task = 'regression'`"
            )
            found.append(Notice(text, "many-classes", name))
        if not is_real and int(data.targets.max()) == 1:
            found += _opposite(table)
    return found + _numeric_targets(table, data.schema) if is_real else found


def _giving_away_at_one_client(
    table: RawTable, schema: TableSchema | None, known: Collection[str]
) -> list[tuple[str, str]]:
    """List columns, except the known ones, that determine the target at one client, and are far from it elsewhere."""
    if not 1 < table.n <= CLIENTS or len(table.columns) > COLUMNS:
        return []
    odd = []
    for i in (int(i) for i in table.large if len(table.rows[i]) >= ENOUGH):
        counts = np.sort(np.bincount(table.targets[table.rows[i]].astype(int).clip(0)))
        # With few rows of other classes, chance or the usual class makes a rule right.
        if len(counts) < 2 or counts[-2] < FEW_OF_A_CLASS:
            continue
        least = 1 - 0.1 * counts[-2] / counts.sum()
        own = [each for each in _rules(table, schema, table.rows[i], max(NEARLY, least)) if each[0] not in known]
        if own:
            others = np.concatenate([rows for j, rows in enumerate(table.rows) if j != i])
            fair = {name for name, _, _ in _rules(table, schema, others, 0.0)}
            odd += [
                (name, f" at {table.names[i]} ({how}right in {right:.1%} of the rows)")
                for name, how, right in own
                if name not in fair
            ]
    return odd


def _rules(table: RawTable, schema: TableSchema | None, rows: np.ndarray, least: float) -> list[tuple[str, str, float]]:
    """List columns with a rule that is right in at least this share of the rows, how it works, and the share."""
    rows = rows[table.targets[rows] >= 0]  # losses may ignore negative labels
    if len(rows) < FEW:
        return []
    targets = table.targets[rows].astype(int)
    usual = np.bincount(targets).max() / len(targets)
    # Halfway from the share of the usual class to 1: a rule that is hardly better than the usual class does not leak.
    least = max(least, (1 + usual) / 2)
    if usual == 1:
        return []
    # The columns of the table that are indicators of a category of few levels.
    place, categories = {name: k for k, name in enumerate(table.columns)}, dict[str, list[int]]()
    for column in () if schema is None else schema.columns:
        own = [place[f"column '{name}'"] for name in column.features if f"column '{name}'" in place]
        if column.levels and 0 < len(own) < VALUES:
            categories[f"column '{column.name}'"] = own
    indicators = {k for own in categories.values() for k in own}
    odd = []
    for k, name in enumerate(table.columns):
        if k in indicators:
            continue
        right, how = _rule(table.values[rows, k], targets), ""
        known = None if table.known is None else table.known[rows, k]
        if right < least and known is not None and not known.all():
            right, how = _rule(known, targets), "by whether it is blank, "
            # Enough known values that a rule about them is not right by chance.
            counts = np.sort(np.bincount(targets[known], minlength=2))
            if right < least and known.mean() >= 0.2 and counts[-2] >= FEW:
                right, how = _rule(table.values[rows[known], k], targets[known]), "if it is not blank, "
        if right >= least:
            odd.append((name, how, right))
    for name, own in categories.items():
        # One number per level: the first level has no indicator, so no single one may determine the target.
        levels = (table.values[np.ix_(rows, np.array(own))] > 0.5) @ 2.0 ** np.arange(len(own))
        if table.known is not None:
            levels[~table.known[rows][:, own].all(1)] = -1  # a blank is a level as well
        right = _rule(levels, targets)
        if right >= least:
            odd.append((name, "", right))
    return odd


def _rule(values: np.ndarray, targets: np.ndarray) -> float:
    """Return the share of rows for which the best rule is right.

    A rule has one class per value, or if there are many values, one threshold less than classes.
    """
    different, codes, sizes = np.unique(values, return_inverse=True, return_counts=True)
    classes = int(targets.max()) + 1
    if len(different) <= VALUES:
        counts = np.zeros((len(different), classes))
        np.add.at(counts, (codes.ravel(), targets), 1)
        return float(counts.max(1).sum() / len(targets))
    if classes > MOST_CLASSES:
        return 0.0
    starts = sizes.cumsum() - sizes

    def counted(groups: int) -> np.ndarray:
        """Count the classes (groups, classes) of neighbouring values, of about equal numbers of rows."""
        place = (starts * groups // len(targets))[codes.ravel()]
        return np.bincount(place * classes + targets, minlength=groups * classes).reshape(groups, classes)

    if classes > 2:
        # A threshold is inside one group at most, where at best all rows are right.
        coarse = counted(10 * classes)
        most = np.sort(coarse.sum(1) - coarse.max(1))[-(classes - 1) :].sum() + coarse.max(1).sum()
        if most < NEARLY * len(targets):
            return 0.0
        # The best division of the groups into intervals of one class: for each number of intervals so far and each
        # class of the present one, the rows that are right.
        right = np.full((classes, classes), -np.inf)
        right[0] = 0
        counts = counted(GROUPS)
        for group in counts[counts.any(1)]:
            begun = np.append(-np.inf, right[:-1].max(1))
            right = np.maximum(right, begun[:, None]) + group
        return float(right.max() / counts.sum())
    counts = np.zeros((len(different), 2))
    np.add.at(counts, (codes.ravel(), targets), 1)
    below = counts.cumsum(0)
    right = below[:, 0] + (below[-1, 1] - below[:, 1])
    return float(max(right.max(), (len(targets) - right).max()) / len(targets))


def _giving_away_numbers(table: RawTable) -> list[tuple[str, str]]:
    rows = np.concatenate(table.rows)
    targets = table.targets[rows]
    if len(rows) < FEW or np.ptp(targets) == 0:
        return []
    odd = []
    for k, name in enumerate(table.columns):
        known = np.ones(len(rows), bool) if table.known is None else table.known[rows, k]
        if min(known.sum(), (~known).sum()) >= FEW:
            area, _ = _auc(targets, known)
            if max(area, 1 - area) >= NEARLY:
                odd.append((name, " (by whether it is blank)"))
                continue
        own, ranks = average_ranks(table.values[rows[known], k]), average_ranks(targets[known])
        if known.sum() < FEW or known.mean() < 0.2 or own.std() == 0 or ranks.std() == 0:
            continue
        if abs(np.corrcoef(own, ranks)[0, 1]) >= CORRELATED:
            odd.append((name, "" if known.all() else " (if it is not blank)"))
    return odd


def _numeric_targets(table: RawTable, schema: TableSchema | None) -> list[Notice]:
    """Warn of numeric targets that look like errors, and of a client whose targets seem to have another unit."""
    targets = table.targets.reshape(len(table.targets), -1)
    known = ~np.isnan(targets)
    if np.isin(targets[known], (0, 1)).all():
        return []  # labels have no unit
    names = [f"target {k}" for k in range(targets.shape[1])] if targets.shape[1] > 1 else ["target"]
    if schema is not None and len(schema.targets) == len(names):
        names = [f"column '{column.name}'" for column in schema.targets]
    filled = np.where(known, targets, np.nan_to_num(np.nanmedian(np.where(known.any(0), targets, 0.0), axis=0)))
    # Targets are not standardised, so their whole numbers are exact.
    own = RawTable(
        filled, filled, table.train, table.test, table.names, tuple(names), np.zeros(len(names)),
        None if known.all() else known,
    )  # fmt: skip
    advice = "remove these rows, because a target cannot be missing"
    # Many quantities to predict, such as costs, are 0 in many rows.
    coded = codes(own, by_class=False, zero=False)
    found = outliers(own) + code_warning(own, coded, advice)
    if table.n < 2 or len(table.large) < 2:
        return found
    apart = {k for k, _, _ in coded}
    odd = [(table.names[table.large[j]], text) for k, j, text in odd_medians(own) if k not in apart]
    cases, clients = [f"{name} ({text})" for name, text in odd], [name for name, _ in odd]
    advice = "check the unit of the target there"
    return found + warning("target-unit", "targets unlike those of other clients", cases, clients, "client", advice)


def _opposite(table: RawTable) -> list[Notice]:
    """Warn of a client at which a linear model of the other clients ranks rows the wrong way round."""
    labelled = [own[table.targets[own] >= 0] for own in table.rows]
    large = [i for i in table.large if len(np.unique(table.targets[labelled[i]])) == 2]
    scale = table.values.std(0)
    columns = scale > table.resolution
    if not 3 <= len(large) <= CLIENTS or not 0 < columns.sum() <= COLUMNS:
        return []
    x = (table.values[:, columns] - table.values[:, columns].mean(0)) / scale[columns]
    x = np.column_stack((np.clip(x, -5, 5), np.ones(len(x))))
    y = 2 * table.targets - 1.0
    # Each client's weight is the same, so that a large one does not dominate the others' model.
    parts = {}
    for i in large:
        rows = labelled[i]
        parts[i] = x[rows].T @ x[rows] / len(rows), x[rows].T @ y[rows] / len(rows)
    odd = []
    for i in large:
        gram = sum(parts[j][0] for j in large if j != i)
        moment = sum(parts[j][1] for j in large if j != i)
        w = np.linalg.solve(gram + RIDGE * (len(large) - 1) * np.eye(x.shape[1]), moment)
        auc, error = _auc(x[labelled[i]] @ w, table.targets[labelled[i]])
        others = [_auc(x[labelled[j]] @ w, table.targets[labelled[j]])[0] for j in large if j != i]
        if auc + 3 * error < 0.5 and np.median(others) > 0.6:
            odd.append((auc, table.names[i]))
    # If most clients are odd, they share no relation between columns and target.
    if len(odd) > len(large) // 2:
        return []
    cases, names = [f"{name} (AUC {auc:.2f})" for auc, name in sorted(odd)], [name for _, name in odd]
    advice = "check whether the classes are swapped there"
    return warning(
        "classes-swapped", "the other clients' model is wrong more often than right", cases, names, "client", advice
    )


def _auc(scores: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    """Compute the area under the ROC curve, and its standard error for independent scores and targets."""
    ones = float(targets.sum())
    zeros = len(targets) - ones
    area = (average_ranks(scores)[targets > 0].sum() - ones * (ones + 1) / 2) / (ones * zeros)
    return float(area), float(np.sqrt((ones + zeros + 1) / (12 * ones * zeros)))
