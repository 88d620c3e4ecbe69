"""Runs of objects made in Python: what their files say of them, and what they are recognised by."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FunctionType, ModuleType

from pydantic import ValidationError

from drfl.core.errors import InputError
from drfl.data import ClientData
from drfl.experiments.config.about_run import AboutRun
from drfl.experiments.config.build import JobBuilder, Setup, job_on, set_up
from drfl.experiments.config.hyperparameters import parameters_of
from drfl.experiments.config.learned import Origin
from drfl.experiments.config.ready_run import Job
from drfl.experiments.config.run_settings import RunSettings
from drfl.experiments.config.strict import input_error
from drfl.experiments.run.manifest import CALLED
from drfl.federation.algorithm import Algorithm
from drfl.task.task import Task

Kind = type | FunctionType
"""What has a module and a source: a class or a function."""


def check_algorithms(algorithms: Mapping[str, Algorithm]) -> None:
    """Make sure that these are algorithms, under names that folders can have.

    Raises:
        InputError: One is not.
    """
    for name, algorithm in algorithms.items():
        if not isinstance(name, str) or re.fullmatch(CALLED, name) is None:
            raise InputError(
                f"algorithm {name!r}: folders are named after it; begin with a letter, go on with letters, digits, "
                "spaces and any of _.()=+-, and end with a letter, a digit or )",
                code="invalid-name",
                field=str(name),
            )
        if isinstance(algorithm, type):
            raise InputError(
                f"'{name}' is the class {algorithm.__name__}: give an object, {algorithm.__name__}(…)",
                code="wrong-type",
                field=name,
            )
        if not (callable(getattr(algorithm, "round", None)) and hasattr(algorithm, "local")):
            raise InputError(
                f"'{name}' is {algorithm!r:.60}: give an algorithm such as drfl.DRFA(m=10)",
                code="wrong-type",
                field=name,
            )


def run_settings(values: Mapping[str, object], task: Task) -> RunSettings:
    """The settings of runs of a task, checked.

    Raises:
        InputError: One is unknown or impossible.
    """
    try:
        settings = RunSettings.model_validate(values)
        settings.selection(task.measures)
    except ValidationError as error:
        raise input_error(error) from None
    return settings


def rules(settings: RunSettings) -> list[object]:
    """The objects of the settings that may be of a user's class."""
    return [*settings.guards, settings.engine, *([] if settings.aggregator is None else [settings.aggregator])]


def about_objects(
    settings: RunSettings, name: str, algorithm: Algorithm, clients: int, task: Task, sources: Mapping[str, str]
) -> AboutRun:
    """What the files of a run of objects say of it.

    Args:
        settings: How the run goes.
        name: What files call the algorithm.
        algorithm: The algorithm.
        clients: N.
        task: The model and its loss.
        sources: From :func:`sources_of`.
    """
    score, *others = (metric.name for metric in task.measures)
    dtype = str(task.layout.dtype).rpartition(".")[2]
    model = type(task.model).__name__
    about: dict[str, object] = {"model": model, "loss": _named(task.criterion.given), "score": score, "dtype": dtype}
    if others:
        about["metrics"] = others
    kinds = (f"class {type(thing).__qualname__}" for thing in (algorithm, task.model, *rules(settings)))
    files = {kind: sources[kind] for kind in kinds if kind in sources}
    return AboutRun(name, parameters_of(algorithm, clients), None, model, dtype, {**settings.plain(), **about}, files)


def user_modules(things: Iterable[object]) -> list[ModuleType]:
    """The modules of the user's classes behind these objects and of the user's functions, without the main program."""
    names = dict.fromkeys(kind.__module__ for kind in _own(things))
    return [sys.modules[name] for name in names if name != "__main__" and name in sys.modules]


def _own(things: Iterable[object]) -> list[Kind]:
    """The user's functions among these objects, and the user's classes: those that no installed package has."""
    found: list[Kind] = []
    for kind in dict.fromkeys(thing if isinstance(thing, FunctionType) else type(thing) for thing in things):
        if kind.__module__.partition(".")[0] not in ("drfl", "torch"):
            file = getattr(sys.modules.get(kind.__module__), "__file__", None)
            # A class defined at a prompt has no file.
            if file is None or "site-packages" not in Path(file).parts:
                found.append(kind)
    return found


def sources_of(things: Iterable[object]) -> dict[str, str]:
    """SHA-256 of the source of every class of the user's behind these objects, but for those typed in at a prompt."""
    found: dict[str, str] = {}
    for kind in _own(things):
        # A class typed in at a prompt has no source.
        with suppress(OSError, TypeError):
            found[f"class {kind.__qualname__}"] = hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()
    return found


def _named(thing: object) -> str:
    """The module and the name of a class or function, or of an object's class."""
    # A functools.partial has no __qualname__.
    while isinstance(thing, functools.partial):
        thing = thing.func
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', '')}"


def object_jobs(
    settings: RunSettings,
    algorithms: Mapping[str, Algorithm],
    data: Callable[[int], ClientData],
    task: Callable[[int], Task],
    sources: Mapping[str, str] | None = None,
) -> JobBuilder:
    """Makes the runs of a comparison of objects.

    Args:
        settings: How they go, each at its seed.
        algorithms: By name.
        data: The clients' samples at a seed.
        task: The model and its loss at a seed.
        sources: From :func:`sources_of` in the main process, as a worker may not find them; None = found for each run.
    """

    def digests(*things: object) -> Mapping[str, str]:
        return sources_of([*things, *rules(settings)]) if sources is None else sources

    def setup(seed: int) -> Setup:
        clients, learned = data(seed), task(seed)
        kind = type(learned.model)
        source = digests(learned.model).get(f"class {kind.__qualname__}")
        module = {"class": _named(kind)} | ({} if source is None else {"sha256": source})
        return set_up(settings, None, clients, learned, Origin(module, _named(learned.criterion.given)))

    def job(setup: Setup, name: str, seed: int) -> Job:
        own, algorithm, learned = settings.model_copy(update={"seed": seed}), algorithms[name], setup.task
        about = about_objects(own, name, algorithm, setup.data.n, learned, digests(algorithm, learned.model))
        return job_on(setup, own, about, algorithm)

    return JobBuilder(setup, job)
