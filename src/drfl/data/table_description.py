"""Describe tables per client and list all their problems, for ``drfl data describe`` and ``drfl data check``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from drfl.core.errors import InputError, Notice, listing, suggestion
from drfl.core.key import Key
from drfl.data.checks import data_warnings
from drfl.data.client_data import ClientData
from drfl.data.dataset import TaskName
from drfl.data.partition.natural import split_groups
from drfl.data.partition.splitting import as_tensors, too_few
from drfl.data.tables.columns import Columns, check_forms
from drfl.data.tables.condition_columns import condition_notices
from drfl.data.tables.conform import BITS, SchemaRows, encode, level_text, stripped, target_tensor
from drfl.data.tables.levels import check_levels, level_notices, words_of
from drfl.data.tables.patients import check_spelling, numbered
from drfl.data.tables.propose import propose
from drfl.data.tables.schema import NUMBERS, WITH_LEVELS, TableSchema
from drfl.data.tables.table import Table
from drfl.data.tables.table_files import client_of_rows, patients_of_tables, repeated_in
from drfl.data.tables.table_paths import files_of, unread_notices
from drfl.data.tables.text_form import DETECT, ReadOptions, TextForm
from drfl.data.tables.written import days_of

if TYPE_CHECKING:
    import pandas as pd


class ColumnSummary(NamedTuple):
    """A column at one client: its type, missing cells, rows of each level, and smallest and largest number or date.

    ``values`` counts different whole numbers.
    """

    type: str
    missing: int
    levels: dict[str, int] | None = None
    range: tuple[str, str] | None = None
    values: int | None = None


class SiteSummary(NamedTuple):
    """The rows of one client, those of the positive class of two, and its patients if a column names them."""

    name: str
    rows: int
    positive: int | None
    columns: dict[str, ColumnSummary]
    patients: int | None = None


class Description(NamedTuple):
    """The description of tables: per client, errors that drfl would reject, likely errors, and how each file was read.

    The schema is None if no file could be read or none can be proposed. Files whose cells have types have no form.
    """

    sites: tuple[SiteSummary, ...]
    problems: tuple[InputError, ...]
    notices: tuple[Notice, ...]
    schema: TableSchema | None
    files: dict[str, TextForm | None]


class FileCheck(NamedTuple):
    """A checked file. It has no rows if it cannot be read, and no form if its cells have types."""

    path: Path
    rows: int | None
    problems: tuple[InputError, ...]
    form: TextForm | None = None


class Check(NamedTuple):
    """The check of files against a schema, with likely errors if it is strict and finds no problems."""

    files: tuple[FileCheck, ...]
    notices: tuple[Notice, ...]


def check_files(
    paths: Sequence[Path], schema: TableSchema, reading: ReadOptions = DETECT, *, strict: bool = False
) -> Check:
    """Check all files against a schema. Problems do not stop the check."""
    found, tables, parts = list[FileCheck](), list[Table](), list[SchemaRows]()
    files = files_of(paths)
    reading = reading.with_defaults(schema.reading)
    for path in files:
        try:
            table = Table.whole(path, schema, options=reading)
        except InputError as error:
            # Other files are checked nevertheless.
            found.append(FileCheck(path, None, (error,)))
            continue
        rows = encode(schema, table.without_unused(schema))
        problems = [*rows.problems]
        try:
            clients = client_of_rows([table], schema.client) if schema.client in table.frame.columns else None
            patients = patients_of_tables([table], schema.patient)
            if patients is not None:
                check_spelling(patients, clients)
        except InputError as error:
            problems.append(error)
        found.append(FileCheck(path, len(table.frame), tuple(problems), table.form))
        tables.append(table)
        parts.append(rows)
    # Warnings compare clients, for which all their rows are needed.
    if not strict or any(file.problems for file in found):
        return Check(tuple(found), ())
    clients = client_of_rows(tables, schema.client) or ["all rows"] * len(parts[0].targets)
    patients = patients_of_tables(tables, schema.patient)
    notices = (
        *unread_notices(paths, files), *repeated_in(tables, clients, schema),
        *condition_notices(tables, [column.name for column in schema.targets], clients),
        *_warnings(schema, parts, clients, patients),
    )  # fmt: skip
    return Check(tuple(found), tuple(dict.fromkeys(notices)))


def describe(
    paths: Sequence[Path],
    target: str | Sequence[str],
    group: str | None = None,
    drop: Sequence[str] = (),
    task: TaskName | None = None,
    patient: str | None = None,
    reading: ReadOptions = DETECT,
) -> Description:
    """Describe tables, propose a schema for them, and collect all problems.

    The checks that compare clients ignore rows with a wrong value. Without a task, it is inferred. The proposed schema
    also has the properties of the files that drfl should not detect.
    """
    import pandas as pd

    targets = (target,) if isinstance(target, str) else tuple(target)
    roles = Columns(targets, group, tuple(drop), task or "regression", patient=patient)
    files = files_of(paths)
    tables, plain, failed = _read(files, roles, reading)
    problems, unread = [*failed.values()], unread_notices(paths, files, [*failed], most=None)
    if not tables:
        return Description((), tuple(problems), tuple(unread), None, {})
    check_forms({table.place: [str(name) for name in table.frame] for table in tables})
    schema, notices = propose([table.frame for table in plain], targets, group, drop, task, patient, reading)
    if schema.task == "regression":
        tables = plain
    elif task is None:
        # The names of classes stay as they are written.
        frames = [table.frame for table in tables]
        schema, notices = propose(frames, targets, group, drop, schema.task, patient, reading)
    forms = {table.place: table.form for table in tables}
    parts, used = list[SchemaRows](), list[Table]()
    for table in tables:
        unused = [column.name for column in schema.columns if column.role == "excluded"]
        table = table._replace(frame=table.frame.drop(columns=unused, errors="ignore"))
        rows = encode(schema, table)
        # Other spellings of a level are listed below, once for all tables.
        others = [column.name for column in schema.columns if column.other]
        problems += [
            each
            for each in rows.problems
            if each.code != "missing-column" and (each.code != "similar-values" or each.field not in others)
        ]
        if any(problem.code == "missing-column" for problem in rows.problems):
            rows = rows._replace(wrong=np.ones(len(table.frame), bool))  # no row of the file has all values
        parts.append(rows)
        # Wrong cells are among the problems of the schema already.
        used.append(table.with_answers(targets, strict=False))
    try:
        clients = client_of_rows(used, group) or ["all rows"] * len(parts[0].targets)
    except InputError as error:
        problems.append(error)
        clients = [table.place for table in used for _ in range(len(table.frame))]
    try:
        patients = patients_of_tables(tables, patient)
    except InputError as error:
        problems.append(error)
        patients = None
    collected = [*unread, *notices, *repeated_in(tables, clients, schema)]
    with suppress(InputError):  # which is among the problems of the schema
        collected += condition_notices(tables, targets, clients)
    columns = [column for column in schema.columns if column.is_feature or column.role == "target"]
    names = [column.name for column in columns]
    # A file that lacks a column has blanks there.
    frame = pd.concat([table.frame.reindex(columns=names).astype(object) for table in used], ignore_index=True)
    for column in sorted(columns, key=lambda column: not column.is_feature):
        if column.type in WITH_LEVELS:
            words = words_of(frame[column.name], column.missing).to_frame(column.name)
            _collect_levels(words, column.is_feature, clients, problems, collected)
    collected += _warnings(schema, parts, clients, patients)
    counts = Counter(client for client, _ in {*zip(clients, patients or (), strict=False)})
    sites = tuple(
        _site(schema, frame[[owner == name for owner in clients]], name, None if patients is None else counts[name])
        for name in dict.fromkeys(clients)
    )
    problems += _refusals(tables, names, sites)
    return Description(sites, tuple(problems), tuple(dict.fromkeys(collected)), schema, forms)


def _read(
    files: Sequence[Path], roles: Columns, reading: ReadOptions
) -> tuple[list[Table], list[Table], dict[Path, InputError]]:
    """Read files with their targets as texts, and with plain numbers as targets; and list those that fail."""
    tables, plain, failed = list[Table](), list[Table](), dict[Path, InputError]()
    for path in files:
        try:
            table = Table.read(path, [*roles.targets, *roles.texts], reading)
            plain.append(table.prepared(roles.words, reading))
            tables.append(table)
        except InputError as error:
            failed[path] = error
    return tables, plain, failed


def _refusals(tables: Sequence[Table], needed: Sequence[str], sites: Sequence[SiteSummary]) -> list[InputError]:
    """List the needed columns that only some files have, and clients that cannot be split.

    It names the files with the column or those without it, whichever are fewer. A client of one row, or of one patient
    if a column names the patients, cannot be split.
    """
    found, own = list[InputError](), {table.place: [str(name) for name in table.frame] for table in tables}
    for name in needed:
        having = [place for place, names in own.items() if name in names]
        lacking = [place for place in own if place not in having]
        if not having or not lacking:
            continue
        # Another spelling is a column that some of the files have in place of this one.
        others = set().union(*(own[place] for place in lacking)).difference(*(own[place] for place in having))
        hint = suggestion(name, sorted(others))
        if len(having) < len(lacking):
            text = f"only {listing(having, 'file')} has the column '{name}'"
        else:
            text = f"{listing(lacking, 'file')} has no column '{name}', which other files have"
        text += f". {hint}" if hint else ": give all files the same columns"
        found.append(InputError(text, code="missing-column", field=name))
    counts = {site.name: (site.rows, "row") if site.patients is None else (site.patients, "patient") for site in sites}
    return found + [too_few(f"client '{name}' has 1 {unit}") for name, (count, unit) in counts.items() if count == 1]


def _collect_levels(
    words: pd.DataFrame, is_feature: bool, clients: Sequence[str], problems: list[InputError], notices: list[Notice]
) -> None:
    """Add values that are spelt in two ways, and values of a single client."""
    empty = words.iloc[:, :0]
    try:
        check_levels(words, clients)
        notices += level_notices(words if is_feature else empty, empty if is_feature else words, clients)
    except InputError as error:
        problems.append(error)


def _warnings(
    schema: TableSchema, parts: Sequence[SchemaRows], clients: Sequence[str], patients: Sequence[str] | None
) -> tuple[Notice, ...]:
    """List likely errors in the rows without wrong values."""
    good = ~np.concatenate([part.wrong for part in parts])
    owners = np.array(clients, dtype=object)[good]
    inputs = np.concatenate([part.inputs for part in parts])[good]
    targets, _ = target_tensor(schema, np.concatenate([part.targets for part in parts])[good])
    units = None if patients is None else numbered(patients).numpy()[good]
    # A client with a single row, or patient, cannot be split.
    several = {
        name
        for name in set(owners.tolist())
        if ((owners == name).sum() if units is None else len(np.unique(units[owners == name]))) > 1
    }
    used = np.array([name in several for name in owners], dtype=bool)
    if not used.any():
        return ()
    x, y = torch.from_numpy(inputs[used]), targets[torch.from_numpy(used)]
    units = None if units is None else units[used]
    split = split_groups(owners[used], None if schema.classes is None else y.numpy(), Key(0), patients=units)
    # Do not standardise, because standardised rows do not show which values are missing.
    data = ClientData(
        x, y, as_tensors(split.train), x, y, as_tensors(split.test), split.names, schema.classes,
        columns=schema.features, schema=schema, patients=None if units is None else torch.from_numpy(units),
    )  # fmt: skip
    return tuple(notice for notice in data_warnings(data) if notice.code != "not-standardised")


def _site(schema: TableSchema, frame: pd.DataFrame, name: str, patients: int | None) -> SiteSummary:
    import pandas as pd

    columns = dict[str, ColumnSummary]()
    for column in schema.columns:
        if column.name not in frame.columns:
            continue
        texts = stripped(frame[column.name])
        is_missing = texts.isna() | texts.isin(column.missing)
        known, count = texts[~is_missing], int(is_missing.sum())
        if column.type in WITH_LEVELS:
            counts = known.map(level_text).value_counts()
            # Values that the schema omits come after its levels.
            beside = [str(text) for text in sorted(counts.index) if text not in column.levels]
            found = {level: int(counts.get(level, 0)) for level in (*column.levels, *beside)}
            columns[column.name] = ColumnSummary(column.type, count, found)
            continue
        bounds, different = None, None
        if column.type in NUMBERS:
            numbers = pd.to_numeric(known, errors="coerce")
            if column.type == "whole number":  # in which truth values are 0 and 1
                numbers = numbers.fillna(known[numbers.isna()].map(level_text).map(BITS).astype(float))
                different = numbers.nunique()
            numbers = numbers.dropna()
            bounds = (f"{numbers.min():g}", f"{numbers.max():g}") if len(numbers) else None
        else:
            days = days_of(known, column.date_order).values
            days = days[~np.isnan(days)]
            if len(days):
                low, high = (str(pd.Timestamp(day, unit="D").date()) for day in (days.min(), days.max()))
                bounds = low, high
        columns[column.name] = ColumnSummary(column.type, count, None, bounds, different)
    positive, classes = None, schema.classes
    if classes is not None and len(classes) == 2:
        positive = (columns[schema.targets[0].name].levels or {}).get(classes[1], 0)
    return SiteSummary(name, len(frame), positive, columns, patients)
