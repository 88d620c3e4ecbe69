"""The commands of ``drfl data``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from drfl.cli import signals
from drfl.cli.command_help import Command, CommandGroup
from drfl.core.screen import say

if TYPE_CHECKING:
    from drfl.core.errors import InputError, Notice
    from drfl.data.dataset import TaskName
    from drfl.data.table_description import Description
    from drfl.data.tables.schema import TableSchema
    from drfl.data.tables.text_form import TextForm

app = typer.Typer(
    name="data",
    cls=CommandGroup,
    help="Describe and check tables before training.\n\nA schema states what each column holds, for all sites.",
    no_args_is_help=True,
)

FEW_VALUES = 10
"""A column with at most this many whole numbers may hold codes, such as those of wards, so their number is shown."""

# The commands below import what they need when they run, because pandas takes a second to load.

Paths = Annotated[
    list[Path], typer.Argument(metavar="PATHS", help="Tables (CSV, TSV, Parquet, Excel, npz), or folders of them")
]
Json = Annotated[bool, typer.Option("--json", help="Print a single JSON object on stdout")]
Delimiter = Annotated[
    str | None, typer.Option(help="Character between cells in text files, or 'tab' (default: detected)")
]
Decimal = Annotated[str | None, typer.Option(help="Decimal mark, . or , (default: detected)")]
Thousands = Annotated[str | None, typer.Option(help="Mark between thousands: , . ' or a blank (default: detected)")]
Encoding = Annotated[str | None, typer.Option(help="Encoding of text files, such as latin-1 (default: detected)")]
Missing = Annotated[list[str] | None, typer.Option(metavar="WORD", help="Text that means a missing value; repeatable")]
Strict = Annotated[bool, typer.Option("--strict", help="Treat warnings about the data as errors")]

WRONG = 2
"""Exit code if a table does not conform to its schema, or if there are warnings and --strict is given."""


@app.command(cls=Command)
def describe(
    paths: Paths,
    target: Annotated[list[str], typer.Option(help="Column to predict, or a condition such as 'age > 60'; repeatable")],
    group: Annotated[
        str | None, typer.Option(help="Column that names the client of each row (default: one client per file)")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help="Column to exclude, such as a name; repeatable")] = None,
    patient: Annotated[str | None, typer.Option(help="Column that names the patient of each row")] = None,
    task: Annotated[
        str | None, typer.Option(help="classification, regression or multi-label (default: by the target)")
    ] = None,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    encoding: Encoding = None,
    missing: Missing = None,
    out: Annotated[Path | None, typer.Option(help="Write the proposed schema to this TOML file")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of --out")] = False,
    strict: Strict = False,
    as_json: Json = False,
) -> int:
    """Show each client's columns and all problems, and propose a schema.

    Before you send the schema to other sites, check its types, levels, codes for missing values, units and ranges.
    The exit code is 2 if no file could be read, and with --strict also if there are problems or warnings.
    """
    with signals.raise_on_signal():
        from drfl.core.errors import InputError, complete_listings, unknown
        from drfl.core.output_files import check_output
        from drfl.data.table_description import describe as describe_tables
        from drfl.data.tables.schema import TASKS
        from drfl.data.tables.text_form import ReadOptions

        if out is not None and out.exists() and not force:
            raise InputError(
                f"{out} exists: choose another file, or replace it with --force",
                code="already-exists",
                field=str(out),
            )
        if task is not None and task not in TASKS:
            raise unknown("task", task, TASKS)
        reading = ReadOptions(delimiter, decimal, thousands, encoding, tuple(missing or ()))
        with complete_listings():
            found = describe_tables(paths, target, group, drop or (), cast("TaskName | None", task), patient, reading)
        if found.schema is not None and out is not None:
            check_output(out, "--out", overwrite=True, inputs=[Path(name) for name in found.files])
            found.schema.write(out)
        if as_json:
            content = {
                "clients": [
                    {
                        "name": site.name,
                        "rows": site.rows,
                        "patients": site.patients,
                        "positive": site.positive,
                        "columns": {name: column._asdict() for name, column in site.columns.items()},
                    }
                    for site in found.sites
                ],
                "files": [
                    {"file": path, **({} if form is None else _form(form))} for path, form in found.files.items()
                ],
                "missing": {} if found.schema is None else _missing_words(found.schema),
                "problems": [_entry(problem) for problem in found.problems],
                "warnings": [_entry(notice) for notice in found.notices],
                "schema": None if out is None or found.schema is None else str(out),
                "digest": None if found.schema is None else found.schema.digest,
            }
            print(json.dumps(content))
        else:
            _print(found, out)
    return WRONG if not found.files or (strict and (found.problems or found.notices)) else 0


@app.command(cls=Command)
def check(
    paths: Paths,
    schema: Annotated[Path, typer.Option(help="Schema, as written by 'drfl data describe'")],
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    encoding: Encoding = None,
    missing: Missing = None,
    strict: Strict = False,
    as_json: Json = False,
) -> int:
    """Check tables against a schema, and list every problem.

    The exit code is 0 if there are no problems, and 2 otherwise. With --strict, drfl also checks tables without
    problems for likely errors, and prints these as warnings.
    """
    with signals.raise_on_signal():
        from drfl.core.errors import complete_listings
        from drfl.data.table_description import check_files
        from drfl.data.tables.schema import TableSchema
        from drfl.data.tables.text_form import ReadOptions

        reading = ReadOptions(delimiter, decimal, thousands, encoding, tuple(missing or ()))
        with complete_listings():
            checks, notices = check_files(paths, TableSchema.read(schema), reading, strict=strict)
        good = not notices and not any(found.problems for found in checks)
        if as_json:
            files = [
                {
                    "file": str(found.path),
                    "rows": found.rows,
                    **({} if found.form is None else _form(found.form)),
                    "problems": [_entry(problem) for problem in found.problems],
                }
                for found in checks
            ]
            print(json.dumps({"ok": good, "files": files, "warnings": [_entry(notice) for notice in notices]}))
            return 0 if good else WRONG
        for found in checks:
            if not found.problems:
                read = "" if found.form is None else f", read as {found.form.words()}"
                say(f"ok       {found.path}: {found.rows:,} rows{read}")
            for problem in found.problems:
                say(f"problem  {problem}")
        for notice in notices:
            say(f"warning  {notice}")
    return 0 if good else WRONG


def _entry(message: InputError | Notice) -> dict[str, str | None]:
    return {"code": message.code, "field": message.field, "message": str(message)}


def _form(form: TextForm) -> dict[str, str]:
    return {name: getattr(form, name) for name in ("delimiter", "decimal", "thousands", "encoding")}


def _missing_words(schema: TableSchema) -> dict[str, list[str]]:
    """Return the words that mean "missing" in each column, "" for blank cells."""
    words = {column.name: [*column.missing, *schema.reading.missing] for column in schema.columns if column.missing}
    return {name: [*dict.fromkeys(texts)] for name, texts in words.items()}


def _print(found: Description, out: Path | None) -> None:
    # Sites have many files, so list them by how they were read, and columns by their words for missing values.
    by_form: dict[str, list[str]] = {}
    for path, form in found.files.items():
        by_form.setdefault("cells with types" if form is None else form.words(), []).append(Path(path).name)
    for words, names in by_form.items():
        say(f"read as {words}: {', '.join(names)}")
    if found.schema is not None:
        by_words: dict[str, list[str]] = {}
        for name, texts in _missing_words(found.schema).items():
            shown = ", ".join(f"'{text}'" if text else "blank" for text in texts)
            by_words.setdefault(shown, []).append(name)
        for words, names in by_words.items():
            say(f"read as missing: {words}, in {', '.join(names)}")
    positive = None if found.schema is None or found.schema.classes is None else found.schema.classes[-1]
    for site in found.sites:
        of_class = "" if site.positive is None else f", {site.positive:,} of class '{positive}'"
        of_patients = "" if site.patients is None else f" of {site.patients:,} patients"
        say(f"{site.name}: {site.rows:,} rows{of_patients}{of_class}")
        width = max(map(len, site.columns))
        for name, column in site.columns.items():
            text = "no values" if column.range is None else f"{column.range[0]} to {column.range[1]}"
            if 2 < (column.values or 0) <= FEW_VALUES:
                text += f", {column.values} values"
            if column.levels is not None:
                text = ", ".join(f"{level} {count:,}" for level, count in column.levels.items())
            missing = f"; {column.missing:,} missing" if column.missing else ""
            say(f"  {name:{width}}  {column.type:12}  {text}{missing}")
    for problem in found.problems:
        say(f"problem  {problem}")
    for notice in found.notices:
        say(f"warning  {notice}")
    if found.schema is None:
        say("no schema: no file could be read")
    elif out is not None:
        features = len(found.schema.features)
        say(f"{out}: written, {len(found.schema.columns)} columns, {features} features. Check it before you use it")
