"""Read tables from files: CSV, TSV, Parquet or npz, one file per client or with a column that names the client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drfl.core.errors import InputError, Notice, listing, suggestion, unknown
from drfl.data.dataset import Dataset, TaskName
from drfl.data.tables.columns import (
    NAME_ROWS,
    RARE,
    Columns,
    check_alike,
    check_blanks,
    check_forms,
    check_no_text,
    check_numbers,
    check_size,
    one_hot,
    values_of,
)
from drfl.data.tables.condition_columns import column_notices, condition_notices
from drfl.data.tables.conditions import text_columns, used_columns
from drfl.data.tables.conform import conform, level_text, stripped, target_tensor
from drfl.data.tables.levels import check_levels, level_notices, word_notices
from drfl.data.tables.npz_arrays import TableRows, is_table, read_arrays
from drfl.data.tables.patients import NAMES, check_spelling, names_in, repeated_ids, shared_ids
from drfl.data.tables.propose import inferred_schema, propose
from drfl.data.tables.schema import TableSchema
from drfl.data.tables.table import Table, header_hint
from drfl.data.tables.table_paths import check_stems, files_of, is_arrays, label_of_files, name_of, unread_notices
from drfl.data.tables.targets import check_values, check_varies, encoded
from drfl.data.tables.text_form import DETECT, ReadOptions


def read_tables(
    paths: Sequence[Path],
    target: str | Sequence[str] | None = None,
    group: str | None = None,
    drop: Sequence[str] = (),
    task: TaskName | None = None,
    schema: TableSchema | None = None,
    patient: str | None = None,
    reading: ReadOptions = DETECT,
) -> Dataset:
    """Read a data set whose clients are files or groups, and whose inputs are to be standardised.

    Several files without ``group`` are one client each, with the name of the file. A text column becomes one column of
    0 and 1 for each of its values but the first. In an npz file without names of columns the inputs (n, …) are
    ``inputs``, and the targets (n,) or (n, k) and the group are arrays by their names.

    Args:
        paths: Files, or folders of them. All have the same columns, in any order.
        target: The columns to predict. Classification: one of whole numbers, truth values or text, which become classes
            in sorted order; regression: numbers; multi-label: several of 0 and 1, blank or NaN if unknown. A condition
            such as "price > 100000" makes the classes "no" and "yes", or a label, of a column.
        group: The column that names the client; None if each file is a client, or if no column names it.
        drop: Columns to exclude.
        task: Kind of task; None for classification.
        schema: Schema of the columns. It names target, group, task and patient; other options must not contradict it.
        patient: The column, or the array of an npz file, that names the patient of each row.
        reading: Properties of the files that drfl should not detect. If it has words for missing values and there is no
            schema, drfl uses the schema that it would propose.

    Raises:
        InputError: If a file cannot be read, or a column is missing, has blanks, mixes numbers and text, spells a value
            in two ways, or does not conform to the schema. The message names file, line and column.
    """
    names = (target,) if isinstance(target, str) else None if target is None else tuple(target)
    files, proposed = files_of(paths), tuple[Notice, ...]()
    columns = Columns(names or (), group, tuple(drop), task or "classification", schema, patient, reading)
    if schema is not None:
        schema.check_options(names, group, drop, task, patient)
        read = rows_by_schema([Table.whole(path, schema, options=reading) for path in files], schema)
    elif reading.missing:
        tables = [Table.read(path, columns.words, reading) for path in files]
        frames = [table.frame for table in tables]
        check_forms({table.place: [str(name) for name in table.frame] for table in tables})
        schema, proposed = propose(frames, columns.targets, group, drop, columns.task, patient, reading)
        read = rows_by_schema(tables, schema, is_proposed=True)
    else:
        check_stems(files, group)
        read = _encoded(files, columns)
    if schema is not None:
        check_targets_vary(schema, read.targets)
    if read.groups is not None:
        check_alike(sorted(set(read.groups)))
    if read.patients is not None:
        check_spelling(read.patients, read.groups)
    x, y = read.inputs, read.targets
    shared = () if read.groups is None or read.patients is None else shared_ids(read.groups, read.patients)
    return Dataset(
        label_of_files(paths), x, y, x, y, read.outputs, None if read.groups is None else tuple(read.groups),
        x.ndim == 2, columns.task if schema is None else schema.task, read.columns, class_names=read.classes,
        notices=(*unread_notices(paths, files), *proposed, *read.notices, *shared),
        schema=read.schema,
        patients=None if read.patients is None else tuple(read.patients),
    )  # fmt: skip


class SiteRows(NamedTuple):
    """The rows of one site, as inputs and targets; test rows if they have a separate file.

    With a schema, inputs are NaN where values are missing. Patients (n,) are None if rows are independent.
    """

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor] | None
    columns: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    schema: TableSchema | None = None
    notices: tuple[Notice, ...] = ()
    patients: list[str] | None = None

    def about(self) -> dict[str, Any]:
        """Return the description of the rows, as arguments of :meth:`drfl.data.ClientData.from_arrays`."""
        return {name: getattr(self, name) for name in ("columns", "classes", "schema", "notices")}


def read_site_table(
    train: Path,
    test: Path | None,
    target: str | None,
    task: TaskName | None = None,
    schema: TableSchema | None = None,
    patient: str | None = None,
    reading: ReadOptions = DETECT,
) -> SiteRows:
    """Read the table of one site of a deployment, and perhaps a second file with test rows.

    Without a schema, features are in the order of the file, and text is rejected, because each site would encode its
    own words.
    """
    files = files_of([train] if test is None else [train, test])
    targets = None if target is None else (target,)
    if schema is not None:
        schema.check_options(targets, task=task, patient=patient)
        patient = schema.patient
    if patient is not None and test is not None:
        raise InputError(
            f"drfl divides all rows by patient ('{patient}'): pass one file instead of {train.name} and {test.name}",
            code="conflicting-options",
            field="patient",
        )
    if schema is None:
        columns = Columns(targets or (), task=task or "classification", patient=patient, reading=reading)
        read = _encoded(files, columns, words=False)
    else:
        read = rows_by_schema([Table.whole(path, schema, options=reading) for path in files], schema, files=False)
    if read.patients is not None:
        check_spelling(read.patients, None)
    # The training file comes first.
    at = len(read.inputs) if test is None else read.sizes[0]
    tests = None if test is None else (read.inputs[at:], read.targets[at:])
    return SiteRows(
        (read.inputs[:at], read.targets[:at]), tests, read.columns, read.classes,
        schema, read.notices, read.patients,
    )  # fmt: skip


def _encoded(files: Sequence[Path], columns: Columns, words: bool = True) -> TableRows:
    """Read files without a schema. Features may be text if ``words``."""
    if not columns.targets:
        raise InputError("there is no target: name the column to predict", code="missing-option", field="target")
    kinds = {is_arrays(path) and not is_table(path) for path in files}
    if len(kinds) > 1:
        raise InputError(
            "npz files without names of columns and tables cannot be mixed: pass files of one kind",
            code="conflicting-options",
            field="data",
        )
    if kinds == {True}:
        for name in columns.reading.content():
            raise InputError(f"{name} has no effect on npz files: remove it", code="unused-option", field=name)
        rows, compared = read_arrays(files, columns)
        notices = column_notices(compared, text_columns(columns.targets), rows.groups)
        return rows._replace(notices=(*rows.notices, *notices))
    tables = [Table.read(path, columns.texts, columns.reading, columns.drop) for path in files]
    rows = rows_of_tables(tables, columns, words=words, files=words)
    # A model reads new tables as those of its training were read.
    return rows if rows.schema is None else rows._replace(schema=replace(rows.schema, reading=columns.reading))


def rows_by_schema(
    tables: Sequence[Table], schema: TableSchema, files: bool = True, *, is_proposed: bool = False
) -> TableRows:
    """Encode whole tables by a schema. If ``files``, several tables without a client column are one client each.

    If drfl proposed the schema, its levels are those of the tables, so their words are checked as without a schema.
    """
    owners, notices = None, form_notices(tables)
    if is_proposed:
        owners = client_of_rows(tables, schema.client, files)
        notices = [*word_notices(tables, schema, owners), *notices]
    parts = [conform(schema, table.without_unused(schema)) for table in tables]
    owners = client_of_rows(tables, schema.client, files) if owners is None else owners
    notices += condition_notices(tables, [column.name for column in schema.targets], owners)
    y, outputs = target_tensor(schema, np.concatenate([part.targets for part in parts]))
    return TableRows(
        torch.from_numpy(np.concatenate([part.inputs for part in parts])), y, outputs, schema.classes,
        owners, schema.features, (*notices, *repeated_in(tables, owners, schema)),
        tuple(len(table.frame) for table in tables), patients_of_tables(tables, schema.patient), schema,
    )  # fmt: skip


def repeated_in(tables: Sequence[Table], owners: Sequence[str] | None, schema: TableSchema) -> tuple[Notice, ...]:
    """Warn of columns of whole tables that seem to name patients, unless the schema names a column of patients."""
    import pandas as pd

    if schema.patient is not None:
        return ()
    used = (*used_columns([column.name for column in schema.targets]), schema.client)
    names = list(dict.fromkeys(name for table in tables for name in table.frame if NAMES.fullmatch(str(name))))
    # A table that lacks a column has blanks there.
    frames = [table.frame.reindex(columns=names).astype(object) for table in tables] if names else []
    return repeated_ids(pd.concat(frames, ignore_index=True).infer_objects(), owners, used) if frames else ()


def patients_of_tables(tables: Sequence[Table], patient: str | None) -> list[str] | None:
    """Return the patient of each row."""
    if patient is None:
        return None
    for table in tables:
        if patient not in table.frame.columns:
            raise unknown(
                "column", patient, list(table.frame.columns), field="patient", place=f"in {table.place} for `patient`"
            )
    return [name for table in tables for name in names_in(table.frame, patient, table.row_name)]


def check_targets_vary(schema: TableSchema, targets: Tensor) -> None:
    """Raise InputError unless each target (n, …) has more than one value."""
    for column, values in zip(schema.targets, targets.reshape(len(targets), -1).numpy().T, strict=True):
        check_varies(column.name, values, schema.classes)


def client_of_rows(tables: Sequence[Table], client: str | None, files: bool = True) -> list[str] | None:
    """Return the client of each row, from the column, or from the file if no file has the column."""
    lacking = [table for table in tables if client not in table.frame.columns]
    if client is not None and (0 < len(lacking) < len(tables)):
        raise InputError(
            f"{lacking[0].place} has no column '{client}', which names the client in other files",
            code="missing-column",
            field=client,
        )
    if not lacking:
        columns = [stripped(table.frame[client]) for table in tables]
        for table, column in zip(tables, columns, strict=True):
            check_blanks(column.to_frame(client), table.row_name, NAME_ROWS)
        return [level_text(value) for column in columns for value in column]
    if len(tables) == 1 or not files:
        return None
    paths = [Path(table.place) for table in tables]
    check_stems(paths, None)
    return [name_of(path) for path, table in zip(paths, tables, strict=True) for _ in range(len(table.frame))]


def form_notices(tables: Sequence[Table]) -> list[Notice]:
    """Warn of files that are not plain CSV in UTF-8, once if all of them are written in the same way."""
    found = [None if table.form is None else table.form.notice(Path(table.place)) for table in tables]
    forms = [notice for notice in found if notice is not None]
    ends = {notice.partition(" was read ")[2] for notice in forms}
    if len(forms) < 2 or len(ends) > 1:
        return forms
    files = listing([str(notice.field) for notice in forms], "file")
    return [Notice(f"{files} were read {ends.pop()}", "table-format")]


def _check_columns(tables: Sequence[Table], columns: Columns) -> None:
    """Check that the named columns exist, and that all files have the same columns except those that are dropped."""
    place, drop = tables[0].place, columns.drop
    own = [[str(name) for name in table.frame if name not in drop] for table in tables]
    dropped = {str(name) for table in tables for name in table.frame if name in drop}
    columns.check(place, [*own[0], *sorted(dropped)])
    for table, names in zip(tables, own, strict=True):
        lacking, more = sorted({*own[0]} - {*names}), sorted({*names} - {*own[0]})
        if lacking or more:
            odd = min(lacking + more)
            hint = suggestion(odd, more if odd in lacking else lacking)
            raise InputError(
                f"column '{odd}' is in only one of {place} and {table.place}{f'. {hint} Give' if hint else ': give'} "
                f"both the same columns, or exclude it with `drop`{header_hint(odd)}",
                code="columns-differ",
                field=odd,
            )


def rows_of_tables(tables: Sequence[Table], columns: Columns, *, words: bool = True, files: bool = True) -> TableRows:
    """Encode tables without a schema, with inputs (n, p) float64; features may be text if ``words``.

    If ``files``, several tables without a group are one client each.
    """
    import pandas as pd
    from pandas.api.types import is_numeric_dtype

    targets, drop, names, task = columns.targets, columns.drop, columns.names, columns.task
    roles = [*targets, *names]
    place, original = tables[0].place, tables[0].frame.columns
    check_forms({table.place: [str(name) for name in table.frame] for table in tables})
    whole_tables = [table.with_numbers([*names, *text_columns(targets)]) for table in tables]
    tables = [table.with_answers(targets, [*names, *drop]) for table in whole_tables]
    _check_columns(tables, columns)
    patients = patients_of_tables(tables, columns.patient)
    for table in tables:
        frame, line = table.frame, table.row_name
        kept = frame.drop(columns=list(drop), errors="ignore")
        # A blank label is unknown.
        check_blanks(kept[names if task == "multi-label" else [*names, *targets]], line, NAME_ROWS)
        check_blanks(kept.drop(columns=roles), line)
        for name in targets:
            check_values(name, values_of(frame[name]), task, line)
        features = kept.drop(columns=roles)
        check_numbers(features, line)
        check_size(features, line)
        if not words:
            check_no_text(features, table.place)
    # The order of most files: one site that permutes its columns must not change the model.
    orders = Counter(tuple(name for name in table.frame.columns if name not in drop) for table in tables)
    order = list(orders.most_common(1)[0][0])
    whole = pd.concat([table.frame[order] for table in tables], ignore_index=True)
    for name in (name for name in whole if whole[name].dtype == object and name not in names):
        # Truth values of one file and numbers of another are objects together.
        if all(is_numeric_dtype(table.frame[name]) for table in tables):
            whole[name] = pd.to_numeric(whole[name])
    # The group 1.0 of a file with blanks in other cells is the group "1" of another file.
    group = columns.group
    owners = client_of_rows(tables, None, files) if group is None else [level_text(value) for value in whole[group]]
    others = list(targets) if task != "classification" else []
    for name in (name for name in whole if name not in (*names, *others)):
        # The value 1.0 of a file of numbers is the value "1" of a file with words, as in a schema.
        if not is_numeric_dtype(whole[name]):
            whole[name] = whole[name].map(level_text)
    inputs = whole.drop(columns=roles)
    classes = whole[list(targets)] if task == "classification" else whole[[]]
    check_levels(pd.concat([inputs, classes], axis=1), owners)
    notices = [
        *level_notices(inputs, classes, owners),
        *condition_notices(whole_tables, targets, owners),
        *form_notices(tables),
    ]
    if columns.patient is None:
        notices += repeated_ids(pd.concat([table.frame for table in tables], ignore_index=True), owners, roles)
    features = one_hot(inputs, place)
    x = torch.from_numpy(features.to_numpy(dtype=np.float64, copy=True))  # pandas returns a read-only array
    values = {name: values_of(whole[name]) for name in targets}
    for name, y in values.items():
        # The server gets the names of a site's classes, but the answers to a condition do not identify a person.
        if words or name not in original:
            continue
        if y.dtype.kind == "b":
            values[name] = y.astype(int)  # sites cannot see each other's files: True and 1 are the same class
        rare = 0 if y.dtype != object else int((np.unique(y, return_counts=True)[1] < RARE).sum())
        if rare:
            raise InputError(
                f"{place}, target '{name}': {rare} of the classes have fewer than {RARE} rows, and their names would "
                "leave the site. Make a schema with 'drfl data describe', or remove these rows",
                code="rare-levels",
                field=name,
            )
    y, outputs, class_names = encoded(values, task)
    # Sites cannot see each other's words, so they need a schema that was given to all of them.
    schema = inferred_schema(inputs, values, columns, class_names) if words else None
    return TableRows(
        x, y, outputs, class_names, owners, tuple(map(str, features.columns)), tuple(notices),
        tuple(len(table.frame) for table in tables), patients, schema,
    )  # fmt: skip
