"""Columns of a table turned into arrays, each fault named by its column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from drfl.errors import InputError, unknown

if TYPE_CHECKING:
    import pandas as pd


def feature_columns(frame: pd.DataFrame, group: str, target: str, features: Sequence[str] | None) -> list[str]:
    """The columns to learn from, checked: those named, or all but group and target.

    Raises:
        InputError: when a column is missing or named twice, the target is among the features, or there are
            none.
    """
    columns = frame.columns.tolist()
    for name in (group, target, *(features or ())):
        if name not in columns:
            raise unknown("column", name, columns)
    chosen = [name for name in columns if name not in (group, target)] if features is None else list(features)
    if target in chosen:
        raise InputError(f"column '{target}' is the target and cannot be a feature too: leave it out of features")
    if not chosen:
        raise InputError("there is no feature column: name at least one in features")
    for name in {group, target, *chosen}:
        if columns.count(name) > 1 or chosen.count(name) > 1:
            raise InputError(f"column '{name}' is there twice: rename or drop one")
    return chosen


def feature_matrix(frame: pd.DataFrame, features: Sequence[str]) -> np.ndarray:
    """The features, (n, len(features)) float64.

    Raises:
        InputError: when a column is not numeric or has missing or infinite values.
    """
    from pandas.api.types import is_complex_dtype, is_numeric_dtype

    columns = []
    for name in features:
        column = frame[name]
        if not is_numeric_dtype(column) or is_complex_dtype(column):
            raise InputError(
                f"feature column '{name}' is not numeric ({column.dtype}): encode it, for example with "
                "pandas.get_dummies, or name other columns in features"
            )
        columns.append(numeric(column, name))
    return np.stack(columns, axis=1)


def numeric(column: pd.Series, name: str) -> np.ndarray:
    """A numeric column as (n,) float64.

    Raises:
        InputError: when values are missing or infinite.
    """
    require_present(column, name)
    # A copy, because the table may change, and what pandas lends is read-only.
    values = column.to_numpy(dtype=np.float64, copy=True)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise InputError(f"column '{name}' is infinite in {len(bad)} rows, first in row {bad[0]}: drop or cap them")
    return values


def require_present(column: pd.Series, name: str) -> None:
    """Raises InputError when values of a column are missing."""
    bad = np.flatnonzero(column.isna().to_numpy(dtype=bool))
    if len(bad):
        raise InputError(
            f"column '{name}' has {len(bad)} missing values, the first in row {bad[0]}: drop these rows "
            "(DataFrame.dropna) or fill them (DataFrame.fillna)"
        )


def encode_target(column: pd.Series, name: str) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """The target as numbers.

    Args:
        column: (n,) floats stay floats; everything else becomes classes 0..C-1 in sorted order.
        name: of the column, for errors.

    Returns:
        (n,) float64 and None, or (n,) int64 and the C class labels.

    Raises:
        InputError: when values are missing, infinite or of types that cannot be sorted.
    """
    from pandas.api.types import is_float_dtype

    if is_float_dtype(column):
        return numeric(column, name), None
    require_present(column, name)
    try:
        labels, codes = np.unique(column.to_numpy(dtype=object), return_inverse=True)
    except TypeError:
        raise InputError(f"target column '{name}' mixes types: turn it into strings or numbers") from None
    return codes.astype(np.int64), tuple(str(label) for label in labels.tolist())
