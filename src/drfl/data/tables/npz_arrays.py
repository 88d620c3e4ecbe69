"""Read npz files and folders of npy files: arrays without named columns, or a table of named ones."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drfl.core.array_files import open_arrays
from drfl.core.checks import AT_A_TIME
from drfl.core.errors import InputError, Notice, unknown
from drfl.data.tables.columns import Columns, row_names_of
from drfl.data.tables.conditions import Condition
from drfl.data.tables.conform import answers_of
from drfl.data.tables.levels import label_notices
from drfl.data.tables.patients import names_in
from drfl.data.tables.schema import TableSchema
from drfl.data.tables.table_paths import name_of
from drfl.data.tables.targets import check_values, columns_of, encoded

if TYPE_CHECKING:
    import pandas as pd

INPUTS, COLUMNS = "inputs", "columns"
"""Names of the array of inputs, and of the array with the names of its columns."""


class TableRows(NamedTuple):
    """The rows of all files, and the number of outputs that a model needs.

    Classes, groups (n,), names of columns (p,), patients (n,) and the schema are None if there are none or they are not
    known. Arrays without named columns have no schema. ``sizes`` counts the rows of each file.
    """

    inputs: Tensor
    targets: Tensor
    outputs: int
    classes: tuple[str, ...] | None
    groups: list[str] | None
    columns: tuple[str, ...] | None = None
    notices: tuple[Notice, ...] = ()
    sizes: tuple[int, ...] = ()
    patients: list[str] | None = None
    schema: TableSchema | None = None


def is_table(path: Path) -> bool:
    """Return whether an npz file names its columns: one array per column, or names for the columns of its inputs."""
    with open_arrays(path) as arrays:
        return INPUTS not in arrays.names or COLUMNS in arrays.names


def named_arrays(path: Path, drop: Sequence[str] = ()) -> pd.DataFrame:
    """Read an npz file that names its columns."""
    import pandas as pd

    if not is_table(path):
        raise InputError(
            f"{path} does not name its columns: add the array '{COLUMNS}' with a name for each column of "
            f"'{INPUTS}', or pass one array per column",
            code="unsupported-file",
            field=str(path),
        )
    with open_arrays(path) as arrays:
        names = [name for name in arrays.names if name not in drop]
        dropped = [name for name in arrays.names if name in drop]
        found = dict(zip(names, arrays.read(names), strict=True))
    if COLUMNS in found and INPUTS in found:
        inputs, columns = found.pop(INPUTS), [str(name) for name in found.pop(COLUMNS)]
        if inputs.shape[1:] != (len(columns),):
            raise InputError(
                f"{path}: '{COLUMNS}' has {len(columns)} names for inputs of shape {inputs.shape}. Give one per column",
                code="count-mismatch",
                field=COLUMNS,
            )
        found = {
            name: np.full(len(inputs), np.nan) if name in drop else inputs[:, k] for k, name in enumerate(columns)
        } | found
    for name, values in found.items():
        if values.ndim != 1 or len(values) != len(next(iter(found.values()))):
            raise InputError(
                f"{path}: the array '{name}' has shape {values.shape}, but must have one value per row",
                code="count-mismatch",
                field=name,
            )
    # As in Parquet files, dropped columns are present, but blank.
    return pd.DataFrame(found).assign(**dict.fromkeys(dropped, np.nan))


def read_arrays(files: Sequence[Path], columns: Columns) -> tuple[TableRows, dict[str, list[pd.Series]]]:
    """Read npz files or folders of npy files, with inputs (n, …) float32, mapped into memory if possible.

    Returns:
        The rows; and by name the arrays that conditions compare, in parts.
    """
    if columns.drop:
        raise InputError(
            "`drop` has no effect on npz files, which have no columns: remove it", code="unused-option", field="drop"
        )
    columns.check_roles()
    inputs: list[np.ndarray] = []
    found: dict[str, list[np.ndarray]] = {}
    groups, patients = list[str](), list[str]()
    compared: dict[str, list[pd.Series]] = {}
    for path in files:
        x, ys, who, units, cells = _npz(path, columns)
        for name, values in cells.items():
            compared.setdefault(name, []).append(values)
        for name, values in ys.items():
            check_values(name, values, columns.task, row_names_of(str(path)))
            found.setdefault(name, []).append(values)
        # Do not copy, because the array may be mapped from a file.
        inputs.append(x.astype(np.float32, copy=False))
        groups += who
        patients += units
    if len({x.shape[1:] for x in inputs}) > 1:
        raise InputError(
            f"inputs have shapes {sorted({x.shape[1:] for x in inputs})} per row: give all files the same",
            code="wrong-shape",
            field="inputs",
        )
    for name, parts in found.items():
        if len(parts) < len(files):
            raise InputError(
                f"the target '{name}' is not in every file: give all of them the same shape",
                code="wrong-shape",
                field=name,
            )
    whole = {name: np.concatenate(parts) for name, parts in found.items()}
    owners, sizes = None if columns.group is None and len(files) == 1 else groups, tuple(map(len, inputs))
    notices = label_notices(whole, owners) if columns.task == "classification" else ()
    y, outputs, classes = encoded(whole, columns.task)
    units = None if columns.patient is None else patients
    # A single array may be mapped from a file.
    x = inputs[0] if len(inputs) == 1 else np.concatenate(inputs)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        pool = torch.from_numpy(x)
    return TableRows(pool, y, outputs, classes, owners, notices=notices, sizes=sizes, patients=units), compared


def _npz(
    path: Path, columns: Columns
) -> tuple[np.ndarray, dict[str, np.ndarray], list[str], list[str], dict[str, pd.Series]]:
    """Read inputs (n, …), targets (n,) by name, groups (n,) and patients (n,) of one file, and columns of conditions.

    Each target in an array gets a name.
    """
    import pandas as pd

    targets, group, patient = columns.targets, columns.group, columns.patient
    with open_arrays(path) as arrays:
        conditions = [Condition.of(name, arrays.names, str(path)) for name in targets]
        read = [name if one is None else one.column for name, one in zip(targets, conditions, strict=True)]
        names = (INPUTS, *read, *columns.names)
        for name in names:
            if name not in arrays.names:
                raise unknown("array", name, arrays.names, field=name, place=f"in {path}")
        # None if the array cannot be mapped, such as a compressed one or one of float64.
        x = arrays.mapped(INPUTS, np.float32)
        # A file of one row may hold scalars.
        found = [np.atleast_1d(each) for each in arrays.read(names if x is None else names[1:])]
    found = found if x is None else [x, *found]
    x, ys = found[0], found[1 : 1 + len(targets)]
    named = dict(zip(columns.names, found[1 + len(targets) :], strict=True))
    for name, cells in named.items():
        if cells.shape != (len(x),):
            raise InputError(
                f"{path}: inputs of shape {x.shape} need one name per row, but '{name}' has the shape {cells.shape}",
                code="count-mismatch",
                field=name,
            )
    for name, y in zip(targets, ys, strict=True):
        if y.ndim not in (1, 2) or len(x) != len(y):
            raise InputError(
                f"{path}: inputs of shape {x.shape} and '{name}' of shape {y.shape} do not match: there "
                "must be one target per row",
                code="count-mismatch",
                field=str(path),
            )
        has_unknown = columns.task == "multi-label" and y.dtype.kind == "f"  # an unknown label is NaN
        _check_finite(path, name, np.nan_to_num(y, nan=0) if has_unknown else y)
    if not len(x):
        raise InputError(f"{path} has no rows", code="no-rows", field=str(path))
    _check_finite(path, "inputs", x)
    frame = pd.DataFrame(named)
    who = [name_of(path)] * len(x) if group is None else names_in(frame, group, row_names_of(str(path)))
    units = [] if patient is None else names_in(frame, patient, row_names_of(str(path)))
    compared = dict[str, pd.Series]()
    for k, condition in enumerate(conditions):
        if condition is None:
            continue
        if ys[k].ndim > 1:
            raise InputError(
                f"{path}: a condition needs one value per row, but '{condition.column}' has shape {ys[k].shape}",
                code="wrong-shape",
                field=condition.column,
            )
        cells, words = pd.Series(ys[k]), len(targets) == 1
        compared[condition.column] = cells
        ys[k], problems = answers_of(condition, cells, row_names_of(str(path)), words=words)
        for problem in problems:
            raise problem
    parts = (columns_of(name, y) for name, y in zip(targets, ys, strict=True))
    return x, {name: values for part in parts for name, values in part.items()}, who, units, compared


def _check_finite(path: Path, name: str, values: np.ndarray) -> None:
    """Check that an array holds finite numbers, or words if it holds targets."""
    if values.dtype.kind not in "biuf" and (name == "inputs" or values.dtype.kind != "U"):
        raise InputError(
            f"{path}: the array '{name}' holds {values.dtype}, not numbers", code="not-a-number", field=name
        )
    if values.dtype.kind != "f":
        return
    count, first = 0, None
    # Check a few rows at a time, because the array may be larger than the memory.
    size = max(1, AT_A_TIME // max(1, values[:1].size))
    for start in range(0, len(values), size):
        bad = ~np.isfinite(values[start : start + size])
        if first is None and bad.any():
            first = np.argwhere(bad)[0] + [start, *[0] * (bad.ndim - 1)]
        count += int(bad.sum())
    if first is not None:
        row, *rest = first.tolist()
        at = f" at {tuple(rest)}" if rest else ""
        raise InputError(
            f"{path}, row {row + 1}: the array '{name}' is NaN or infinite{at} ({count} such values in the file): fill "
            "or remove such rows",
            code="not-finite",
            field=name,
        )
