"""Targets that a column gives away, that have another unit, or that mean the opposite at a client."""

from __future__ import annotations

import numpy as np

from drfl.core.errors import Notice
from drfl.data.checks.columns import code_warning, codes, odd_medians, outliers
from drfl.data.checks.raw_table import FEW, RawTable, plain_name, warning
from drfl.data.client_data import ClientData
from drfl.data.tables.schema import TableSchema

NEARLY = 0.985
"""A column gives the target away if a rule of one threshold, or of one class per value, is right this often."""

CORRELATED = 0.975
"""A column gives a number away if its ranks correlate with the target's by this much."""

VALUES = 20
"""Different values of a column up to which each has a class of its own in such a rule."""

COLUMNS, CLIENTS = 300, 100
"""Columns and clients up to which targets are checked for an opposite meaning."""

RIDGE = 1e-2
"""Regularisation of the linear models by which clients are compared."""


def target_warnings(data: ClientData, table: RawTable | None) -> list[Notice]:
    """Warn of targets that seem wrong, or too easy."""
    if table is None:
        return []
    is_real, found = data.targets.is_floating_point(), list[Notice]()
    if data.targets.ndim == 1:
        odd = _giving_away_numbers(table) if is_real else _giving_away_classes(table, data.schema)
        advice = "exclude a column that is known only after the target"
        cases, names = [f"{name}{text}" for name, text in odd], [plain_name(name) for name, _ in odd]
        found = warning("leak", "columns that nearly determine the target", cases, names, "column", advice)
        if not is_real and int(data.targets.max()) == 1:
            found += _opposite(table)
    return found + _numeric_targets(table, data.schema) if is_real else found


def _giving_away_classes(table: RawTable, schema: TableSchema | None) -> list[tuple[str, str]]:
    rows = np.concatenate(table.rows)
    rows = rows[table.targets[rows] >= 0]  # losses may ignore negative labels
    if len(rows) < FEW:
        return []
    targets = table.targets[rows].astype(int)
    usual = np.bincount(targets).max() / len(targets)
    # Halfway from the share of the usual class to 1: a rule that is hardly better than the usual class does not leak.
    least = max(NEARLY, (1 + usual) / 2)
    if usual == 1:
        return []
    # The columns of the table that are indicators of a category of few levels.
    place, categories = {name: k for k, name in enumerate(table.columns)}, dict[str, list[int]]()
    for column in () if schema is None else schema.columns:
        own = [place[f"column '{name}'"] for name in column.features if f"column '{name}'" in place]
        if column.levels and 1 < len(own) < VALUES:
            categories[f"column '{column.name}'"] = own
    indicators = {k for own in categories.values() for k in own}
    rights = {
        name: _rule(table.values[rows, k], targets) for k, name in enumerate(table.columns) if k not in indicators
    }
    for name, own in categories.items():
        # One number per level: the first level has no indicator, so no single one may determine the target.
        levels = (table.values[np.ix_(rows, np.array(own))] > 0.5) @ 2.0 ** np.arange(len(own))
        rights[name] = _rule(levels, targets)
    return [(name, f" (right in {right:.1%} of the rows)") for name, right in rights.items() if right >= least]


def _rule(values: np.ndarray, targets: np.ndarray) -> float:
    """Return the share of rows for which the best rule with one class per value, or with one threshold, is right."""
    different, codes = np.unique(values, return_inverse=True)
    # A table of counts of many values and classes would be as large as the data.
    if len(different) > VALUES and targets.max() > 1:
        return 0.0
    counts = np.zeros((len(different), targets.max() + 1))
    np.add.at(counts, (codes.ravel(), targets), 1)
    if len(different) <= VALUES:
        return float(counts.max(1).sum() / len(targets))
    below = counts.cumsum(0)
    right = below[:, 0] + (below[-1, 1] - below[:, 1])
    return float(max(right.max(), (len(targets) - right).max()) / len(targets))


def _giving_away_numbers(table: RawTable) -> list[tuple[str, str]]:
    from scipy.stats import rankdata  # slow to load

    rows = np.concatenate(table.rows)
    ranks = rankdata(table.targets[rows])
    if len(rows) < FEW or ranks.std() == 0:
        return []
    odd = []
    for k in range(table.values.shape[1]):
        own = rankdata(table.values[rows, k])
        if own.std() > 0 and abs(np.corrcoef(own, ranks)[0, 1]) >= CORRELATED:
            odd.append((table.columns[k], ""))
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
    # Each client's weight is the same, so that a large one does not decide what the others' model is.
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
    # If most clients are odd, the columns tell nothing in common.
    if len(odd) > len(large) // 2:
        return []
    cases, names = [f"{name} (AUC {auc:.2f})" for auc, name in sorted(odd)], [name for _, name in odd]
    advice = "check whether the classes are swapped there"
    return warning(
        "classes-swapped", "the other clients' model is wrong more often than right", cases, names, "client", advice
    )


def _auc(scores: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    """Compute the area under the ROC curve, and its standard error for independent scores and targets."""
    from scipy.stats import rankdata  # slow to load

    ones = float(targets.sum())
    zeros = len(targets) - ones
    area = (rankdata(scores)[targets > 0].sum() - ones * (ones + 1) / 2) / (ones * zeros)
    return float(area), float(np.sqrt((ones + zeros + 1) / (12 * ones * zeros)))
