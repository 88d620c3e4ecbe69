"""Tables that a user has: CSV, Parquet or npz files, one a client or with a column that names the client."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from drfl.core.errors import InputError, unknown
from drfl.core.files import lines, open_arrays, open_file, read_csv, read_parquet
from drfl.data.dataset import Dataset, TaskName
from drfl.data.tables.columns import check_alike, check_blanks, check_known, check_roles, check_size, one_hot, values_of
from drfl.data.tables.targets import check_values, columns_of, encoded

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".parquet", ".npz")


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files, with each folder's own in place of it, by name.

    Raises:
        InputError: there is no such file or folder, a folder has none, or a file is of no known kind.
    """
    found: list[Path] = []
    for path in paths:
        if os.path.isdir(path):  # unlike pathlib's, False for a name that is too long
            inside = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES)
            if not inside:
                raise InputError(
                    f"the folder {path} has no {' or '.join(SUFFIXES)} file", code="file-not-found", field=str(path)
                )
            found += inside
        elif not os.path.isfile(path):
            open_file(path).close()  # which says what is there instead
        elif path.suffix.lower() not in SUFFIXES:
            raise InputError(f"{path} is no {' or '.join(SUFFIXES)} file", code="unsupported-file", field=str(path))
        else:
            found.append(path)
    return found


def label_of_files(paths: Sequence[Path]) -> str:
    """What the data are called in files and tables."""
    return paths[0].stem if len(paths) == 1 else paths[0].resolve().parent.name


class _Rows(NamedTuple):
    """The rows of all files.

    Args:
        inputs: (n, …).
        targets: name → (n,).
        groups: (n,) who each row belongs to; None where nothing says so.
        columns: (p,) the names of inputs (n, p); None where they have none.
    """

    inputs: np.ndarray
    targets: dict[str, np.ndarray]
    groups: list[str] | None
    columns: tuple[str, ...] | None = None


def read_tables(
    paths: Sequence[Path],
    target: str | Sequence[str],
    group: str | None = None,
    drop: Sequence[str] = (),
    task: TaskName = "classification",
) -> Dataset:
    """A data set of one pool, with its clients as groups, to be standardised.

    Several files without ``group`` are one client each, called as the file. Columns of words become one column of 0 and
    1 for each of their values but the first. In an npz file the inputs (n, …) are ``inputs``, and the targets (n,) or
    (n, k) and the group are arrays by their names.

    Args:
        paths: files, or folders of them; all have the same columns.
        target: the columns to predict. Classification: one of whole numbers, truth values or words, which become
            classes in sorted order; regression: numbers; multi-label: several of 0 and 1.
        group: the column that names the client; None = none, or the files.
        drop: columns that are nothing to learn from.
        task: what the targets are.

    Raises:
        InputError: a file cannot be read, a column is missing, blank somewhere, or of no use; names file, line and
            column.
    """
    names = (target,) if isinstance(target, str) else tuple(target)
    files = files_of(paths)
    kinds = {path.suffix.lower() == ".npz" for path in files}
    if len(kinds) > 1:
        raise InputError(
            "npz files and tables cannot be mixed: give files of one kind", code="conflicting-options", field="data"
        )
    stems = [path.stem for path in files]
    if group is None and len(set(stems)) < len(stems):
        twice = next(stem for stem in stems if stems.count(stem) > 1)
        raise InputError(
            f"two files are called {twice}, and files are clients: rename one, or give group",
            code="duplicate-name",
            field=twice,
        )
    read = _arrays if kinds == {True} else _columns
    rows = read(files, names, group, drop, task)
    named = None if rows.groups is None else tuple(rows.groups)
    if named is not None:
        check_alike(sorted(set(named)))
    x = torch.from_numpy(rows.inputs)
    y, classes, class_names = encoded(rows.targets, task)
    return Dataset(
        label_of_files(paths), x, y, x, y, classes, named, x.ndim == 2, task, rows.columns, class_names=class_names
    )


def _columns(
    files: Sequence[Path], targets: Sequence[str], group: str | None, drop: Sequence[str], task: TaskName
) -> _Rows:
    """The rows of tables, inputs (n, p) float64."""
    import pandas as pd

    frames = [_frame(path, drop) for path in files]
    first = list(frames[0].columns)
    check_known(str(files[0]), first, targets, group, drop)
    for path, frame in zip(files, frames, strict=True):
        if sorted(frame.columns) != sorted(first):
            odd = sorted(set(first) ^ set(frame.columns))[0]
            raise InputError(
                f"column '{odd}' is in one of {files[0]} and {path} alone: give both the same columns",
                code="columns-differ",
                field=odd,
            )
        check_blanks(frame.drop(columns=list(drop)), partial(_line, path))
        for name in targets:
            check_values(name, values_of(frame[name]), task, partial(_line, path))
        features = frame.drop(columns=[*drop, *targets, *([] if group is None else [group])])
        check_size(features, partial(_line, path))
    whole = pd.concat([frame[first] for frame in frames], ignore_index=True).drop(columns=list(drop))
    names = [path.stem for path, frame in zip(files, frames, strict=True) for _ in range(len(frame))]
    groups = names if group is None else [str(value) for value in whole[group]]
    features = one_hot(whole.drop(columns=[*targets, *([] if group is None else [group])]), str(files[0]))
    return _Rows(
        features.to_numpy(dtype=np.float64, copy=True),  # what pandas lends is read-only
        {name: values_of(whole[name]) for name in targets},
        None if group is None and len(files) == 1 else groups,
        tuple(map(str, features.columns)),
    )


def _frame(path: Path, drop: Sequence[str]) -> pd.DataFrame:
    try:
        frame = read_parquet(path, drop) if path.suffix.lower() == ".parquet" else read_csv(path, index_col=False)
    except ImportError:
        raise InputError(
            f"{path}: reading Parquet needs pyarrow: pip install pyarrow, or give CSV",
            code="package-missing",
            field="pyarrow",
        ) from None
    frame.columns = [str(name).strip() for name in frame.columns]
    columns = list(frame.columns)
    if len(set(columns)) < len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise InputError(f"{path}: column '{twice}' is there twice", code="duplicate-column", field=twice)
    if not len(frame):
        raise InputError(f"{path} has no rows", code="no-rows", field=str(path))
    return frame


def _line(path: Path, row: int) -> str:
    """A row as people find it: in a CSV by its line, of which some are blank, and a cell may fill several."""
    if path.suffix.lower() != ".csv":
        return f"{path}, row {row + 1}"
    with open_file(path) as file, suppress(csv.Error):  # of a cell that is too long for it
        reader, start, seen = csv.reader(lines(file, path)), 1, -1  # the head
        for cells in reader:
            if "".join(cells).strip() or len(cells) > 1:
                if seen == row:
                    return f"{path}, line {start}"
                seen += 1
            start = reader.line_num + 1
    return f"{path}, row {row + 1}"


def _arrays(
    files: Sequence[Path], targets: Sequence[str], group: str | None, drop: Sequence[str], task: TaskName
) -> _Rows:
    """The rows of npz files, inputs (n, …) float32."""
    if drop:
        raise InputError(
            "drop has no effect on npz files, which have no columns: remove it", code="unused-option", field="drop"
        )
    check_roles(targets, group, drop)
    inputs: list[np.ndarray] = []
    found: dict[str, list[np.ndarray]] = {}
    groups: list[str] = []
    for path in files:
        x, ys, who = _npz(path, targets, group)
        for name, values in ys.items():
            check_values(name, values, task, partial(_line, path))
            found.setdefault(name, []).append(values)
        inputs.append(x.astype(np.float32))
        groups += who
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
    return _Rows(np.concatenate(inputs), whole, None if group is None and len(files) == 1 else groups)


def _npz(path: Path, targets: Sequence[str], group: str | None) -> tuple[np.ndarray, dict[str, np.ndarray], list[str]]:
    """Inputs (n, …), targets (n,) by name and groups (n,) of one file; of several targets in an array a name each."""
    names = ("inputs", *targets, *([] if group is None else [group]))
    with open_arrays(path) as arrays:
        for name in names:
            if name not in arrays.names:
                raise unknown(f"array in {path}", name, arrays.names, field=name)
        found = [np.atleast_1d(each) for each in arrays.read(names)]
    x, ys = found[0], found[1 : 1 + len(targets)]
    who = [path.stem] * len(x) if group is None else [*map(str, found[-1].tolist())]
    for name, y in zip(targets, ys, strict=True):
        if y.ndim not in (1, 2) or not len(x) == len(y) == len(who):
            raise InputError(
                f"{path}: inputs {x.shape}, '{name}' {y.shape} and {len(who)} groups: give one a row",
                code="count-mismatch",
                field=str(path),
            )
        _check_finite(path, name, y)
    if not len(x):
        raise InputError(f"{path} has no rows", code="no-rows", field=str(path))
    _check_finite(path, "inputs", x)
    columns = (columns_of(name, y) for name, y in zip(targets, ys, strict=True))
    return x, {name: values for each in columns for name, values in each.items()}, who


def _check_finite(path: Path, name: str, values: np.ndarray) -> None:
    """Make sure that an array is of numbers, or of words where it is of targets, and has no gaps.

    Raises:
        InputError: names row and place.
    """
    if values.dtype.kind not in "biuf" and (name == "inputs" or values.dtype.kind != "U"):
        raise InputError(
            f"{path}: the array '{name}' holds {values.dtype}, not numbers", code="not-a-number", field=name
        )
    bad = ~np.isfinite(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)
    if bad.any():
        row, *rest = np.argwhere(bad)[0].tolist()
        at = f" at {tuple(rest)}" if rest else ""
        raise InputError(
            f"{path}, row {row + 1}: the array '{name}' is NaN or infinite{at} ({int(bad.sum())} such values in the "
            "file): fill or remove such rows",
            code="not-finite",
            field=name,
        )
