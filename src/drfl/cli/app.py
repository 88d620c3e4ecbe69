"""The command's grammar and its exit codes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from drfl.cli import interrupt
from drfl.cli import options as o
from drfl.errors import DivergedError, DrflError, InputError, StoppedError, unknown

app = typer.Typer(
    name="drfl",
    help="Distributionally robust federated learning: train one model that serves the worst-off client well.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def call(arguments: Sequence[str]) -> int:
    """Run the command and give its exit code; a mistake of the user becomes one line on stderr."""
    try:
        code = app(list(arguments), prog_name="drfl", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except DivergedError as error:
        return _complain(error, 1)
    except StoppedError as error:
        return _complain(error, interrupt.INTERRUPTED)
    except InputError as error:
        return _complain(error, 2)
    except DrflError as error:
        return _complain(error, 1)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", interrupt.INTERRUPTED)
    except typer.Exit as error:
        return error.exit_code
    except Exception as error:
        # typer has its own copy of click since 0.16, so the usage errors of old and new are told by what they can do
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        return _complain(_usage(message()), 2)


def _usage(message: str) -> object:
    """typer's sentence on a wrong call, with the nearest name or the way to help."""
    command = re.match(r"No such command '(.*?)'", message)
    if command:
        return unknown(
            "command", command[1], [info.callback.__name__ for info in app.registered_commands if info.callback]
        )
    return f"{message.rstrip('.')}; see 'drfl --help'"


def _complain(message: object, code: int) -> int:
    typer.echo(f"drfl: {' '.join(str(message).split())}", err=True)
    return code


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"drfl {version('drfl')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Distributionally robust federated learning: train one model that serves the worst-off client well."""


@app.command()
def run(
    config: o.File = None,
    algorithm: Annotated[str | None, typer.Option(help="Algorithm; see 'drfl algorithms'. (default: DRDM)")] = None,
    seed: Annotated[int | None, typer.Option(help="Root of all randomness. (default: 0)")] = None,
    dataset: o.Dataset = None,
    data_dir: o.DataDir = None,
    partition: o.PartitionName = None,
    clients: o.Clients = None,
    alpha: o.Alpha = None,
    sigma: o.Sigma = None,
    model: o.Model = None,
    cohort: o.CohortSize = None,
    steps: o.Steps = None,
    batch: o.Batch = None,
    lr: o.Lr = None,
    rounds: o.Rounds = None,
    param: o.Param = None,
    evaluate_every: o.EvaluateEvery = None,
    until: o.Until = None,
    certificate: o.CertificateOption = None,
    engine: o.EngineName = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    precision: o.Precision = None,
    threads: o.Threads = None,
    out: o.Out = None,
    overwrite: o.Overwrite = False,
    as_json: o.Json = False,
) -> int:
    """Train with one algorithm and write a run directory."""
    given = dict(locals())
    from drfl.cli.run import run_command

    with interrupt.as_stopped():
        return run_command(given)


@app.command()
def compare(
    config: o.File = None,
    names: Annotated[
        str | None,
        typer.Option("--algorithms", help="Names with commas between. (default: those of the file, else all)"),
    ] = None,
    seeds: Annotated[str, typer.Option(help="How many (from 0), a list 0,1,2 or a range 10..14.")] = "5",
    dataset: o.Dataset = None,
    data_dir: o.DataDir = None,
    partition: o.PartitionName = None,
    clients: o.Clients = None,
    alpha: o.Alpha = None,
    sigma: o.Sigma = None,
    model: o.Model = None,
    cohort: o.CohortSize = None,
    steps: o.Steps = None,
    batch: o.Batch = None,
    lr: o.Lr = None,
    rounds: o.Rounds = None,
    param: o.Param = None,
    evaluate_every: o.EvaluateEvery = None,
    until: o.Until = None,
    certificate: o.CertificateOption = None,
    engine: o.EngineName = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    precision: o.Precision = None,
    threads: o.Threads = None,
    out: o.Out = None,
    overwrite: o.Overwrite = False,
    as_json: o.Json = False,
) -> int:
    """Train with several algorithms on the same partitions and seeds, and print mean ± std, the best in bold."""
    given = dict(locals())
    from drfl.cli.compare import compare_command

    with interrupt.as_stopped():
        return compare_command(given)


@app.command()
def algorithms(as_json: o.Json = False) -> None:
    """List the algorithms with their parameters and defaults."""
    from drfl.cli.lists import algorithms_command

    with interrupt.as_stopped():
        algorithms_command(as_json)


@app.command()
def datasets(as_json: o.Json = False) -> None:
    """List the data sets and where their files were found."""
    from drfl.cli.lists import datasets_command

    with interrupt.as_stopped():
        datasets_command(as_json)
