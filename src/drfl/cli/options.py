"""The options that commands share; each is a key of the TOML file too."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from drfl.algorithms import ALGORITHMS
from drfl.errors import InputError
from drfl.experiments.config import COMMON
from drfl.experiments.parameters import canonical, takes

DATA, TRAINING, RUNNING = "Data and clients", "Training", "Running"


def _option(help_text: str, panel: str, *names: str) -> object:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, show_default=False)


File = Annotated[Path | None, typer.Argument(help="TOML file with the options below; options given here override it.")]
Dataset = Annotated[str | None, _option("Data set; see 'drfl datasets'. (default: digits)", DATA)]
DataDir = Annotated[Path | None, _option("Folder with the data set's files.", DATA)]
PartitionName = Annotated[
    str | None,
    _option(
        "zipf-dirichlet, one-class, dirichlet-drop, iid or natural, which is one client a group that the data set "
        "names. (default: natural where there are groups, else zipf-dirichlet)",
        DATA,
        "--partition",
    ),
]
Clients = Annotated[int | None, _option("Number of clients N. (default: the partition's: 30, 10, 20, 30)", DATA)]
Alpha = Annotated[
    float | None, _option("Dirichlet concentration of classes, > 0; inf = equal shares. (default: 0.1)", DATA)
]
Sigma = Annotated[float | None, _option("Zipf exponent of client sizes; 0 = equal. (default: 0)", DATA)]
Model = Annotated[str | None, _option("linear, mlp or cnn. (default: linear)", TRAINING)]
CohortSize = Annotated[int | None, _option("Clients per round m. (default: two thirds of N)", TRAINING, "--cohort")]
Steps = Annotated[int | None, _option("Local steps τ. (default: 10)", TRAINING)]
Batch = Annotated[str | None, _option("Samples per local minibatch, or 'full'. (default: 32)", TRAINING)]
Lr = Annotated[float | None, _option("Local step size η.", TRAINING)]
Rounds = Annotated[int | None, _option("Rounds of communication. (default: 100)", TRAINING)]
Param = Annotated[
    list[str] | None,
    _option(
        "An algorithm's parameter, NAME=VALUE or ALGORITHM.NAME=VALUE; repeatable. See 'drfl algorithms'.", TRAINING
    ),
]
EvaluateEvery = Annotated[int | None, _option("Test every so many rounds. (default: 1)", RUNNING)]
Until = Annotated[str | None, _option("Stop early, e.g. worst_accuracy=0.5.", RUNNING)]
CertificateOption = Annotated[
    bool | None,
    _option(
        "Also bound the distance to the saddle point, the duality gap, at every test; linear models only. In the file "
        "also certificate = 'gradient': a looser bound from one exchange.",
        RUNNING,
        "--certificate/--no-certificate",
    ),
]
EngineName = Annotated[
    str | None, _option("stacked, threads (for convolutions) or loop. (default: stacked)", RUNNING, "--engine")
]
Device = Annotated[str | None, _option("Torch device, e.g. cuda. (default: cpu)", RUNNING)]
Dtype = Annotated[str | None, _option("float32 or float64. (default: float32)", RUNNING)]
Threads = Annotated[int | None, _option("Torch threads.", RUNNING)]
Out = Annotated[Path | None, _option("Folder for the results; must be new or empty.", RUNNING)]
Overwrite = Annotated[bool, _option("Replace what is in --out.", RUNNING, "--overwrite")]
Json = Annotated[bool, _option("Print one JSON object on stdout and nothing else.", RUNNING, "--json")]

NOT_CONFIG = ("config", "out", "overwrite", "as_json", "seeds", "names", "param")


def overrides(given: Mapping[str, object], algorithms: Sequence[str]) -> dict[str, object]:
    """The configuration's keys among a command's arguments, without those that were not given.

    Args:
        given: all arguments by name.
        algorithms: those that run, whom a ``--param NAME=VALUE`` without an algorithm's name is for.

    Raises:
        InputError: a ``--param`` is not of the form NAME=VALUE or for an algorithm that does not run, or an option
            means nothing to those that do.
    """
    names = [canonical("algorithm", name, ALGORITHMS) for name in algorithms]
    values = {k: v for k, v in given.items() if v is not None and k not in NOT_CONFIG}
    for option, parameter in COMMON.items():
        if option in values and not any(takes(name, parameter) for name in names):
            raise InputError(f"--{option} means nothing to {', '.join(names)}: leave it out")
    if "batch" in values:
        values["batch"] = _plain(str(values["batch"]))
    param = given.get("param")
    tables: dict[str, dict[str, object]] = {}
    for text in param if isinstance(param, list) else []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"--param '{text}' is not of the form NAME=VALUE, e.g. mu=1 or DRDM.mu=1")
        algorithm, dot, own = name.rpartition(".")
        targets = [canonical("algorithm", algorithm, ALGORITHMS)] if dot else names
        if not {*targets} <= {*names}:
            raise InputError(f"--param '{text}' is for {targets[0]}, which does not run: leave it out")
        for target in targets:
            tables.setdefault(target, {})[own] = _plain(value)
    return {**values, "algorithms": tables} if tables else values


def _plain(text: str) -> object:
    """A TOML value where it is one, else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
