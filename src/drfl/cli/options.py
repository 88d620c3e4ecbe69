"""The options of each command: one dataclass per command, whose fields are its options.

Options for the settings of a run are made from :mod:`drfl.experiments.config.settings`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar, get_args, get_origin, get_type_hints

import typer

from drfl.experiments.config.settings import (
    ALGORITHM,
    DATA,
    EXECUTION,
    OUTPUT,
    PANELS,
    TRAINING,
    Setting,
    Settings,
    Text,
)

SEVERAL: dict[str, Mapping[str, bool]] = {}
"""Command → its options that take several values → whether these values are numbers; filled by :func:`command`."""


def expand(arguments: Sequence[str]) -> list[str]:
    """Repeat an option that takes several values before each of them, as the parser expects.

    The values end at the next option, at ``--``, or, if numbers are expected, at the first word that is not a number.
    So a file name may follow them. A negative number is a value, not an option. Numbers may also be separated by
    commas. Other words stay as they are.

    Args:
        arguments: The words of the command line, the name of the command first.
    """
    options = SEVERAL.get(arguments[0], {}) if arguments else {}
    words, expanded, position = list(arguments), list[str](), 0
    while position < len(words):
        word = words[position]
        if word == "--":
            return [*expanded, *words[position:]]
        name, equals, first = word.partition("=")
        position += 1
        if name not in options:
            expanded.append(word)
            continue
        values = (first.split(",") if options[name] else [first]) if equals else []
        while position < len(words):
            parts = [words[position]]
            if options[name]:
                parts = words[position].split(",")
                try:
                    list(map(float, parts))
                except ValueError:
                    break
            elif words[position].startswith("-"):
                break
            values += parts
            position += 1
        expanded += [f"{name}={value}" for value in values] or [word]
    return expanded


Options = TypeVar("Options")


def option(
    help_text: str,
    panel: str | None = None,
    *names: str,
    default: str = "",
    common: bool = False,
    metavar: str | None = None,
    at_least: int | None = None,
    at_most: int | None = None,
) -> object:
    """Declare an option of a command that has a short and a long help.

    Args:
        help_text: Explanation, a noun phrase or an imperative.
        panel: Group of options in the long help.
        names: Names of the option; its field's name by default.
        default: Description of the default if the value of the field does not show it.
        common: Whether the short help shows the option.
        metavar: Name of the value in the help; by default the name of its type.
        at_least: Lower bound of a whole number.
        at_most: Upper bound of a whole number.
    """
    text = f"{help_text} (default: {default})" if default else help_text
    return typer.Option(
        *names,
        help=text,
        rich_help_panel=panel,
        show_default=False,
        hidden=not common,  # drfl.cli.command_help then shows the option in the long help only
        metavar=metavar if at_least is None else "N",
        min=at_least,
        max=at_most,
    )


HINTS = get_type_hints(Settings, include_extras=True)
ABOUT = {name: item for name, hint in HINTS.items() for item in get_args(hint) if isinstance(item, Setting)}


def flag(name: str) -> str:
    """Return the name of a setting's option."""
    return ABOUT[name].flag or f"--{name.replace('_', '-')}"


def setting(name: str, metavar: str | None = None) -> object:
    """Declare the option of a setting, see :func:`option`."""
    about, value = ABOUT[name], getattr(Settings, name)
    default = about.none or ("" if value is None or value is False else str(value))
    return option(about.help, about.panel, flag(name), default=default, common=about.common, metavar=metavar)


@functools.cache  # Several commands share these options, and this is part of every start-up.
def _annotation(name: str) -> object:
    """Return the type and option of a setting for typer; the value is None if the option is absent."""
    hint = next((item.form for item in get_args(HINTS[name]) if isinstance(item, Text)), get_args(HINTS[name])[0])
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    kind: object = str  # typer does not know the other types: the configuration parses the text
    if "/" in flag(name):
        kind = bool
    elif get_origin(hint) in (tuple, dict) or get_origin(kinds[0]) in (tuple, dict):
        kind = list[str]
    elif kinds in ([int], [float], [Path]):
        kind = kinds[0]
    return Annotated[kind | None, setting(name, "N" if kind is int else None)]


def command(
    options: Callable[..., Options], several: Mapping[str, bool] | None = None
) -> Callable[[Callable[[Options], int]], Callable[..., int]]:
    """Let typer call a function that takes a dataclass of options.

    Each field becomes an option, and a field ``settings`` becomes one option per name in its annotation. The function
    receives in ``settings`` only those that the user gave.

    Args:
        options: The dataclass.
        several: Options that take several values, and whether these are numbers, see :func:`expand`.
    """

    def panel_index(parameter: inspect.Parameter) -> int:
        panels = [getattr(item, "rich_help_panel", None) for item in get_args(parameter.annotation)[1:]]
        # Arguments and options without a panel come first.
        return next((PANELS.index(panel) for panel in panels if panel in PANELS), -1)

    def wrap(function: Callable[[Options], int]) -> Callable[..., int]:
        parameters: list[inspect.Parameter] = []
        names: tuple[str, ...] = ()
        for field in inspect.signature(options, eval_str=True).parameters.values():
            if field.name != "settings":
                parameters.append(field)
                continue
            names = get_args(field.annotation)[1]
            parameters += [field.replace(name=name, default=None, annotation=_annotation(name)) for name in names]
        parameters.sort(key=panel_index)

        @functools.wraps(function)
        def call(**values: object) -> int:
            all_settings = {name: values.pop(name) for name in names}
            settings = {name: value for name, value in all_settings.items() if value is not None}
            return function(options(**values, settings=settings) if names else options(**values))

        # typer makes the options of a command from its signature and annotations.
        vars(call)["__signature__"] = inspect.Signature(parameters)
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        if several:
            SEVERAL[function.__name__] = several
        return call

    return wrap


JOB = (
    "dataset", "data_dir", "partition", "clients", "alpha", "zipf", "model", "cohort", "batch", "lr",
    "engine", "device", "dtype", "threads",
)  # fmt: skip
"""The settings of every job, for commands that have their own options for algorithm, local steps and rounds."""

RUN = tuple(name for name, about in ABOUT.items() if not about.hidden)
COMPARE = tuple(name for name in RUN if name not in ("algorithm", "seed"))
"""The settings of many runs, which have their own options for algorithms and seeds."""

FIT = tuple(
    name
    for name in RUN
    if name
    not in (
        "data", "algorithm", "rounds", "validation", "evaluate_every", "until", "returned", "select", "patience",
        "averaged", "certificate", "checkpoint_key",
    )
)  # fmt: skip
"""The settings of a fit, which chooses the algorithm and the model itself."""

READING = ("delimiter", "decimal", "thousands", "encoding", "missing")
"""The settings that define how to read the user's tables."""

SEARCH = "Search"
"""Group of the options of ``drfl tune`` alone."""

SEED_TEXT = "Number of seeds, counted from 0, or a list 0,1,2 or a range 10..14"

Given = Mapping[str, object]
File = Annotated[Path | None, typer.Argument(help="TOML file of options; options on the command line override it")]
Param = Annotated[
    list[str] | None,
    option(
        "Hyperparameter: NAME=VALUE, or ALGORITHM.NAME=VALUE, which takes precedence; repeatable",
        ALGORITHM,
    ),
]
Resume = Annotated[
    bool,
    option(
        "Continue the stopped run in --out with its options, or start one if there is none",
        EXECUTION,
        "--resume",
        common=True,
    ),
]
Extend = Annotated[
    bool,
    option(
        "Continue the comparison in --out, or add algorithms, seeds or rounds to it",
        EXECUTION,
        "--resume",
        common=True,
    ),
]
Trust = Annotated[bool, option("Trust and load the code that a folder's config.toml names", EXECUTION, "--trust")]
Out = Annotated[Path | None, option("Folder for the results; must be new or empty", OUTPUT, common=True)]
Overwrite = Annotated[bool, option("Replace the contents of --out", OUTPUT, "--overwrite")]
Json = Annotated[bool, option("Print a single JSON object on stdout", OUTPUT, "--json", common=True)]
Names = Annotated[
    str | None,
    option(
        "Comma-separated algorithms",
        ALGORITHM,
        "--algorithms",
        default="those of the file, else all",
        common=True,
    ),
]
Jobs = Annotated[int | None, option("Parallel processes", EXECUTION, default="one per core", common=True, at_least=1)]
Ray = Annotated[
    str | None,
    option("Ray cluster, HOST:PORT of its head, or 'local' with --jobs CPUs; needs the extra 'ray'", EXECUTION),
]
Latex = Annotated[Path | None, option("LaTeX table to write", OUTPUT)]
FigureFile = Annotated[Path | None, option("Figure of the curves to write: PDF, SVG or PNG; needs matplotlib", OUTPUT)]
XAxis = Annotated[
    str | None, option("X axis of --figure: rounds, bytes, gradients or seconds", OUTPUT, default="rounds")
]
CostsTo = Annotated[
    str | None, option("Print the rounds, bytes, gradients and seconds to METRIC=VALUE, with intervals", OUTPUT)
]
Track = Annotated[
    str | None,
    option("Send histories to tensorboard:FOLDER, mlflow:STORE or wandb:FOLDER (offline)", EXECUTION),
]
DataDir = Annotated[Path | None, setting("data_dir")]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of ``drfl run``."""

    config: File = None
    settings: Annotated[Given, RUN]
    param: Param = None
    track: Track = None
    resume: Resume = False
    trust: Trust = False
    out: Out = None
    overwrite: Overwrite = False
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The options of ``drfl compare``."""

    config: File = None
    names: Names = None
    seeds: Annotated[str | None, option(SEED_TEXT, EXECUTION, default="5", common=True)] = None
    settings: Annotated[Given, COMPARE]
    param: Param = None
    jobs: Annotated[
        int | None,
        option(
            "Parallel runs, each in its own process on one thread",
            EXECUTION,
            default="1",
            common=True,
            at_least=1,
            at_most=1024,
        ),
    ] = None
    ray: Ray = None
    track: Track = None
    predictions: Annotated[
        list[Path] | None,
        option("CSV with another tool's predictions for the test rows, shown as a table row; repeatable", OUTPUT),
    ] = None
    latex: Latex = None
    figure: FigureFile = None
    x_axis: XAxis = None
    costs_to: CostsTo = None
    resume: Extend = False
    trust: Trust = False
    out: Out = None
    overwrite: Overwrite = False
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The options of ``drfl sweep``."""

    study: Annotated[
        Path | None,
        typer.Argument(help="TOML file of options, with values to try in its tables grid and list"),
    ] = None
    settings: Annotated[Given, COMPARE]
    jobs: Jobs = None
    ray: Ray = None
    track: Track = None
    latex: Latex = None
    resume: Annotated[
        bool,
        option("Continue the sweep in --out, or add the runs that STUDY now has", EXECUTION, "--resume", common=True),
    ] = False
    trust: Trust = False
    out: Out = None
    overwrite: Overwrite = False
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The options of ``drfl fit``."""

    data: Annotated[
        list[Path] | None,
        typer.Argument(help="Tables (CSV, TSV, Parquet, Excel, npz), or a folder; default: the data set of --dataset"),
    ] = None
    settings: Annotated[Given, FIT]
    budget: Annotated[
        int | None,
        option(
            "Rounds of communication of each run",
            TRAINING,
            "--budget",
            "--rounds",
            default="100",
            common=True,
            at_least=1,
        ),
    ] = None
    personalise: Annotated[
        bool,
        option("Give clients their own models if that clearly helps them", TRAINING, "--personalise", common=True),
    ] = False
    resume: Resume = False
    trust: Trust = False
    out: Out = None
    overwrite: Overwrite = False
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The options of ``drfl report``."""

    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, comparisons or deployed runs")]
    out: Annotated[
        Path | None,
        typer.Option(help="HTML page to write (default: report.html if no other file is named)"),
    ] = None
    pdf: Annotated[Path | None, typer.Option(help="PDF of A4 pages to write; needs the extra 'pdf'")] = None
    latex: Latex = None
    figure: FigureFile = None
    x_axis: XAxis = None
    costs_to: CostsTo = None
    title: Annotated[str | None, typer.Option(help="Title (default: the algorithms and the data)")] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files")] = False


@dataclass(frozen=True, kw_only=True)
class AssessOptions:
    """The options of ``drfl assess``."""

    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, comparisons or deployed runs")]
    measure: Annotated[str | None, typer.Option(help="Metric to assess (default: the score of the runs)")] = None
    predictions: Annotated[
        list[Path] | None,
        typer.Option(help="CSV with another tool's predictions for the test rows of the runs; repeatable"),
    ] = None
    trust: Annotated[
        bool, typer.Option("--trust", help="Trust and load the code that a folder's config.toml names")
    ] = False
    level: Annotated[float, typer.Option(help="Confidence level of intervals and sets")] = 0.95
    auc_interval: Annotated[str, typer.Option(help="Intervals of the AUC: delong or distribution-free")] = "delong"
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """The options of ``drfl tune``."""

    job: Annotated[str, typer.Argument(help="A job of the papers, e.g. mnist-linear, or a TOML file as for compare")]
    names: Names = None
    trials: Annotated[
        int, option("Trials per algorithm; the first has the defaults", SEARCH, common=True, at_least=1, at_most=10_000)
    ] = 24
    seeds: Annotated[
        int, option("Partitions and initial models per trial", SEARCH, common=True, at_least=1, at_most=10_000)
    ] = 3
    rounds: Annotated[
        int | None,
        option("Rounds of communication", TRAINING, default="those of the job", common=True, at_least=1),
    ] = None
    criterion: Annotated[
        str,
        option(
            "Score on validation rows to tune for: worst, worst20, average, or loss (worst client)", SEARCH, common=True
        ),
    ] = "worst"
    space: Annotated[
        list[str] | None,
        option("Search space, [ALGORITHM=]FILE.py:FUNCTION of an Optuna trial; repeatable", SEARCH),
    ] = None
    confirm_seeds: Annotated[
        int,
        option(
            "New seeds at which the chosen and the default setting run again; 0: no confirmation",
            SEARCH,
            common=True,
            at_least=0,
            at_most=10_000,
        ),
    ] = 5
    absolute_step_size: Annotated[
        bool, option("Search one η for all runs, not a multiple of the η of each run", SEARCH, "--absolute-step-size")
    ] = False
    stand_in: Annotated[bool, option("Tune on the substitute for data that are not available", DATA, "--stand-in")] = (
        False
    )
    changes: Annotated[
        list[str] | None, option("Change of the job, KEY=VALUE as in its file; repeatable", DATA, "--set", common=True)
    ] = None
    jobs: Jobs = None
    ray: Ray = None
    data_dir: DataDir = None
    settings: Annotated[Given, ("data_schema", *READING)]
    trust: Trust = False
    out: Annotated[Path | None, option("Folder for the results", OUTPUT, default="runs/tuning/JOB", common=True)] = None
    as_json: Json = False
