"""``drfl predict`` and the commands of ``drfl model``."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drfl.cli import signals
from drfl.cli.command_help import Command, CommandGroup
from drfl.core.screen import say

if TYPE_CHECKING:
    from drfl.data.tables.text_form import ReadOptions

app = typer.Typer(
    name="model", cls=CommandGroup, help="Show, export and roll back trained models.", no_args_is_help=True
)

# The commands below import what they need when they run, because torch takes seconds to load.

ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="Model file, or the folder of its run or of a site")]
Schema = Annotated[
    Path | None, typer.Option("--schema", help="Schema of the columns, if the model file has only its digest")
]
Reference = Annotated[
    str | None, typer.Option("--model", help="Your own model as FILE.py:NAME, if the file does not describe it")
]


def predict_command(
    path: Path,
    table: Path,
    out: Path,
    schema: Path | None,
    reference: str | None,
    keep: list[str],
    reading: ReadOptions,
    overwrite: bool,
    client: str | None = None,
    *,
    personal: bool = False,
) -> int:
    """Write the predictions for a table, and return the exit code."""
    from drfl.cli.console import warn
    from drfl.core.errors import InputError
    from drfl.core.output_files import check_output, write_bytes
    from drfl.data.model import load_models
    from drfl.data.model_store import find_model
    from drfl.data.personal_models import personal_weights
    from drfl.data.prediction_table import predictions_csv

    file = find_model(path).file
    check_output(out, "--out", overwrite=overwrite, inputs=[table, file, *([] if schema is None else [schema])])
    if out.suffix.lower() not in ("", ".csv"):
        raise InputError(
            f"predictions are written as CSV, not as {out.suffix}: pass a name ending in .csv to --out",
            code="unsupported-file",
            field=str(out),
        )
    model, own = load_models(path, reference, schema=schema, client=client, personal=personal)
    text = predictions_csv(model, table, keep, reading, warn, own)
    write_bytes(text.encode(), out, private=True)  # rows may be patients
    rows = sum(1 for _ in csv.reader(io.StringIO(text))) - 1  # a cell may contain line breaks
    say(f"{out}: predictions for {rows:,} row{'s' * (rows != 1)}")
    if client is not None:
        which = "personal" if client in personal_weights(file) else "global"
        say(f"used the {which} model for client '{client}'")
    elif personal:
        say("used the personal model of each row's client, if there is one")
    return 0


@app.command(cls=Command)
def show(
    path: ModelPath,
    schema: Schema = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a single JSON object on stdout")] = False,
) -> int:
    """Print the card of a model: its use, its data, its results, and its threshold.

    The sections are those of Mitchell et al. (2019), "Model cards for model reporting".
    """
    with signals.raise_on_signal():
        from drfl.data.model import load_model
        from drfl.data.model_card import card
        from drfl.data.model_store import find_model
        from drfl.data.personal_models import personal_weights

        model, file = load_model(path, schema=schema), find_model(path).file
        found = card(model)
        if as_json:
            print(json.dumps({"card": found, "about": model.about, "personal": [*personal_weights(file)]}))
            return 0
        for section, lines in found.items():
            say(section)
            for line in lines:
                say(f"  {line}")
    return 0


@app.command(cls=Command)
def export(
    path: ModelPath,
    out: Annotated[Path, typer.Option(help="ONNX file to write")] = Path("model.onnx"),
    reference: Reference = None,
    client: Annotated[str | None, typer.Option("--client", help="Export the personal model of this client")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file")] = False,
) -> int:
    """Write a model as ONNX, with its standardisation; needs the extra 'onnx'."""
    with signals.raise_on_signal():
        from drfl.core.output_files import check_output
        from drfl.data.model import load_model
        from drfl.data.model_store import find_model

        check_output(out, "--out", overwrite=overwrite, inputs=[find_model(path).file])
        load_model(path, reference, client=client).to_onnx(out)
        say(f"{out}: written")
    return 0


@app.command(cls=Command)
def rollback(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder of the site, with site.toml")] = Path(),
) -> int:
    """Return to the previous model, at a site.

    The site keeps the current model. Run the command again to return to it.
    """
    with signals.raise_on_signal():
        from drfl.data.model_store import site_store

        now, before = site_store(directory).roll_back()
        say(f"current: model {now.sha256[:16]}, signed {now.signed}, received {now.received}")
        say(f"previous: model {before.sha256[:16]}, signed {before.signed}, received {before.received}")
    return 0
