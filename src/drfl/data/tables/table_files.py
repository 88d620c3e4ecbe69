"""Read tables from files: CSV, TSV, Parquet or npz, one file per client or with a column that names the client."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from drfl.core.errors import InputError, Notice, listing, unknown
from drfl.core.files import lines, open_arrays, open_file, open_text, read_csv, read_parquet
from drfl.data.dataset import Dataset, TaskName
from drfl.data.tables.columns import (
    check_alike,
    check_blanks,
    check_known,
    check_numbers,
    check_roles,
    check_size,
    one_hot,
    values_of,
)
from drfl.data.tables.levels import check_levels, level_notices
from drfl.data.tables.targets import check_values, columns_of, encoded
from drfl.data.tables.text_form import TextForm

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".npz")


def files_of(paths: Sequence[Path]) -> list[Path]:
    """List the files, in place of each folder those in it that drfl reads, by name.

    Raises:
        InputError: A file or folder does not exist, a folder has no such file, or a file is of another kind.
    """
    found: list[Path] = []
    for path in paths:
        if os.path.isdir(path):  # unlike pathlib's, False for a name that is too long
            inside = sorted(file for file in path.iterdir() if is_table_file(file))
            if not inside:
                raise InputError(
                    f"the folder {path} has no {' or '.join(SUFFIXES)} file", code="file-not-found", field=str(path)
                )
            found += inside
        elif not os.path.isfile(path):
            open_file(path).close()  # which says what is there instead
        elif not is_table_file(path):
            raise InputError(f"{path} is not a {' or '.join(SUFFIXES)} file", code="unsupported-file", field=str(path))
        else:
            found.append(path)
    return found


def is_table_file(path: Path) -> bool:
    """Whether the name of a file is one that drfl reads as a table."""
    return path.name.lower().endswith(SUFFIXES)


def name_of(path: Path) -> str:
    """The name of a file without its ending, which is the client's."""
    return next(
        path.name[: -len(end)] for end in sorted(SUFFIXES, key=len, reverse=True) if path.name.lower().endswith(end)
    )


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + " …" * (len(names) > 10)


def _unread(paths: Sequence[Path], files: Sequence[Path]) -> list[Notice]:
    """Warn of files and subfolders in the folders that are not read, and name the files that are."""
    left = [
        item.name + "/" * item.is_dir()
        for path in paths
        if os.path.isdir(path)
        for item in sorted(path.iterdir())
        if not item.name.startswith(".") and not (item.is_file() and is_table_file(item))
    ]
    if not left:
        return []
    read = [path.name for path in files]
    text = f"not read: {_first(left)}; read: {_first(read)}. drfl reads {', '.join(SUFFIXES)} files and no subfolders"
    return [Notice(text, "unread-files", left[0] if len(left) == 1 else None)]


def label_of_files(paths: Sequence[Path]) -> str:
    """What the data are called in files and tables."""
    if len(paths) > 1:
        return paths[0].resolve().parent.name
    return name_of(paths[0]) if is_table_file(paths[0]) else paths[0].stem


class _Rows(NamedTuple):
    """The rows of all files.

    Args:
        inputs: (n, …).
        targets: name → (n,).
        groups: (n,) who each row belongs to; None where nothing says so.
        columns: (p,) the names of inputs (n, p); None where they have none.
        notices: what a user should check.
    """

    inputs: np.ndarray
    targets: dict[str, np.ndarray]
    groups: list[str] | None
    columns: tuple[str, ...] | None = None
    notices: tuple[Notice, ...] = ()


def read_tables(
    paths: Sequence[Path],
    target: str | Sequence[str],
    group: str | None = None,
    drop: Sequence[str] = (),
    task: TaskName = "classification",
) -> Dataset:
    """Read a data set of one pool whose clients are its groups, and which is to be standardised.

    Several files without ``group`` are one client each, with the name of the file. A text column becomes one column of
    0 and 1 for each of its values but the first. In text files the delimiter, decimal commas and the encodings UTF-8
    and cp1252 are recognised. In an npz file the inputs (n, …) are ``inputs``, and the targets (n,) or (n, k) and the
    group are arrays by their names.

    Args:
        paths: Files, or folders of them. All have the same columns, in any order.
        target: The columns to predict. Classification: one of whole numbers, truth values or text, which become classes
            in sorted order; regression: numbers; multi-label: several of 0 and 1.
        group: The column that names the client; None = none, or the files.
        drop: Columns to leave out.
        task: What the targets are.

    Raises:
        InputError: A file cannot be read, or a column is missing, has blanks, mixes numbers and text, or spells one
            value in two ways; names file, line and column.
    """
    names = (target,) if isinstance(target, str) else tuple(target)
    files = files_of(paths)
    kinds = {path.suffix.lower() == ".npz" for path in files}
    if len(kinds) > 1:
        raise InputError(
            "npz files and tables cannot be mixed: give files of one kind", code="conflicting-options", field="data"
        )
    stems = [name_of(path) for path in files]
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
        label_of_files(paths), x, y, x, y, classes, named, x.ndim == 2, task, rows.columns, class_names=class_names,
        notices=(*_unread(paths, files), *rows.notices),
    )  # fmt: skip


def _columns(
    files: Sequence[Path], targets: Sequence[str], group: str | None, drop: Sequence[str], task: TaskName
) -> _Rows:
    """The rows of tables, inputs (n, p) float64."""
    import pandas as pd

    tables = [_Table.read(path, (*targets, *([] if group is None else [group])), drop) for path in files]
    first = list(tables[0].frame.columns)
    check_known(str(files[0]), first, targets, group, drop)
    for table in tables:
        frame, line = table.frame, table.line
        if sorted(frame.columns) != sorted(first):
            odd = sorted(set(first) ^ set(frame.columns))[0]
            raise InputError(
                f"column '{odd}' is in only one of {files[0]} and {table.path}: give both the same columns",
                code="columns-differ",
                field=odd,
            )
        kept = frame.drop(columns=list(drop))
        check_blanks(kept, line)
        for name in targets:
            check_values(name, values_of(frame[name]), task, line)
        features = kept.drop(columns=[*targets, *([] if group is None else [group])])
        check_numbers(features, line)
        check_size(features, line)
    # The order of most files: one site that permutes its columns must not change the model.
    order = list(Counter(tuple(table.frame.columns) for table in tables).most_common(1)[0][0])
    whole = pd.concat([table.frame[order] for table in tables], ignore_index=True).drop(columns=list(drop))
    names = [name_of(table.path) for table in tables for _ in range(len(table.frame))]
    groups = names if group is None else [str(value) for value in whole[group]]
    owners = None if group is None and len(files) == 1 else groups
    inputs = whole.drop(columns=[*targets, *([] if group is None else [group])])
    classes = whole[list(targets)] if task == "classification" else whole[[]]
    check_levels(pd.concat([inputs, classes], axis=1), owners)
    notices = level_notices(inputs, classes, owners)
    for table in tables:
        notice = None if table.form is None else table.form.notice(table.path)
        notices += [] if notice is None else [notice]
    features = one_hot(inputs, str(files[0]))
    return _Rows(
        features.to_numpy(dtype=np.float64, copy=True),  # what pandas lends is read-only
        {name: values_of(whole[name]) for name in targets},
        owners,
        tuple(map(str, features.columns)),
        _merged(notices),
    )


def _merged(notices: Sequence[Notice]) -> tuple[Notice, ...]:
    """The warnings, with one for all files that are written in the same unusual way."""
    forms = [notice for notice in notices if notice.code == "table-format"]
    if len(forms) < 2:
        return tuple(notices)
    ends = {notice.partition(" was read ")[2] for notice in forms}
    if len(ends) > 1:
        return tuple(notices)
    files = listing([str(notice.field) for notice in forms], "file")
    merged = Notice(f"{files} were read {ends.pop()}", "table-format")
    return (*(notice for notice in notices if notice.code != "table-format"), merged)


class _Table(NamedTuple):
    """A file with columns.

    Args:
        path: The file.
        frame: Its rows.
        form: How it is written; None for Parquet.
    """

    path: Path
    frame: pd.DataFrame
    form: TextForm | None

    @classmethod
    def read(cls, path: Path, text: Sequence[str], drop: Sequence[str]) -> _Table:
        """Read a file; ``text`` are columns whose words, such as "NA", are names and never mean "missing"."""
        if path.suffix.lower() == ".parquet":
            try:
                frame, form = read_parquet(path, drop), None
            except ImportError:
                raise InputError(
                    f"{path}: reading Parquet needs pyarrow: pip install pyarrow, or give CSV",
                    code="package-missing",
                    field="pyarrow",
                ) from None
        else:
            form = TextForm.of(path)
            frame = _with_words(path, read_csv(path, index_col=False, **form.options()), text, form)
        frame.columns = [str(name).strip() for name in frame.columns]
        columns = list(frame.columns)
        if len(set(columns)) < len(columns):
            twice = next(name for name in columns if columns.count(name) > 1)
            raise InputError(f"{path}: column '{twice}' is there twice", code="duplicate-column", field=twice)
        if not len(frame):
            raise InputError(f"{path} has no rows", code="no-rows", field=str(path))
        return cls(path, frame, form)

    def line(self, row: int) -> str:
        """A row as people find it."""
        return _line(self.path, row, self.form)


def _with_words(path: Path, frame: pd.DataFrame, text: Sequence[str], form: TextForm) -> pd.DataFrame:
    """The table with words such as "NA" and "None" in text columns, which pandas reads as missing."""
    from pandas.api.types import is_numeric_dtype

    words = [
        name
        for name in frame
        if frame[name].isna().any() and (not is_numeric_dtype(frame[name]) or str(name).strip() in text)
    ]
    if words:
        again = read_csv(path, index_col=False, usecols=words, dtype=str, keep_default_na=False, **form.options())
        for name in words:
            column = again[name]
            blank = column.str.strip() == ""
            # A numeric column with blanks, or with "NA" in some cells, has missing values.
            if is_numeric_dtype(frame[name]) and not frame[name].isna().all():
                continue
            frame[name] = column.mask(blank)
    return frame


def _line(path: Path, row: int, form: TextForm | None = None) -> str:
    """A row as people find it: in a text file by its line, of which some are blank, and a cell may fill several."""
    if form is None:
        return f"{path}, row {row + 1}"
    with open_text(path) as file, suppress(csv.Error):  # of a cell that is too long for it
        reader = csv.reader(lines(file, path, form.encoding), delimiter=form.delimiter)
        start, seen = 1, -1  # the head
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
    who = [name_of(path)] * len(x) if group is None else [*map(str, found[-1].tolist())]
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
