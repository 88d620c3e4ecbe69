"""The commands of ``drfl`` and their exit codes."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.main import get_command
from typer.models import CommandInfo

from drfl.cli import data, deploy, model, signals
from drfl.cli import options as o
from drfl.cli.command_help import Command, CommandGroup
from drfl.cli.options import expand
from drfl.core import screen
from drfl.core.errors import DivergedError, DrflError, InputError, StoppedError, suggestion, unknown
from drfl.core.plugins import plugins
from drfl.core.screen import say

TRAIN, RESULTS, START, DEPLOY, OTHERS = "Training", "Results", "Getting started", "Deployment", "Plug-ins"
"""Groups of commands in ``drfl --help``."""

app = typer.Typer(
    name="drfl",
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, rich_help_panel=START)
app.add_typer(model.app, rich_help_panel=RESULTS)
app.add_typer(deploy.app, rich_help_panel=DEPLOY)


def call(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code.

    A user's mistake is reported in one line on stderr. With ``--json`` an object with its code and field is also
    printed on stdout.
    """
    # The arguments themselves may be invalid, so look at the words instead of parsing them.
    as_json = "--json" in arguments
    screen.warnings.clear()
    try:
        add_plugins(arguments)
        command = _build(tuple(app.registered_commands))
        # Messages name settings by the options of the command that is called. A setting that may come from a TOML file
        # keeps the name that it has there, unless its option was given.
        called: Any = command
        for word in arguments:
            if word not in getattr(called, "commands", {}):
                break
            called = called.commands[word]
        options = [parameter for parameter in called.params if parameter.param_type_name == "option"]
        if any(word.endswith(".toml") and not before.startswith("--") for before, word in pairwise(arguments)):
            given = {word.split("=")[0] for word in arguments}
            options = [p for p in options if p.name not in o.ABOUT or not given.isdisjoint(p.opts)]
        screen.option_names.update({parameter.name: parameter.opts[0] for parameter in options})
        code = command(expand(arguments), prog_name="drfl", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except DivergedError as error:
        return _complain(error, 1, as_json)
    except StoppedError as error:
        return _complain(error, error.exit_code, as_json)
    except InputError as error:
        return _complain(error, 2, as_json)
    except DrflError as error:
        # A full disk ends every command alike, whichever file is the first that does not fit.
        return _complain(error, 2 if error.code == "cannot-write" else 1, as_json)
    except (KeyboardInterrupt, typer.Abort):
        stopped = StoppedError()
        return _complain(stopped, stopped.exit_code, as_json)
    except typer.Exit as error:
        return error.exit_code
    except Exception as error:
        expected = _as_input_error(error)
        if expected is None:
            raise
        return _complain(expected, 2, as_json)
    finally:
        screen.option_names.clear()


@lru_cache(maxsize=1)
def _build(registered: tuple[CommandInfo, ...]) -> Callable[..., object]:
    """Build the command, and rebuild it only if plug-ins have registered more, because building is slow."""
    return get_command(app)


def add_plugins(arguments: Sequence[str]) -> None:
    """Add the commands of other packages if these arguments may need one.

    The search for entry points takes longer than everything else before a command starts. Therefore drfl searches only
    if it lists all commands or does not know the command.
    """
    first = arguments[0] if arguments else "--help"
    names = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    names |= {"data", "deploy", "model"}
    if first in names or (first.startswith("-") and first not in ("--help", "--help-all")):
        return
    for name, function in plugins("drfl.commands"):
        if name not in names:
            app.command(name, cls=Command, rich_help_panel=OTHERS)(cast("Callable[..., int]", function))


def _as_input_error(error: Exception) -> DrflError | None:
    """Return the message for an error of typer, the system or the memory; None for a fault in drfl."""
    if isinstance(error, MemoryError):
        return InputError("not enough memory", code="out-of-memory")
    if isinstance(error, RecursionError):
        return InputError("the input is nested too deeply", code="nested-too-deeply")
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        name = str(error.filename)[:100]
        return InputError(f"a path is too long: {name}…", code="file-unreadable", field=name)
    # Newer versions of typer have their own copy of click, so recognise usage errors of both by their method.
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        return None
    message: str = format_message()
    context: typer.Context | None = getattr(error, "ctx", None)
    path = "drfl" if context is None else context.command_path
    commands = () if context is None else getattr(context.command, "commands", ())
    if command := re.match(r"No such command '(.*?)'", message):
        # 'drfl show' may mean the command of a group, 'drfl model show'.
        for group, its in commands.items() if isinstance(commands, dict) else ():
            if command[1] in getattr(its, "commands", ()):
                text = f"unknown command '{command[1]}'. Did you mean '{path} {group} {command[1]}'?"
                return InputError(text, code="unknown-name", field="command")
        return unknown("command", command[1], commands)
    if option := re.match(r"No such option:? '?(-[\w-]+)", message):
        similar = suggestion(option[1], getattr(error, "possibilities", None) or ())
        message = " ".join(filter(None, (f"unknown option '{option[1]}'.", similar)))
    elif value := re.match(r"Invalid value for '(-[\w-]+)'.*?: '(.*)' is not a valid (float|integer)", message):
        kind = "a number" if value[3] == "float" else "a whole number"
        message = f"{value[1]} must be {kind}, got '{value[2]}'"
    elif not message.strip():
        # typer has printed the help of a group of commands.
        return InputError(f"a command is missing. Choose from {', '.join(commands)}", code="usage")
    end = "" if message.endswith(("?", ".")) else "."
    return InputError(f"{message[0].lower()}{message[1:]}{end} See '{path} --help'", code="usage")


def _complain(error: DrflError, exit_code: int, as_json: bool) -> int:
    # One line, whatever a file or a library has put into the text.
    message = screen.with_options(" ".join(str(error).split()))
    say(f"drfl: {message}", err=True)
    if as_json:
        found = {"code": error.code, "field": error.field, "message": message}
        print(json.dumps({"error": found, "warnings": screen.warnings}))
    return exit_code


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        say(f"drfl {version('drfl')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Distributionally robust federated learning: train one model that serves the worst client well."""


@app.command(cls=Command, rich_help_panel=TRAIN)
@o.command(o.RunOptions)
def run(options: o.RunOptions) -> int:
    """Train with one algorithm and write the results to a folder."""
    from drfl.cli.run import run_command

    with signals.raise_on_signal():
        return run_command(options)


@app.command(cls=Command, rich_help_panel=TRAIN)
@o.command(o.FitOptions)
def fit(options: o.FitOptions) -> int:
    """Choose an algorithm and train one model for the worst client.

    drfl trains six candidates on four fifths of the training rows, and compares them on the rest. It chooses FedAvg
    unless another candidate is better for the worst client, and then trains the chosen one on all training rows.
    """
    from drfl.cli.fit import fit_command

    with signals.raise_on_signal():
        return fit_command(options)


@app.command(cls=Command, rich_help_panel=TRAIN)
@o.command(o.CompareOptions)
def compare(options: o.CompareOptions) -> int:
    """Train with several algorithms on the same data and seeds.

    The table shows mean ± std over the seeds, with the best value in bold.
    """
    from drfl.cli.compare import compare_command

    with signals.raise_on_signal():
        return compare_command(options)


@app.command(cls=Command, rich_help_panel=TRAIN)
@o.command(o.SweepOptions)
def sweep(options: o.SweepOptions) -> int:
    """Train with every combination of some settings.

    The tables 'grid' and 'list' of STUDY name the settings and their values. Finished runs are never repeated.
    All runs share one pool of processes, one table and one report.
    """
    from drfl.cli.sweep import sweep_command

    with signals.raise_on_signal():
        return sweep_command(options)


@app.command(cls=Command, rich_help_panel=RESULTS)
@o.command(o.ReportOptions)
def report(options: o.ReportOptions) -> int:
    """Write one report on finished runs, as HTML or PDF."""
    from drfl.cli.report import report_command

    with signals.raise_on_signal():
        return report_command(options)


@app.command(cls=Command, rich_help_panel=RESULTS)
@o.command(o.AssessOptions)
def assess(options: o.AssessOptions) -> int:
    """Estimate the worst client's score, with confidence intervals.

    The output names the clients that could be the worst.
    With several runs, drfl compares the first with each of the others, on the same test rows and over seeds.
    """
    from drfl.cli.assess import assess_command

    with signals.raise_on_signal():
        return assess_command(options)


@app.command(cls=Command, rich_help_panel=RESULTS)
def predict(
    path: model.ModelPath,
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="Table (CSV, TSV, Parquet, Excel or npz)")],
    out: Annotated[Path, typer.Option(help="CSV file to write")] = Path("predictions.csv"),
    schema: model.Schema = None,
    reference: model.Reference = None,
    client: Annotated[str | None, typer.Option(help="Client whose personal model to use")] = None,
    personal: Annotated[
        bool, typer.Option("--personal", help="Use the personal model of each row's client, if it has one")
    ] = False,
    keep: Annotated[list[str] | None, typer.Option(help="Column of the table to keep; repeatable")] = None,
    delimiter: data.Delimiter = None,
    decimal: data.Decimal = None,
    thousands: data.Thousands = None,
    encoding: data.Encoding = None,
    missing: data.Missing = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file")] = False,
) -> int:
    """Predict the target for each row of a table with a trained model.

    The result has a row for each row of the table, with its identifiers and the probability of each class.
    """
    with signals.raise_on_signal():
        from drfl.data.tables.text_form import ReadOptions

        reading = ReadOptions(delimiter, decimal, thousands, encoding, tuple(missing or ()))
        return model.predict_command(
            path, table, out, schema, reference, keep or [], reading, overwrite, client, personal=personal
        )


@app.command(cls=Command, rich_help_panel=RESULTS)
def evaluate(
    path: model.ModelPath,
    tables: Annotated[list[Path], typer.Argument(metavar="TABLES...", help="Labelled tables, or folders of them")],
    group: Annotated[
        str | None, typer.Option(help="Column that names the client (default: the model's, else one client per file)")
    ] = None,
    measure: Annotated[str | None, typer.Option(help="Metric to assess (default: the score of the training)")] = None,
    level: Annotated[float, typer.Option(help="Confidence level of intervals and sets")] = 0.95,
    auc_interval: Annotated[str, typer.Option(help="Intervals of the AUC: delong or distribution-free")] = "delong",
    client: Annotated[str | None, typer.Option(help="Client whose personal model to test on all rows")] = None,
    personal: Annotated[
        bool, typer.Option("--personal", help="Test clients that have a personal model with that model")
    ] = False,
    schema: model.Schema = None,
    reference: model.Reference = None,
    delimiter: data.Delimiter = None,
    decimal: data.Decimal = None,
    thousands: data.Thousands = None,
    encoding: data.Encoding = None,
    missing: data.Missing = None,
    as_json: o.Json = False,
) -> int:
    """Test a trained model on new rows with targets, client by client.

    All rows of the tables are test rows, so they must not contain rows that the model was trained on.
    """
    with signals.raise_on_signal():
        from drfl.assessment.clients import auc_interval_of
        from drfl.cli.assess import MOST, content_of, print_assessment
        from drfl.cli.console import warn
        from drfl.core.errors import listing
        from drfl.data.model import load_models
        from drfl.data.model_store import find_model
        from drfl.data.personal_models import personal_file
        from drfl.data.tables.text_form import ReadOptions
        from drfl.experiments.assess.labelled_table import evaluate_tables
        from drfl.experiments.run.artifacts import json_text

        tested, own = load_models(path, reference, schema=schema, client=client, personal=personal)
        found = evaluate_tables(
            tested, tables, group=group, measure=measure, level=level,
            auc_interval=auc_interval_of(auc_interval), own=own,
            reading=ReadOptions(delimiter, decimal, thousands, encoding, tuple(missing or ())), warn=warn,
        )  # fmt: skip
        beside = ["The intervals are valid only if the model was not trained on these rows."]
        if personal:
            with_own = listing([f"'{name}'" for name in found.names if name in own], "client")
            beside.append(
                f"Clients tested with their personal model: {with_own or 'none'}. Others: the global model."
                if with_own or group is None
                else "Rows of clients with a personal model were tested with it, and others with the global model."
            )
        elif client is not None:
            beside.append(f"All rows were tested with the model for client '{client}'.")
        elif personal_file(find_model(path).file).is_file():
            beside.append("The global model was tested; add --personal to test clients with their personal models.")
        if as_json:
            print(json_text(content_of(found, beside)))
        else:
            print_assessment(found, f"{path}: {found.measure.words}", MOST, beside)
    return 0


@app.command(cls=Command, rich_help_panel=TRAIN)
@o.command(o.TuneOptions)
def tune(options: o.TuneOptions) -> int:
    """Choose hyperparameters by their score on validation data.

    Every algorithm gets the same number of trials.
    Finished trials are stored. After an interruption, run the same command to continue.
    """
    from drfl.cli.tune import tune_command

    with signals.raise_on_signal():
        return tune_command(options)


@app.command(cls=Command, rich_help_panel=START)
def new(directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder")]) -> int:
    """Create a small example study that you can run and change.

    It consists of a table, a model, an algorithm with its tests, and a TOML file.
    """
    from drfl.cli.new import write

    with signals.raise_on_signal():
        write(directory)
        say(f"{directory}: written. Run 'drfl compare study.toml' there; its README.md explains the files.")
    return 0


@app.command(cls=Command, rich_help_panel=START)
def algorithms(as_json: o.Json = False) -> None:
    """List the algorithms with their parameters and defaults."""
    from drfl.cli.list_registries import algorithms_command

    with signals.raise_on_signal():
        algorithms_command(as_json)


@app.command(cls=Command, rich_help_panel=START)
def datasets(as_json: o.Json = False) -> None:
    """List the data sets and the locations of their files."""
    from drfl.cli.list_registries import datasets_command

    with signals.raise_on_signal():
        datasets_command(as_json)
