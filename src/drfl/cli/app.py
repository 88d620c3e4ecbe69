"""The command's grammar and its exit codes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, cast

import typer

from drfl.cli import deploy, signals
from drfl.cli import options as e
from drfl.cli import options as o
from drfl.cli.options import expand
from drfl.errors import DivergedError, DrflError, InputError, StoppedError, unknown

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
    """Run the command and give its exit code; a mistake of the user becomes one line on stderr."""
    try:
        code = app(expand(arguments), prog_name="drfl", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except DivergedError as error:
        return _complain(error, 1)
    except StoppedError as error:
        return _complain(error, signals.INTERRUPTED)
    except InputError as error:
        return _complain(error, 2)
    except DrflError as error:
        return _complain(error, 1)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", signals.INTERRUPTED)
    except typer.Exit as error:
        return error.exit_code
    except Exception as error:
        # typer has its own copy of click since 0.16, so the usage errors of old and new are told by what they can do
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        return _complain(_usage(message(), getattr(error, "ctx", None)), 2)


def _usage(message: str, context: typer.Context | None) -> object:
    """typer's sentence on a wrong call, with the nearest name or the way to help."""
    command = re.match(r"No such command '(.*?)'", message)
    if command and context is not None:
        return unknown("command", command[1], getattr(context.command, "commands", ()))
    return f"{message.rstrip('.')}; see '{'drfl' if context is None else context.command_path} --help'"


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


def _given(names: Mapping[str, object]) -> dict[str, object]:
    """A command's own arguments and the shared ones, by name."""
    own = dict(names)
    shared = cast("dict[str, object]", own.pop("shared"))
    return {**own, **shared}


@app.command()
@o.taking(o.JOB, o.TRIAL, o.RESULTS)
def run(
    config: o.File = None,
    algorithm: Annotated[str | None, typer.Option(help="Algorithm; see 'drfl algorithms'. (default: DRDM)")] = None,
    seed: Annotated[int | None, typer.Option(help="Root of all randomness. (default: 0)")] = None,
    checkpoint_every: o.CheckpointEvery = None,
    checkpoint_key: o.CheckpointKey = None,
    resume: o.Resume = False,
    **shared: object,
) -> int:
    """Train with one algorithm and write a run directory."""
    given = _given(locals())
    from drfl.cli.run import run_command

    with signals.as_stopped():
        return run_command(given)


@app.command()
@o.taking(o.JOB, o.TRIAL, o.RESULTS)
def compare(
    config: o.File = None,
    names: Annotated[
        str | None,
        typer.Option("--algorithms", help="Names with commas between. (default: those of the file, else all)"),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="How many (from 0), a list 0,1,2 or a range 10..14. (default: 5)")
    ] = None,
    checkpoint_every: o.CheckpointEvery = None,
    resume: o.Resume = False,
    **shared: object,
) -> int:
    """Train with several algorithms on the same partitions and seeds, and print mean ± std, the best in bold."""
    given = _given(locals())
    from drfl.cli.compare import compare_command

    with signals.as_stopped():
        return compare_command(given)


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Tables and figures, e.g. drdm-table-3. (default: list them)")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Run all of them.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few repeats and rounds; results go to a folder apart.")
    ] = False,
    repeats: Annotated[int | None, typer.Option(min=1, help="Seeds. (default: the specification's)")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds. (default: the specification's)")] = None,
    settings: Annotated[str | None, typer.Option(help="Some settings only, e.g. 'alpha = 0.1, alpha = 0.5'.")] = None,
    data: Annotated[
        str, typer.Option(help="original, stand-in, or auto: the paper's data where they can be had.")
    ] = "auto",
    tuned: Annotated[Path | None, typer.Option(help="Folder of hyperparameter files that 'drfl tune' made.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. (default: as many as cores)")] = None,
    data_dir: o.DataDir = None,
    device: o.Device = None,
    out: Annotated[Path | None, typer.Option(help="Folder of results. (default: experiments/results)")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a result of another size.")] = False,
    as_json: o.Json = False,
) -> int:
    """List the papers' tables and figures, or make some of them: ours beside the paper's.

    Finished cells are kept: after an interruption the same command goes on where it was.
    """
    given = dict(locals())
    from drfl.cli.reproduce import reproduce_command

    with signals.as_stopped():
        return reproduce_command(given)


@app.command()
@o.taking(o.JOB, o.RESULTS)
def energy(
    config: o.File = None,
    algorithm: e.AlgorithmName = None,
    target_worst: e.TargetWorst = None,
    steps: e.StepsList = None,
    seeds: e.SeedsText = None,
    rounds: e.MostRounds = None,
    measurements: e.Measurements = None,
    runs: e.RunsList = None,
    snr: e.Snr = None,
    bandwidth: e.Bandwidth = None,
    fading: e.Fading = False,
    rate_min: e.RateMin = None,
    power: e.Power = None,
    downlink: e.Downlink = None,
    frequency: e.Frequency = None,
    capacitance: e.Capacitance = None,
    cycles_per_sample: e.CyclesPerSample = None,
    joules_per_step: e.JoulesPerStep = None,
    **shared: object,
) -> int:
    """Find the number of local steps that reaches a target with the least energy, by SNR and bandwidth."""
    given = _given(locals())
    from drfl.cli.energy import energy_command

    with signals.as_stopped():
        return energy_command(given)


@app.command()
def tune(
    job: Annotated[str, typer.Argument(help="A job of the papers, e.g. mnist-linear, or a TOML file as for compare.")],
    names: Annotated[
        str | None,
        typer.Option("--algorithms", help="Names with commas between. (default: those of the file, else all)"),
    ] = None,
    trials: Annotated[
        int, typer.Option(min=1, max=10_000, help="Settings tried for each algorithm, the defaults first.")
    ] = 24,
    seeds: Annotated[int, typer.Option(min=1, max=10_000, help="Partitions and initial models of each trial.")] = 3,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of communication. (default: the job's)")] = None,
    metric: Annotated[
        str, typer.Option(help="worst_accuracy, worst20_accuracy or avg_accuracy, on validation data.")
    ] = "worst_accuracy",
    stand_in: Annotated[
        bool, typer.Option("--stand-in", help="Tune on what is run where the paper's data cannot be had.")
    ] = False,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE of the job, as in its file. Repeatable.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. (default: as many as cores)")] = None,
    data_dir: o.DataDir = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of results. (default: experiments/results/tuning/JOB)")
    ] = None,
    as_json: o.Json = False,
) -> int:
    """Choose hyperparameters: the same number of trials per algorithm, scored on validation data.

    Finished trials are kept: after an interruption the same command goes on where it was.
    """
    given = dict(locals())
    from drfl.cli.tune import tune_command

    with signals.as_stopped():
        return tune_command(given)


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
