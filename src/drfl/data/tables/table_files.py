"""Read tables from files: CSV, TSV, Parquet or npz, one file per client or with a column that names the client."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drfl.core.errors import InputError, Notice, listing, unknown
from drfl.core.files import lines, open_arrays, open_file, open_text, read_csv, read_parquet
from drfl.data.dataset import Dataset, TaskName
from drfl.data.tables.columns import (
    RARE,
    RowName,
    check_alike,
    check_blanks,
    check_known,
    check_numbers,
    check_roles,
    check_size,
    one_hot,
    values_of,
)
from drfl.data.tables.conform import conform, level_text, stripped, target_tensor
from drfl.data.tables.levels import check_levels, level_notices
from drfl.data.tables.patients import patients_of, repeated_ids
from drfl.data.tables.schema import NUMBERS, TableSchema
from drfl.data.tables.targets import check_values, check_varies, columns_of, encoded
from drfl.data.tables.text_form import TextForm

if TYPE_CHECKING:
    import pandas as pd

USED = ("target", "client", "patient")
"""Roles of a schema's columns that are read although they are not features."""

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".npz")


def files_of(paths: Sequence[Path]) -> list[Path]:
    """List the files. A folder is replaced by the files in it that drfl reads, sorted by name.

    Raises:
        InputError: If a file or folder does not exist, a folder has no such file, or a file has another format.
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
    """Return whether drfl reads a file with this name as a table."""
    return path.name.lower().endswith(SUFFIXES)


def name_of(path: Path) -> str:
    """Return the name of a file without its ending, which becomes the client's name."""
    return next(
        path.name[: -len(end)] for end in sorted(SUFFIXES, key=len, reverse=True) if path.name.lower().endswith(end)
    )


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + " …" * (len(names) > 10)


def unread_notices(paths: Sequence[Path], files: Sequence[Path]) -> list[Notice]:
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
    """Return the name of the data in files and tables."""
    if len(paths) > 1:
        return paths[0].resolve().parent.name
    return name_of(paths[0]) if is_table_file(paths[0]) else paths[0].stem


class _Rows(NamedTuple):
    """The rows of all files.

    Args:
        inputs: (n, …).
        targets: (n, …).
        outputs: Number of outputs that a model needs.
        classes: Names of the classes; None without classes.
        groups: (n,) Client of each row; None if it is not known.
        columns: (p,) names of the columns of inputs (n, p); None if they have none.
        notices: Warnings about the files.
        sizes: Rows of each file.
        patients: (n,) Patient of each row; None if rows are independent.
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


def read_tables(
    paths: Sequence[Path],
    target: str | Sequence[str] | None = None,
    group: str | None = None,
    drop: Sequence[str] = (),
    task: TaskName | None = None,
    schema: TableSchema | None = None,
    patient: str | None = None,
) -> Dataset:
    """Read a data set whose clients are files or groups, and whose inputs are to be standardised.

    Several files without ``group`` are one client each, with the name of the file. A text column becomes one column of
    0 and 1 for each of its values but the first. In text files the delimiter, decimal commas and the encodings UTF-8
    and cp1252 are recognised. In an npz file the inputs (n, …) are ``inputs``, and the targets (n,) or (n, k) and the
    group are arrays by their names.

    Args:
        paths: Files, or folders of them. All have the same columns, in any order.
        target: The columns to predict. Classification: one of whole numbers, truth values or text, which become classes
            in sorted order; regression: numbers; multi-label: several of 0 and 1, blank or NaN where unknown.
        group: The column that names the client; None if each file is a client, or if no column names it.
        drop: Columns to leave out.
        task: Kind of task; None for classification.
        schema: Schema of the columns. It names target, group, task and patient; other options must not contradict it.
        patient: The column, or the array of an npz file, that names the patient of each row.

    Raises:
        InputError: If a file cannot be read, or a column is missing, has blanks, mixes numbers and text, spells a value
            in two ways, or does not conform to the schema. The message names file, line and column.
    """
    names = (target,) if isinstance(target, str) else None if target is None else tuple(target)
    files = files_of(paths)
    if schema is None:
        task = task or "classification"
        _check_stems(files, group)
        read = _encoded(files, names or (), group, drop, task, patient)
    else:
        schema.check_options(names, group, drop, task, patient)
        task = schema.task
        read = _by_schema(files, schema)
        for column, values in zip(schema.targets, read.targets.reshape(len(read.targets), -1).numpy().T, strict=True):
            check_varies(column.name, values, schema.classes)
    if read.groups is not None:
        check_alike(sorted(set(read.groups)))
    x, y = read.inputs, read.targets
    return Dataset(
        label_of_files(paths), x, y, x, y, read.outputs, None if read.groups is None else tuple(read.groups),
        x.ndim == 2, task, read.columns, class_names=read.classes,
        notices=(*unread_notices(paths, files), *read.notices),
        schema="" if schema is None else schema.digest,
        patients=None if read.patients is None else tuple(read.patients),
    )  # fmt: skip


def _check_stems(files: Sequence[Path], group: str | None) -> None:
    stems = [name_of(path) for path in files]
    if group is None and len(set(stems)) < len(stems):
        twice = next(stem for stem in stems if stems.count(stem) > 1)
        raise InputError(
            f"two files are called {twice}, and files are clients: rename one, or give group",
            code="duplicate-name",
            field=twice,
        )


class SiteRows(NamedTuple):
    """The rows of one site.

    Args:
        train: Inputs (n, …) and targets of the training rows. With a schema, inputs are NaN where values are missing.
        test: The same for the test rows; None if they have no file of their own.
        columns: (p,) names of inputs (n, p); None if they have none.
        classes: Names of the classes; None if they have none.
        schema: Digest of the schema; "" without one.
        notices: Warnings about the files.
    """

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor] | None
    columns: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    schema: str = ""
    notices: tuple[Notice, ...] = ()

    def about(self) -> dict[str, Any]:
        """Return the description of the rows, as arguments of :meth:`drfl.data.ClientData.from_arrays`."""
        return {name: getattr(self, name) for name in ("columns", "classes", "schema", "notices")}


def read_site_table(
    train: Path,
    test: Path | None,
    target: str | None,
    task: TaskName | None = None,
    schema: TableSchema | None = None,
) -> SiteRows:
    """Read the table of one site of a deployment.

    Args:
        train: File of the training rows.
        test: File of test rows with the same columns, in any order.
        target: The column to predict; None with a schema.
        task: Kind of task; None for classification.
        schema: Schema of the columns. Without one, features are in the order of the file, and text is refused, because
            each site would encode its own words.

    Raises:
        InputError: See :func:`read_tables`.
    """
    files = files_of([train] if test is None else [train, test])
    if schema is None:
        read = _encoded(
            files, () if target is None else (target,), None, (), task or "classification", None, words=False
        )
    else:
        schema.check_options(None if target is None else (target,), task=task)
        read = _by_schema(files, schema)
    # The training file comes first.
    at = len(read.inputs) if test is None else read.sizes[0]
    tests = None if test is None else (read.inputs[at:], read.targets[at:])
    return SiteRows(
        (read.inputs[:at], read.targets[:at]), tests, read.columns, read.classes,
        "" if schema is None else schema.digest, read.notices,
    )  # fmt: skip


def _encoded(
    files: Sequence[Path],
    targets: Sequence[str],
    group: str | None,
    drop: Sequence[str],
    task: TaskName,
    patient: str | None,
    words: bool = True,
) -> _Rows:
    """Read files without a schema. Features may be text if ``words``."""
    if not targets:
        raise InputError("there is no target: name the column to predict", code="missing-option", field="target")
    kinds = {path.suffix.lower() == ".npz" for path in files}
    if len(kinds) > 1:
        raise InputError(
            "npz files and tables cannot be mixed: give files of one kind", code="conflicting-options", field="data"
        )
    if kinds == {True}:
        return _arrays(files, targets, group, drop, task, patient)
    return _columns(files, targets, group, drop, task, patient, words)


def _by_schema(files: Sequence[Path], schema: TableSchema) -> _Rows:
    """Read files that conform to a schema."""
    if schema.client is None:
        _check_stems(files, None)
    tables = [Table.by_schema(path, schema) for path in files]
    parts = [conform(schema, table.frame, table.row_names(), str(table.path)) for table in tables]
    y, outputs = target_tensor(schema, np.concatenate([part.targets for part in parts]))
    return _Rows(
        torch.from_numpy(np.concatenate([part.inputs for part in parts])), y, outputs, schema.classes,
        client_of_rows(tables, schema.client), schema.features, _merged(form_notices(tables)),
        tuple(len(table.frame) for table in tables), _patients(tables, schema.patient),
    )  # fmt: skip


def _patients(tables: Sequence[Table], patient: str | None) -> list[str] | None:
    """Return the patient of each row.

    Raises:
        InputError: If a file has no such column, or a cell is blank.
    """
    if patient is None:
        return None
    for table in tables:
        if patient not in table.frame.columns:
            raise unknown(f"column for patient in {table.path}", patient, list(table.frame.columns), field="patient")
    return [name for table in tables for name in patients_of(table.frame, patient, table.line)]


def client_of_rows(tables: Sequence[Table], client: str | None) -> list[str] | None:
    """Return the client of each row, from the column, or from the file if no file has the column."""
    lacking = [table for table in tables if client not in table.frame.columns]
    if client is not None and (0 < len(lacking) < len(tables)):
        raise InputError(
            f"{lacking[0].path} has no column '{client}', which names the client in other files",
            code="missing-column",
            field=client,
        )
    if not lacking:
        columns = [stripped(table.frame[client]) for table in tables]
        for table, column in zip(tables, columns, strict=True):
            check_blanks(column.to_frame(client), table.line)
        return [level_text(value) for column in columns for value in column]
    if len(tables) == 1:
        return None
    _check_stems([table.path for table in tables], None)
    return [name_of(table.path) for table in tables for _ in range(len(table.frame))]


def form_notices(tables: Sequence[Table]) -> list[Notice]:
    """Warn of files that are not plain CSV in UTF-8."""
    found = [None if table.form is None else table.form.notice(table.path) for table in tables]
    return [notice for notice in found if notice is not None]


def _columns(
    files: Sequence[Path],
    targets: Sequence[str],
    group: str | None,
    drop: Sequence[str],
    task: TaskName,
    patient: str | None,
    words: bool,
) -> _Rows:
    """Read tables without a schema, with inputs (n, p) float64."""
    import pandas as pd

    roles = [*targets, *(name for name in (group, patient) if name is not None)]
    tables = [Table.read(path, roles, drop) for path in files]
    first = list(tables[0].frame.columns)
    check_known(str(files[0]), first, targets, group, drop)
    check_roles(targets, group, drop, patient)
    patients = _patients(tables, patient)
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
        # A blank label is unknown.
        check_blanks(kept.drop(columns=list(targets)) if task == "multi-label" else kept, line)
        for name in targets:
            check_values(name, values_of(frame[name]), task, line)
        features = kept.drop(columns=roles)
        check_numbers(features, line)
        check_size(features, line)
        if not words:
            _check_no_words(features, table.path)
    # The order of most files: one site that permutes its columns must not change the model.
    order = list(Counter(tuple(table.frame.columns) for table in tables).most_common(1)[0][0])
    whole = pd.concat([table.frame[order] for table in tables], ignore_index=True).drop(columns=list(drop))
    names = [name_of(table.path) for table in tables for _ in range(len(table.frame))]
    groups = names if group is None else [str(value) for value in whole[group]]
    owners = None if group is None and len(files) == 1 else groups
    inputs = whole.drop(columns=roles)
    classes = whole[list(targets)] if task == "classification" else whole[[]]
    check_levels(pd.concat([inputs, classes], axis=1), owners)
    notices = [*level_notices(inputs, classes, owners), *form_notices(tables)]
    if patient is None:
        notices += repeated_ids(pd.concat([table.frame for table in tables], ignore_index=True), owners, roles)
    features = one_hot(inputs, str(files[0]))
    x = torch.from_numpy(features.to_numpy(dtype=np.float64, copy=True))  # pandas returns a read-only array
    values = {name: values_of(whole[name]) for name in targets}
    if not words:
        values = {name: _site_target(name, y, files[0]) for name, y in values.items()}
    y, outputs, class_names = encoded(values, task)
    return _Rows(
        x, y, outputs, class_names, owners, tuple(map(str, features.columns)), _merged(notices),
        tuple(len(table.frame) for table in tables), patients,
    )  # fmt: skip


def _site_target(name: str, values: np.ndarray, path: Path) -> np.ndarray:
    """Return the target of a site that has no schema, whose class names the server gets.

    Raises:
        InputError: If a word has few rows, because its name might identify a person.
    """
    if values.dtype.kind == "b":
        return values.astype(int)  # sites cannot see each other's files: True and 1 are the same class at all of them
    rare = 0 if values.dtype != object else int((np.unique(values, return_counts=True)[1] < RARE).sum())
    if rare:
        raise InputError(
            f"{path}, target '{name}': {rare} of the classes have fewer than {RARE} rows, and their names would leave "
            "the site. Make a schema with 'drfl data describe', or remove these rows",
            code="rare-levels",
            field=name,
        )
    return values


def _check_no_words(features: pd.DataFrame, path: Path) -> None:
    """Check that no column holds text.

    Raises:
        InputError: If one does.
    """
    from pandas.api.types import is_numeric_dtype

    name = next((str(name) for name in features if not is_numeric_dtype(features[name])), None)
    if name is not None:
        raise InputError(
            f"{path}, column '{name}': text needs a schema, so that all sites encode it alike. Make one with 'drfl "
            "data describe', give it to every site, and set schema in site.toml",
            code="not-a-number",
            field=name,
        )


def _merged(notices: Sequence[Notice]) -> tuple[Notice, ...]:
    """Merge the warnings of files that are written in the same unusual way."""
    forms = [notice for notice in notices if notice.code == "table-format"]
    if len(forms) < 2:
        return tuple(notices)
    ends = {notice.partition(" was read ")[2] for notice in forms}
    if len(ends) > 1:
        return tuple(notices)
    files = listing([str(notice.field) for notice in forms], "file")
    merged = Notice(f"{files} were read {ends.pop()}", "table-format")
    return (*(notice for notice in notices if notice.code != "table-format"), merged)


class Table(NamedTuple):
    """A table and its file.

    Args:
        path: The file.
        frame: Its rows.
        form: Delimiter, decimal mark and encoding; None for Parquet.
    """

    path: Path
    frame: pd.DataFrame
    form: TextForm | None

    @classmethod
    def read(cls, path: Path, text: Sequence[str], drop: Sequence[str]) -> Table:
        """Read a file. In the columns ``text``, words such as "NA" never mean "missing"."""
        if path.suffix.lower() == ".parquet":
            return cls._checked(path, _parquet(path, drop), None)
        form = TextForm.of(path)
        frame = _with_words(path, read_csv(path, index_col=False, **form.options()), text, form)
        return cls._checked(path, frame, form)

    @classmethod
    def by_schema(cls, path: Path, schema: TableSchema) -> Table:
        """Read a file without the columns that the schema does not use."""
        texts = [column.name for column in schema.columns if column.type not in NUMBERS]
        table = cls.raw(path, texts)
        unused = [
            column.name
            for column in schema.columns
            if not column.is_feature and column.role not in USED and column.name in table.frame
        ]
        return table._replace(frame=table.frame.drop(columns=unused))

    @classmethod
    def raw(cls, path: Path, text: Sequence[str]) -> Table:
        """Read a file without interpreting blank cells and words. All cells of the columns ``text`` stay text.

        Decimal commas become points if the file uses them. Columns of numbers alone are numbers.

        Raises:
            InputError: If the file cannot be read.
        """
        from pandas.api.types import is_bool_dtype, is_numeric_dtype

        if path.suffix.lower() == ".npz":
            raise InputError(
                f"{path} holds arrays, which have no columns: give CSV, TSV or Parquet",
                code="unsupported-file",
                field=str(path),
            )
        if path.suffix.lower() == ".parquet":
            return cls._checked(path, _parquet(path, ()), None)
        form = TextForm.of(path)
        options = {**form.options(), "index_col": False, "keep_default_na": False}
        head = read_csv(path, nrows=0, **options)
        words = {name: str for name in head.columns if str(name).strip() in text}
        frame = read_csv(path, low_memory=False, dtype=words, **options)
        truths = [name for name in frame if is_bool_dtype(frame[name])]
        if truths:  # "TRUE" would become True
            again = read_csv(path, usecols=truths, dtype=str, **options)
            frame = frame.assign(**{str(name): again[name] for name in truths})
        if form.decimal == ",":
            for name in (name for name in frame if not is_numeric_dtype(frame[name])):
                frame[name] = frame[name].str.replace(r"^(\s*[-+]?\d+),(\d+\s*)$", r"\1.\2", regex=True)
        return cls._checked(path, frame, form)

    @classmethod
    def _checked(cls, path: Path, frame: pd.DataFrame, form: TextForm | None) -> Table:
        """Check a table, and remove outer blanks from the names of its columns."""
        frame.columns = [str(name).strip() for name in frame.columns]
        columns = list(frame.columns)
        if len(set(columns)) < len(columns):
            twice = next(name for name in columns if columns.count(name) > 1)
            raise InputError(f"{path}: column '{twice}' is there twice", code="duplicate-column", field=twice)
        if not len(frame):
            raise InputError(f"{path} has no rows", code="no-rows", field=str(path))
        return cls(path, frame, form)

    def line(self, row: int) -> str:
        """Name a row as people find it."""
        return _line(self.path, row, self.form)

    def row_names(self) -> RowName:
        """Return a function that names rows, and reads the file only once."""
        starts: list[int] = []

        def name(row: int) -> str:
            if not starts and self.form is not None:
                starts.extend(_starts(self.path, self.form))
            return f"{self.path}, line {starts[row]}" if row < len(starts) else f"{self.path}, row {row + 1}"

        return name


def _parquet(path: Path, drop: Sequence[str]) -> pd.DataFrame:
    try:
        return read_parquet(path, drop)
    except ImportError:
        raise InputError(
            f"{path}: reading Parquet needs pyarrow: pip install pyarrow, or give CSV",
            code="package-missing",
            field="pyarrow",
        ) from None


def _with_words(path: Path, frame: pd.DataFrame, text: Sequence[str], form: TextForm) -> pd.DataFrame:
    """Restore words such as "NA" and "None" in text columns, which pandas reads as missing."""
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
    """Name a row as people find it. Lines of a text file may be blank, and a cell may fill several lines."""
    start = None if form is None else next(islice(_starts(path, form), row, None), None)
    return f"{path}, row {row + 1}" if start is None else f"{path}, line {start}"


def _starts(path: Path, form: TextForm) -> Iterator[int]:
    """Yield the line in which each row starts."""
    with open_text(path) as file, suppress(csv.Error):  # of a cell that is too long for it
        reader = csv.reader(lines(file, path, form.encoding), delimiter=form.delimiter)
        start, is_head = 1, True
        for cells in reader:
            if "".join(cells).strip() or len(cells) > 1:
                if not is_head:
                    yield start
                is_head = False
            start = reader.line_num + 1


def _arrays(
    files: Sequence[Path],
    targets: Sequence[str],
    group: str | None,
    drop: Sequence[str],
    task: TaskName,
    patient: str | None,
) -> _Rows:
    """Read npz files, with inputs (n, …) float32."""
    if drop:
        raise InputError(
            "drop has no effect on npz files, which have no columns: remove it", code="unused-option", field="drop"
        )
    check_roles(targets, group, drop, patient)
    inputs: list[np.ndarray] = []
    found: dict[str, list[np.ndarray]] = {}
    groups, patients = list[str](), list[str]()
    for path in files:
        x, ys, who, units = _npz(path, targets, group, patient, has_unknown=task == "multi-label")
        for name, values in ys.items():
            check_values(name, values, task, partial(_line, path))
            found.setdefault(name, []).append(values)
        inputs.append(x.astype(np.float32))
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
    y, outputs, classes = encoded({name: np.concatenate(parts) for name, parts in found.items()}, task)
    owners, sizes = None if group is None and len(files) == 1 else groups, tuple(map(len, inputs))
    units = None if patient is None else patients
    return _Rows(torch.from_numpy(np.concatenate(inputs)), y, outputs, classes, owners, sizes=sizes, patients=units)


def _npz(
    path: Path, targets: Sequence[str], group: str | None, patient: str | None, *, has_unknown: bool
) -> tuple[np.ndarray, dict[str, np.ndarray], list[str], list[str]]:
    """Read inputs (n, …), targets (n,) by name, groups (n,) and patients (n,) of one file.

    Each target in an array gets a name. If ``has_unknown``, targets may be NaN.
    """
    names = ("inputs", *targets, *(name for name in (group, patient) if name is not None))
    with open_arrays(path) as arrays:
        for name in names:
            if name not in arrays.names:
                raise unknown(f"array in {path}", name, arrays.names, field=name)
        found = [np.atleast_1d(each) for each in arrays.read(names)]
    x, ys = found[0], found[1 : 1 + len(targets)]
    units = [] if patient is None else [*map(str, found[-1].tolist())]
    who = [name_of(path)] * len(x) if group is None else [*map(str, found[1 + len(targets)].tolist())]
    if patient is not None and len(units) != len(x):
        raise InputError(
            f"{path}: inputs {x.shape} and {len(units)} patients: give one a row", code="count-mismatch", field=patient
        )
    for name, y in zip(targets, ys, strict=True):
        if y.ndim not in (1, 2) or not len(x) == len(y) == len(who):
            raise InputError(
                f"{path}: inputs {x.shape}, '{name}' {y.shape} and {len(who)} groups: give one a row",
                code="count-mismatch",
                field=str(path),
            )
        _check_finite(path, name, np.nan_to_num(y, nan=0) if has_unknown and y.dtype.kind == "f" else y)
    if not len(x):
        raise InputError(f"{path} has no rows", code="no-rows", field=str(path))
    _check_finite(path, "inputs", x)
    columns = (columns_of(name, y) for name, y in zip(targets, ys, strict=True))
    return x, {name: values for each in columns for name, values in each.items()}, who, units


def _check_finite(path: Path, name: str, values: np.ndarray) -> None:
    """Check that an array holds finite numbers, or words if it holds targets.

    Raises:
        InputError: If it does not; the message names the row.
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
