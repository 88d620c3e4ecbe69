"""Check the columns that conditions compare, because the answers no longer show their errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from drfl.core.errors import Notice
from drfl.data.tables.conditions import Condition
from drfl.data.tables.levels import class_notices, level_notices, words_of

if TYPE_CHECKING:
    import pandas as pd

    from drfl.data.tables.table import Table

CODES = ("missing-code", "outlier", "unit-mismatch")
"""Codes of the warnings of numbers that concern a column that is not a feature."""


def condition_notices(
    tables: Sequence[Table], targets: Sequence[str], owners: Sequence[str] | None
) -> tuple[Notice, ...]:
    """Warn of likely errors in the columns that conditions among the targets compare."""
    names = [str(name) for name in tables[0].frame.columns]
    conditions = [Condition.of(target, names, tables[0].place) for target in targets]
    texts = {each.column: isinstance(each.value, str) for each in conditions if each is not None}
    columns = {name: [table.frame[name] for table in tables if name in table.frame] for name in texts}
    complete = {name: cells for name, cells in columns.items() if len(cells) == len(tables)}
    return column_notices(complete, [name for name in complete if texts[name]], owners)


def column_notices(
    columns: dict[str, list[pd.Series]], texts: Sequence[str], owners: Sequence[str] | None
) -> tuple[Notice, ...]:
    """Warn of likely errors in columns, each in parts by its name; those in ``texts`` are compared with a text."""
    import pandas as pd

    # These checks of clients' data read tables themselves.
    from drfl.data.checks.columns import column_warnings
    from drfl.data.checks.raw_table import SEVERAL, RawTable

    words, found = dict[str, pd.Series](), list[Notice]()
    for name, parts in columns.items():
        cells = pd.concat([part.astype(object) for part in parts], ignore_index=True)
        if name in texts:
            words[name] = words_of(cells)
            continue
        numbers = pd.to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64)
        # Few numbers are codes of levels.
        if len(np.unique(numbers[~np.isnan(numbers)])) <= SEVERAL:
            words[name] = words_of(cells)
            continue
        is_known = np.isfinite(numbers)
        kept = numbers[is_known][:, None]
        everybody = ["all rows"] * len(numbers) if owners is None else owners
        clients, names = pd.factorize(np.array(everybody, dtype=object))
        rows = tuple(np.flatnonzero(clients[is_known] == i) for i in range(len(names)))
        empty = tuple(np.zeros(0, int) for _ in names)
        # Differences below the resolution come from rounding.
        label, resolution = f"column '{name}'", 1e-12 * np.abs(kept).max(0)
        table = RawTable(kept, np.zeros(len(kept)), rows, empty, tuple(map(str, names)), (label,), resolution)
        found += [each for each in column_warnings(table, raw=False, by_class=False) if each.code in CODES]
    compared = pd.DataFrame({name: each for name, each in words.items() if name in texts})
    found += level_notices(compared, compared.iloc[:, :0], owners)
    numbers = pd.DataFrame({name: each for name, each in words.items() if name not in texts})
    return (*found, *class_notices(numbers, owners, by_chance=False))
