"""Tables that a user has: CSV, Parquet or npz files, one a client or with a column that names the client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from drfl.data.archives import reading
from drfl.data.dataset import Dataset
from drfl.errors import InputError, unknown

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".parquet", ".npz")

CATEGORIES = 50
"""A column of words with more different ones is taken for a name or a note, which is nothing to learn from."""

LARGEST = 1e30
"""A number beyond is no measurement, and its square no float32."""

CLASSES = 1000
"""More different targets are taken for a quantity."""


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files, with each folder's own in place of it, by name.

    Raises:
        InputError: there is no such file or folder, a folder has none, or a file is of no known kind.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES)
            if not inside:
                raise InputError(f"the folder {path} has no {' or '.join(SUFFIXES)} file")
            found += inside
        elif not path.is_file():
            raise InputError(f"there is no file {path}")
        elif path.suffix.lower() not in SUFFIXES:
            raise InputError(f"{path} is no {' or '.join(SUFFIXES)} file")
        else:
            found.append(path)
    return found


def label_of_files(paths: Sequence[Path]) -> str:
    """What the data are called in files and tables."""
    return paths[0].stem if len(paths) == 1 else paths[0].resolve().parent.name


def read_tables(paths: Sequence[Path], target: str, group: str | None = None, drop: Sequence[str] = ()) -> Dataset:
    """A classification data set of one pool, with its clients as groups, to be standardised.

    Several files without ``group`` are one client each, called as the file. Columns of words become one column of 0 and
    1 for each of their values but the first. In an npz file the inputs (n, …) are ``inputs``, and the target and the
    group are arrays by their names.

    Args:
        paths: files, or folders of them; all have the same columns.
        target: the column to predict: whole numbers, truth values or words, which become classes in sorted order.
        group: the column that names the client; None = none, or the files.
        drop: columns that are nothing to learn from.

    Raises:
        InputError: a file cannot be read, a column is missing, blank somewhere, or of no use; names file, line and
            column.
    """
    files = files_of(paths)
    kinds = {path.suffix.lower() == ".npz" for path in files}
    if len(kinds) > 1:
        raise InputError("npz files and tables cannot be mixed: give files of one kind")
    stems = [path.stem for path in files]
    if group is None and len(set(stems)) < len(stems):
        twice = next(stem for stem in stems if stems.count(stem) > 1)
        raise InputError(f"two files are called {twice}, and files are clients: rename one, or give group")
    read = _arrays if kinds == {True} else _columns
    inputs, targets, groups = read(files, target, group, drop)
    named = None if groups is None else tuple(groups)
    if named is not None:
        _check_alike(sorted(set(named)))
    values, codes = np.unique(targets, return_inverse=True)
    if len(values) > CLASSES:
        raise InputError(f"the target '{target}' has {len(values)} different values: give a column of classes")
    if len(values) < 2:
        raise InputError(f"the target '{target}' is {values[0]} in every row: there is nothing to learn")
    x, y = torch.from_numpy(inputs), torch.from_numpy(codes.astype(np.int64))
    return Dataset(label_of_files(paths), x, y, x, y, len(values), named, standardise=x.ndim == 2)


def _columns(
    files: Sequence[Path], target: str, group: str | None, drop: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, list[str] | None]:
    """Inputs (n, p) float64, targets (n,) and groups of tables."""
    import pandas as pd

    frames = [_frame(path) for path in files]
    first = list(frames[0].columns)
    for name, what in ((target, "target"), (group, "group"), *((name, "drop") for name in drop)):
        if name is not None and name not in first:
            raise unknown(f"column for {what} in {files[0]}", name, first)
    if target == group:
        raise InputError(f"column '{target}' cannot be target and group at once")
    for path, frame in zip(files, frames, strict=True):
        if sorted(frame.columns) != sorted(first):
            odd = sorted(set(first) ^ set(frame.columns))[0]
            raise InputError(f"column '{odd}' is in one of {files[0]} and {path} alone: give both the same columns")
        _check_blanks(path, frame.drop(columns=list(drop)))
    whole = pd.concat([frame[first] for frame in frames], ignore_index=True).drop(columns=list(drop))
    names = [path.stem for path, frame in zip(files, frames, strict=True) for _ in range(len(frame))]
    groups = names if group is None else [str(value) for value in whole[group]]
    features = whole.drop(columns=[target, *([] if group is None else [group])])
    targets = _classes(whole[target], target)
    return _numbers(features, files[0]), targets, None if group is None and len(files) == 1 else groups


def _frame(path: Path) -> pd.DataFrame:
    import pandas as pd

    with reading(path):
        try:
            frame = pd.read_parquet(path) if path.suffix.lower() == ".parquet" else pd.read_csv(path)
        except ImportError:
            raise InputError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow, or give CSV") from None
        except Exception as error:
            raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    frame.columns = [str(name).strip() for name in frame.columns]
    columns = list(frame.columns)
    for name in columns:
        if columns.count(name) > 1:
            raise InputError(f"{path}: column '{name}' is there twice")
    if not len(frame):
        raise InputError(f"{path} has no rows")
    return frame


def _check_blanks(path: Path, frame: pd.DataFrame) -> None:
    blank = frame.isna().to_numpy(dtype=bool)
    if blank.any():
        row, column = (int(k[0]) for k in blank.nonzero())
        # a CSV's line 1 is its head
        line = f"line {row + 2}" if path.suffix.lower() == ".csv" else f"row {row + 1}"
        raise InputError(
            f"{path}, {line}: column '{frame.columns[column]}' is blank ({int(blank.sum())} blanks in the file): fill "
            "or remove such rows, or leave the column out with drop"
        )


def _classes(column: pd.Series, name: str) -> np.ndarray:
    """(n,) values that can be sorted, as classes are."""
    from pandas.api.types import is_float_dtype, is_numeric_dtype

    values = column.to_numpy()
    if is_float_dtype(column) and not bool((values == np.round(values)).all()):
        raise InputError(
            f"the target '{name}' holds fractions such as {values[values != np.round(values)][0]}: give a column of "
            "classes; regression is done in Python, with a loss and a score of your own"
        )
    return values if is_numeric_dtype(column) else column.astype(str).to_numpy(dtype=object)


def _numbers(features: pd.DataFrame, path: Path) -> np.ndarray:
    """(n, p) float64, with columns of words as one of 0 and 1 for each of their values but the first."""
    import pandas as pd
    from pandas.api.types import is_numeric_dtype

    if not features.shape[1]:
        raise InputError(f"{path} has no column to learn from")
    words = [name for name in features if not is_numeric_dtype(features[name])]
    for name in words:
        count = features[name].nunique()
        if count > CATEGORIES:
            raise InputError(
                f"{path}: column '{name}' has {count} different words, more than {CATEGORIES}: leave it out with drop"
            )
    # A column of one word says nothing, and leaves no column.
    numbers = pd.get_dummies(features, columns=words, drop_first=True, dtype=float) if words else features
    found = numbers.to_numpy(dtype=np.float64, copy=True)  # what pandas lends is read-only
    bad = ~(np.abs(found) < LARGEST)
    if bad.any():
        column = numbers.columns[int(bad.any(0).argmax())]
        raise InputError(
            f"{path}: column '{column}' is infinite or beyond {LARGEST:g}: cap it, or leave it out with drop"
        )
    return found


def _arrays(
    files: Sequence[Path], target: str, group: str | None, drop: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, list[str] | None]:
    """Inputs (n, …) float32, targets (n,) and groups of npz files."""
    if drop:
        raise InputError("drop means nothing to npz files, which have no columns: leave it out")
    inputs, targets, groups = [], [], []
    for path in files:
        with reading(path), path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            for name in ("inputs", target, *([] if group is None else [group])):
                if name not in arrays:
                    raise unknown(f"array in {path}", name, list(arrays))
            x, y = arrays["inputs"], arrays[target]
            who = [path.stem] * len(y) if group is None else [str(value) for value in arrays[group].tolist()]
        if y.ndim != 1 or not len(x) == len(y) == len(who):
            raise InputError(f"{path}: inputs {x.shape}, '{target}' {y.shape} and {len(who)} groups: give one a row")
        inputs.append(x.astype(np.float32))
        targets.append(_whole(y, target, path))
        groups += who
    if len({x.shape[1:] for x in inputs}) > 1:
        raise InputError(f"inputs have shapes {sorted({x.shape[1:] for x in inputs})} per row: give all files the same")
    found = np.concatenate(inputs)
    if not np.isfinite(found).all():
        raise InputError("the inputs hold NaN or infinity: fill or remove such rows")
    return found, np.concatenate(targets), None if group is None and len(files) == 1 else groups


def _whole(targets: np.ndarray, name: str, path: Path) -> np.ndarray:
    if targets.dtype.kind == "f" and not bool((targets == np.round(targets)).all()):
        raise InputError(f"{path}: the target '{name}' holds fractions or blanks: give whole numbers, one a class")
    return targets


def _check_alike(names: Sequence[str]) -> None:
    """Names that people would read as the same are one client misspelt, which would hide who is worst off."""
    seen: dict[str, str] = {}
    for name in names:
        plain = " ".join(name.split()).casefold()
        if not plain:
            raise InputError("a row's group is empty: give every row a group")
        if plain in seen:
            raise InputError(f"groups '{seen[plain]}' and '{name}' differ by blanks or case alone: make them one")
        seen[plain] = name
