"""Runs of objects made in Python: their descriptions in files, and the code that identifies them."""

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

from drfl.core.errors import InputError
from drfl.data import ClientData
from drfl.data.warm_start import warm_start
from drfl.experiments.config.about_run import AboutRun
from drfl.experiments.config.build import JobBuilder, Setup, make_job, make_setup
from drfl.experiments.config.hyperparameters import parameters_of
from drfl.experiments.config.learned import Origin
from drfl.experiments.config.ready_run import Job
from drfl.experiments.config.run_settings import RunSettings
from drfl.experiments.run.manifest import ALGORITHM_NAME
from drfl.federation.algorithm import Algorithm, check_algorithm_type
from drfl.task.task import Task

Kind = type | FunctionType
"""A class or a function: something with a module and a source."""


def check_algorithms(algorithms: Mapping[str, Algorithm]) -> None:
    """Check that these are algorithms, with names that folders can have."""
    for name, algorithm in algorithms.items():
        if not isinstance(name, str) or re.fullmatch(ALGORITHM_NAME, name) is None:
            raise InputError(
                f"algorithm {name!r}: folders get this name, so it must begin with a letter, contain only letters, "
                "digits, spaces and any of _.()=+-, and end with a letter, a digit or )",
                code="invalid-name",
                field=str(name),
            )
        check_algorithm_type(algorithm, name)


def run_settings(values: Mapping[str, object], task: Task) -> RunSettings:
    """Return the checked settings of runs of a task."""
    settings = RunSettings.checked(values)
    settings.selection(task.measures)
    return settings


def rule_objects(settings: RunSettings) -> list[object]:
    """Return the objects of the settings that may be of a user's class."""
    return [*settings.guards, settings.engine, *([] if settings.aggregator is None else [settings.aggregator])]


def about_objects(
    settings: RunSettings,
    name: str,
    algorithm: Algorithm,
    clients: int,
    task: Task,
    sources: Mapping[str, str],
    data: Mapping[str, object],
) -> AboutRun:
    """Return the description of a run of objects for its files.

    ``sources`` is from :func:`sources_of`; ``data`` is empty if they were made in Python.
    """
    score, *others = (metric.name for metric in task.measures)
    about: dict[str, object] = {
        "model": type(task.model).__name__,
        "loss": _qualified_name(task.criterion.given),
        "score": score,
        "dtype": str(task.layout.dtype).rpartition(".")[2],
    }
    if others:
        about["metrics"] = others
    kinds = (f"class {type(thing).__qualname__}" for thing in (algorithm, task.model, *rule_objects(settings)))
    files = {kind: sources[kind] for kind in kinds if kind in sources}
    dataset = data.get("dataset")
    return AboutRun(
        name, parameters_of(algorithm, clients), None if dataset is None else str(dataset),
        {**settings.to_plain(), **data, **about}, files,
    )  # fmt: skip


def user_modules(things: Iterable[object]) -> list[ModuleType]:
    """Return the modules of the user's classes and functions behind these objects, but not the main program."""
    names = dict.fromkeys(kind.__module__ for kind in _user_kinds(things))
    return [sys.modules[name] for name in names if name != "__main__" and name in sys.modules]


def _user_kinds(things: Iterable[object]) -> list[Kind]:
    """Return the user's functions and classes among these objects: those that no installed package defines."""
    kinds: list[Kind] = []
    for kind in dict.fromkeys(thing if isinstance(thing, FunctionType) else type(thing) for thing in things):
        if kind.__module__.partition(".")[0] not in ("drfl", "torch"):
            file = getattr(sys.modules.get(kind.__module__), "__file__", None)
            # A class defined at a prompt has no file.
            if file is None or "site-packages" not in Path(file).parts:
                kinds.append(kind)
    return kinds


def sources_of(things: Iterable[object]) -> dict[str, str]:
    """Return the SHA-256 of the source of each user's class behind these objects, unless it was typed at a prompt."""
    digests: dict[str, str] = {}
    for kind in _user_kinds(things):
        # A class typed in at a prompt has no source.
        with suppress(OSError, TypeError):
            digests[f"class {kind.__qualname__}"] = hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()
    return digests


def _qualified_name(thing: object) -> str:
    """Return module and name of a class or function, or of an object's class."""
    # A functools.partial has no __qualname__.
    while isinstance(thing, functools.partial):
        thing = thing.func
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', '')}"


def object_setup(settings: RunSettings, clients: ClientData, learned: Task, sources: Mapping[str, str]) -> Setup:
    """Put clients into a simulation; ``sources`` is from :func:`sources_of`."""
    kind = type(learned.model)
    source = sources.get(f"class {kind.__qualname__}")
    module = {"class": _qualified_name(kind)} | ({} if source is None else {"sha256": source})
    learned, start = warm_start(learned, clients, settings.init_from)
    origin = Origin(module, _qualified_name(learned.criterion.given), start)
    return make_setup(settings, None, clients, learned, origin)


def object_job_builder(
    settings: RunSettings,
    algorithms: Mapping[str, Algorithm],
    data: Callable[[int], ClientData],
    task: Callable[[int], Task],
    described: Mapping[str, object],
    sources: Mapping[str, str] | None = None,
) -> JobBuilder:
    """Return the builder of the runs of a comparison of objects.

    ``described`` is the description of the data. ``sources`` is from :func:`sources_of` in the main process, because
    workers may not find them; None = computed for each run.
    """

    def digests(*things: object) -> Mapping[str, str]:
        return sources_of([*things, *rule_objects(settings)]) if sources is None else sources

    def setup(seed: int) -> Setup:
        clients, learned = data(seed), task(seed)
        return object_setup(settings, clients, learned, digests(learned.model))

    def job(setup: Setup, name: str, seed: int) -> Job:
        seeded, algorithm, learned = settings.model_copy(update={"seed": seed}), algorithms[name], setup.task
        about = about_objects(
            seeded, name, algorithm, setup.data.n, learned, digests(algorithm, learned.model), described
        )
        return make_job(setup, seeded, about, algorithm)

    return JobBuilder(setup, job)
