"""The command's grammar and its exit codes."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, cast

import typer

from drfl.cli import deploy, signals
from drfl.cli import options as o
from drfl.cli.options import expand
from drfl.core.errors import DivergedError, DrflError, InputError, StoppedError, unknown
from drfl.core.plugins import plugins
from drfl.core.screen import say

app = typer.Typer(
    name="drfl",
    help="Distributionally robust federated learning: train one model that serves the worst-off client well.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(deploy.app)


def call(arguments: Sequence[str]) -> int:
    """Run the command and give its exit code.

    A mistake of the user becomes one line on stderr, and with ``--json`` also an object with its code and field on
    stdout.
    """
    as_json = "--json" in arguments
    try:
        add_plugins(arguments)
        code = app(expand(arguments), prog_name="drfl", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except DivergedError as error:
        return _complain(error, 1, as_json)
    except StoppedError as error:
        return _complain(error, error.exit_code, as_json)
    except InputError as error:
        return _complain(error, 2, as_json)
    except DrflError as error:
        return _complain(error, 1, as_json)
    except (KeyboardInterrupt, typer.Abort):
        stopped = StoppedError()
        return _complain(stopped, stopped.exit_code, as_json)
    except typer.Exit as error:
        return error.exit_code
    except Exception as error:
        known = _known(error)
        if known is None:
            raise
        return _complain(known, 2, as_json)


def add_plugins(arguments: Sequence[str]) -> None:
    """Add the commands of other packages, if these arguments can need one.

    The search for entry points takes longer than everything else before a command starts. So drfl searches only to list
    all commands, and if it does not know the command.
    """
    first = arguments[0] if arguments else "--help"
    own = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    own.add("deploy")
    if first in own or (first.startswith("-") and first != "--help"):
        return
    for name, function in plugins("drfl.commands"):
        if name not in own:
            app.command(name)(cast("Callable[..., int]", function))


def _known(error: Exception) -> DrflError | None:
    """The line for what typer, the system or the memory refuses; None for what is a fault of drfl's."""
    if isinstance(error, MemoryError):
        return InputError("not enough memory", code="out-of-memory")
    if isinstance(error, RecursionError):
        return InputError("the input is nested too deeply", code="nested-too-deeply")
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        name = str(error.filename)[:100]
        return InputError(f"a path is too long: {name}…", code="file-unreadable", field=name)
    # typer has its own copy of click since 0.16, so the usage errors of old and new are told by what they can do
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        return None
    message: str = format_message()
    context: typer.Context | None = getattr(error, "ctx", None)
    command = re.match(r"No such command '(.*?)'", message)
    if command and context is not None:
        return unknown("command", command[1], getattr(context.command, "commands", ()))
    path = "drfl" if context is None else context.command_path
    return InputError(f"{message.rstrip('.')}; see '{path} --help'", code="usage")


def _complain(error: DrflError, exit_code: int, as_json: bool) -> int:
    message = " ".join(str(error).split())
    say(f"drfl: {message}", err=True)
    if as_json:
        print(json.dumps({"error": {"code": error.code, "field": error.field, "message": message}}))
    return exit_code


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        say(f"drfl {version('drfl')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Distributionally robust federated learning: train one model that serves the worst-off client well."""


@app.command()
@o.command(o.RunOptions)
def run(options: o.RunOptions) -> int:
    """Train with one algorithm and write a run directory."""
    from drfl.cli.run import run_command

    with signals.as_stopped():
        return run_command(options)


@app.command()
@o.command(o.CompareOptions)
def compare(options: o.CompareOptions) -> int:
    """Train with several algorithms on the same partitions and seeds, and print mean ± std, the best in bold."""
    from drfl.cli.compare import compare_command

    with signals.as_stopped():
        return compare_command(options)


@app.command()
@o.command(o.ReportOptions)
def report(options: o.ReportOptions) -> int:
    """Write one report on runs that have ended, whatever made them: an HTML page, or with --pdf a PDF."""
    from drfl.cli.report import report_command

    with signals.as_stopped():
        return report_command(options)


@app.command()
@o.command(o.AssessOptions)
def assess(options: o.AssessOptions) -> int:
    """Say what finished runs allow to be said: how bad the worst client is, who it could be, what a difference shows.

    Several runs are compared with the first one named: on the same test rows, and over seeds.
    """
    from drfl.cli.assess import assess_command

    with signals.as_stopped():
        return assess_command(options)


@app.command()
@o.command(o.TuneOptions)
def tune(options: o.TuneOptions) -> int:
    """Choose hyperparameters: the same number of trials per algorithm, scored on validation data.

    Finished trials are kept: after an interruption the same command continues.
    """
    from drfl.cli.tune import tune_command

    with signals.as_stopped():
        return tune_command(options)


@app.command()
def new(directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")]) -> int:
    """Write a small study that runs: a table, a model, an algorithm with its tests, and a TOML file."""
    from drfl.cli.new import write

    with signals.as_stopped():
        write(directory)
        say(f"{directory}: written; cd there, and drfl compare study.toml; its README.md says more")
    return 0


@app.command()
def algorithms(as_json: o.Json = False) -> None:
    """List the algorithms with their parameters and defaults."""
    from drfl.cli.list_registries import algorithms_command

    with signals.as_stopped():
        algorithms_command(as_json)


@app.command()
def datasets(as_json: o.Json = False) -> None:
    """List the data sets and where their files were found."""
    from drfl.cli.list_registries import datasets_command

    with signals.as_stopped():
        datasets_command(as_json)
