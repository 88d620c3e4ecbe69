"""The inputs of a table in raw units, with the rows of each client, as the checks look at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from drfl.core.errors import Notice, listing
from drfl.data.client_data import ClientData
from drfl.data.standardisation import is_table

FEW = 20
"""Number of rows below which a client's quartiles are unreliable, and one test row is over 5 points of accuracy."""

MOST = 2**24
"""Columns of a table with more numbers are not checked, because it may be a file mapped into memory."""

SEVERAL = 10
"""A column with more distinct values is treated as a quantity, not as a code of a few levels."""

SAMPLE = 100_000
"""Number of evenly spaced rows from which the quartiles over all clients are computed."""


@dataclass(frozen=True, eq=False)
class RawTable:
    """A table in raw units and the rows of each client.

    Args:
        values: (n, p) float64, the training pool, followed by the test pool if that is another. A missing value is the
            median of its column at the client, or at all clients if the client has none.
        targets: (n, …) the targets of these rows.
        train: Per client, its rows of training and validation, in ascending order.
        test: Per client, its test rows.
        names: Per client, its name.
        columns: (p,) names of columns as messages show them: "column 'age'", or "column 3".
        resolution: (p,) differences below this may come from the rounding of standardised float32 values.
        known: (n, p) whether a value is present; None if no value is missing.
        dates: Columns that hold dates, as days since 1970-01-01.
    """

    values: np.ndarray
    targets: np.ndarray
    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    names: tuple[str, ...]
    columns: tuple[str, ...]
    resolution: np.ndarray
    known: np.ndarray | None = None
    dates: frozenset[int] = frozenset()

    @classmethod
    def of(cls, data: ClientData) -> RawTable | None:
        """Make the table from the clients' data; None if the inputs are not a table or are too large."""
        inputs = data.inputs
        if (
            data.fields is not None
            or not is_table(inputs)
            or not inputs.shape[1]
            or inputs.numel() + data.test_inputs.numel() > 2 * MOST
        ):
            return None
        train = [_rows(rows) for rows in data.train]
        if data.validation is not None:
            train = [np.union1d(rows, _rows(more)) for rows, more in zip(train, data.validation, strict=True)]
        values, targets, test = _numbers(inputs), _numbers(data.targets), [_rows(rows) for rows in data.test]
        if data.test_inputs is not inputs:
            values = np.concatenate((values, _numbers(data.test_inputs)))
            targets = np.concatenate((targets, _numbers(data.test_targets)))
            test = [rows + len(inputs) for rows in test]
        # The spacing of float32 numbers at the largest standardised value, doubled.
        resolution = 2.4e-7 * np.abs(np.nan_to_num(values, nan=0.0)).max(0)
        if data.standardisation is not None:
            scale, mean = data.standardisation.scale.numpy(), data.standardisation.mean.numpy()
            values, resolution = values * scale + mean, resolution * scale
        p = values.shape[1]
        names = [f"column {k}" for k in range(p)] if data.columns is None else [f"column '{k}'" for k in data.columns]
        known = None
        if data.schema is not None and data.schema.has_missing and data.columns is not None:
            # The last feature of a column with missing values is their indicator. It is the only one of a category with
            # one level. A table that was standardised has the mean in place of missing values.
            place = {name: k for k, name in enumerate(data.columns)}
            features = [column.features for column in data.schema.columns if column.missing and column.is_feature]
            own = [[place[name] for name in names] for names in features if place.keys() >= {*names}]
            values = values.copy()  # float64 inputs share their memory with the clients' data
            for ks in own:
                values[values[:, ks[-1]] > 0.5, ks[-2:][0]] = np.nan
            indicators = [ks[-1] for ks in own if len(ks) > 1]
            kept = [k for k in range(p) if k not in indicators]
            values, names, resolution = values[:, kept], [names[k] for k in kept], resolution[kept]
            known = ~np.isnan(values)
        columns = () if data.schema is None else data.schema.columns
        of_dates = {f"column '{column.name}'" for column in columns if column.type == "date"}
        dates = frozenset(k for k, name in enumerate(names) if name in of_dates)
        if known is not None and not known.all():
            # Fill client by client first. Columns that a client never measures get the median over all clients.
            for rows in [np.union1d(*parts) for parts in zip(train, test, strict=True)]:
                values[rows] = _filled(values[rows])
            values = _filled(values)
        else:
            known = None
        return cls(values, targets, tuple(train), tuple(test), data.names, tuple(names), resolution, known, dates)

    @property
    def n(self) -> int:
        """N, the number of clients."""
        return len(self.names)

    def shown(self, column: int, value: float) -> str:
        """Return a value of a column as messages show it."""
        if column not in self.dates:
            return f"{value:g}"
        return str(np.datetime64("1970-01-01") + round(value))

    @cached_property
    def rows(self) -> tuple[np.ndarray, ...]:
        """Per client, all its rows in ascending order, which is that of its file."""
        return tuple(np.union1d(train, test) for train, test in zip(self.train, self.test, strict=True))

    @cached_property
    def owner(self) -> np.ndarray:
        """(n,) the client of each row; -1 for a row that no client has."""
        found = np.full(len(self.values), -1)
        for i, rows in enumerate(self.rows):
            found[rows] = i
        return found

    @cached_property
    def large(self) -> np.ndarray:
        """Clients with at least FEW rows."""
        return np.array([i for i, rows in enumerate(self.rows) if len(rows) >= FEW], dtype=int)

    @cached_property
    def quartiles(self) -> np.ndarray:
        """(3, clients, p) quartiles of the columns at each of the `large` clients."""
        parts = [np.quantile(self.values[self.rows[i]], (0.25, 0.5, 0.75), axis=0) for i in self.large]
        return np.stack(parts, axis=1)

    def values_at(self, client: int, column: int) -> np.ndarray:
        """Return the values of a column at a client that are not missing."""
        rows = self.rows[client]
        return self.values[rows, column] if self.known is None else self.values[rows, column][self.known[rows, column]]

    @cached_property
    def is_whole(self) -> np.ndarray:
        """(p,) whether a column is known to hold whole numbers only."""
        whole = (np.abs(self.values - self.values.round()) <= np.maximum(self.resolution, 1e-9)).all(0)
        # Coarser rounding would hide digits behind the point.
        return whole & (self.resolution < 0.25)


def _filled(values: np.ndarray) -> np.ndarray:
    """Replace NaN by the median of the column. Columns that contain only NaN do not change."""
    values = values.copy()
    for k in np.flatnonzero(np.isnan(values).any(0)):
        missing = np.isnan(values[:, k])
        if not missing.all():
            values[missing, k] = np.median(values[~missing, k])
    return values


def warning(
    code: str, problem: str, cases: Sequence[str], names: Sequence[str], what: str, advice: str
) -> list[Notice]:
    """Return a warning that lists its first cases, whose field is the name that all of them share; [] without cases."""
    field = names[0] if len(set(names)) == 1 else None
    return [Notice(f"{problem}: {listing(cases, what)}; {advice}", code, field)] if cases else []


def plain_name(column: str) -> str:
    """Return the name of a column from the one that messages show, see :class:`RawTable`."""
    name = column.removeprefix("column ")
    return name[1:-1] if name.startswith("'") else name


def column_warning(
    table: RawTable, code: str, problem: str, cases: Sequence[tuple[int, str]], what: str, advice: str
) -> list[Notice]:
    """Warn of columns, given by their positions and the text after their names."""
    texts = [f"{table.columns[k]}{text}" for k, text in cases]
    names = [plain_name(table.columns[k]) for k, _ in cases]
    return warning(code, problem, texts, names, what, advice)


def _rows(rows: Tensor) -> np.ndarray:
    return np.sort(rows.cpu().numpy())


def _numbers(values: Tensor) -> np.ndarray:
    return values.detach().cpu().double().numpy()
