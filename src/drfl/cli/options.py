"""The commands' options: one class a command, whose fields are its options.

Those that stand for a setting of a run are made from :mod:`drfl.experiments.config.settings`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar, get_args, get_origin, get_type_hints

import typer

from drfl.experiments.config.settings import RUNNING, TRAINING, Setting, Settings, Text

SEVERAL: dict[str, Mapping[str, bool]] = {}
"""Command → its options that take several values → whether these are numbers; filled by :func:`command`."""


def expand(arguments: Sequence[str]) -> list[str]:
    """The arguments with such an option repeated before each of its values, as the parser wants it.

    The values end at the next option, at ``--``, and where numbers are wanted at whatever is none: so a file's name may
    follow them. A negative number is a value, not an option. Other commands and options stay as they are.

    Args:
        arguments: the command's words, its name first.
    """
    options = SEVERAL.get(arguments[0], {}) if arguments else {}
    words, found, at = list(arguments), list[str](), 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return [*found, *words[at:]]
        name, equals, first = word.partition("=")
        at += 1
        if name not in options:
            found.append(word)
            continue
        values = [first] if equals else []
        while at < len(words):
            if options[name]:
                try:
                    float(words[at])
                except ValueError:
                    break
            elif words[at].startswith("-"):
                break
            values.append(words[at])
            at += 1
        found += [f"{name}={value}" for value in values] or [word]
    return found


Own = TypeVar("Own")


def option(help_text: str, panel: str | None = None, *names: str) -> object:
    """An option without a default in its help, in a panel of the help, by other names than its field's."""
    return typer.Option(*names, help=help_text, rich_help_panel=panel, show_default=False)


HINTS = get_type_hints(Settings, include_extras=True)
ABOUT = {name: item for name, hint in HINTS.items() for item in get_args(hint) if isinstance(item, Setting)}


def _flag(name: str) -> str:
    return ABOUT[name].flag or f"--{name.replace('_', '-')}"


def setting(name: str) -> object:
    """The option of a setting."""
    about, value = ABOUT[name], getattr(Settings, name)
    default = about.none or ("" if value is None or value is False else str(value))
    return option(f"{about.help} (default: {default})" if default else about.help, about.panel, _flag(name))


@functools.cache  # several commands have the same options, and start-up counts
def _annotation(name: str) -> object:
    """The type and option of a setting, as typer wants them; one that is not given is None."""
    hint = next((item.form for item in get_args(HINTS[name]) if isinstance(item, Text)), get_args(HINTS[name])[0])
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    kind: object = str  # the configuration parses text for types that typer does not know
    if "/" in _flag(name):
        kind = bool
    elif get_origin(hint) in (tuple, dict) or get_origin(kinds[0]) in (tuple, dict):
        kind = list[str]
    elif kinds in ([int], [float], [Path]):
        kind = kinds[0]
    return Annotated[kind | None, setting(name)]


def command(
    options: Callable[..., Own], several: Mapping[str, bool] | None = None
) -> Callable[[Callable[[Own], int]], Callable[..., int]]:
    """Lets typer call a function of a class of options: each field an option, ``settings`` one for each of its names.

    Args:
        options: the class; ``settings``, where it has them, become the mapping of those that were given.
        several: the options that take several values, and whether these are numbers, see :func:`expand`.
    """

    def of(function: Callable[[Own], int]) -> Callable[..., int]:
        parameters: list[inspect.Parameter] = []
        names: tuple[str, ...] = ()
        for field in inspect.signature(options, eval_str=True).parameters.values():
            if field.name != "settings":
                parameters.append(field)
                continue
            names = get_args(field.annotation)[1]
            parameters += [field.replace(name=name, default=None, annotation=_annotation(name)) for name in names]

        @functools.wraps(function)
        def called(**values: object) -> int:
            given = {name: values.pop(name) for name in names}
            settings = {name: value for name, value in given.items() if value is not None}
            return function(options(**values, settings=settings) if names else options(**values))

        vars(called)["__signature__"] = inspect.Signature(parameters)
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        if several:
            SEVERAL[function.__name__] = several
        return called

    return of


JOB = (
    "dataset", "data_dir", "partition", "clients", "alpha", "zipf", "model", "cohort", "batch", "lr",
    "engine", "device", "dtype", "threads",
)  # fmt: skip
"""The settings of every job, where a command has its own say on algorithm, local steps and rounds."""

RUN = tuple(name for name, about in ABOUT.items() if not about.hidden)
COMPARE = tuple(name for name in RUN if name not in ("algorithm", "seed"))

Given = Mapping[str, object]
File = Annotated[Path | None, typer.Argument(help="TOML file with the options below; options given here override it.")]
Param = Annotated[
    list[str] | None,
    option(
        "An algorithm's parameter: NAME=VALUE for all that run, or ALGORITHM.NAME=VALUE for one, which then wins, "
        "also over --cohort, --steps, --batch and --lr. Repeatable; see 'drfl algorithms'.",
        TRAINING,
    ),
]
Resume = Annotated[
    bool,
    option(
        "Go on with the run in --out that was stopped or killed, and start it if there is none; its options need not "
        "be given again.",
        RUNNING,
        "--resume",
    ),
]
Trust = Annotated[
    bool,
    option("Load the code that a folder's config.toml names, though you do not have it in place.", RUNNING, "--trust"),
]
Out = Annotated[Path | None, option("Folder for the results; must be new or empty.", RUNNING)]
Overwrite = Annotated[bool, option("Replace what is in --out.", RUNNING, "--overwrite")]
Json = Annotated[bool, option("Print one JSON object on stdout and nothing else.", RUNNING, "--json")]
Names = Annotated[
    str | None, option("Names with commas between. (default: those of the file, else all)", None, "--algorithms")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes. (default: as many as cores)")]
Ray = Annotated[
    str | None,
    option(
        "Runs go to a Ray cluster, HOST:PORT of its head, or 'local', one of this machine with --jobs CPUs; needs "
        "drfl's extra 'ray'.",
        None,
        "--ray",
    ),
]
DataDir = Annotated[Path | None, setting("data_dir")]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of ``drfl run``."""

    config: File = None
    settings: Annotated[Given, RUN]
    param: Param = None
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
    seeds: Annotated[str | None, option("How many (from 0), a list 0,1,2 or a range 10..14. (default: 5)")] = None
    settings: Annotated[Given, COMPARE]
    param: Param = None
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Runs at a time, each in a process of its own on one thread. (default: 1)"),
    ] = None
    ray: Ray = None
    resume: Resume = False
    trust: Trust = False
    out: Out = None
    overwrite: Overwrite = False
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The options of ``drfl report``."""

    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, of comparisons or of deployed runs.")]
    out: Annotated[Path | None, typer.Option(help="The page to write. (default: report.html; with --pdf no page)")] = (
        None
    )
    pdf: Annotated[
        Path | None, typer.Option(help="Write the report as a PDF of A4 pages; needs drfl's extra 'pdf'.")
    ] = None
    title: Annotated[str | None, typer.Option(help="Its heading. (default: what was run on what)")] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the files.")] = False


@dataclass(frozen=True, kw_only=True)
class AssessOptions:
    """The options of ``drfl assess``."""

    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, of comparisons or of deployed runs.")]
    measure: Annotated[str | None, typer.Option(help="One of the runs' measures. (default: their score)")] = None
    level: Annotated[float, typer.Option(help="Of intervals and sets, e.g. 0.95.")] = 0.95
    auc_interval: Annotated[str, typer.Option(help="Intervals of the AUC: delong or distribution-free.")] = "delong"
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """The options of ``drfl tune``."""

    job: Annotated[str, typer.Argument(help="A job of the papers, e.g. mnist-linear, or a TOML file as for compare.")]
    names: Names = None
    trials: Annotated[
        int, typer.Option(min=1, max=10_000, help="Settings tried for each algorithm, the defaults first.")
    ] = 24
    seeds: Annotated[int, typer.Option(min=1, max=10_000, help="Partitions and initial models of each trial.")] = 3
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of communication. (default: the job's)")] = None
    criterion: Annotated[
        str,
        typer.Option(
            help="worst, worst20 or average score over clients, or the worst client's loss, on validation rows."
        ),
    ] = "worst"
    space: Annotated[
        list[str] | None,
        typer.Option(help="Where to look, as [ALGORITHM=]FILE.py:FUNCTION of an Optuna trial. Repeatable."),
    ] = None
    relative_step_size: Annotated[
        bool,
        typer.Option("--relative-step-size", help="Look for η in multiples of the step size that each run finds."),
    ] = False
    stand_in: Annotated[
        bool, typer.Option("--stand-in", help="Tune on what is run where the paper's data cannot be had.")
    ] = False
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE of the job, as in its file. Repeatable.")
    ] = None
    jobs: Jobs = None
    ray: Ray = None
    data_dir: DataDir = None
    trust: Trust = False
    out: Annotated[Path | None, typer.Option(help="Folder of results. (default: evidence/results/tuning/JOB)")] = None
    as_json: Json = False
