"""Comparisons of objects made in Python: what their files say of them, and what they are recognised by."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from pydantic import PrivateAttr, ValidationInfo, field_validator, model_validator

from drfl.core.errors import InputError
from drfl.data import ClientData
from drfl.experiments.config.build import Job, job_of
from drfl.experiments.config.config import REGISTRIES, Config
from drfl.experiments.config.guards_and_failures import aggregator_of, failures_of, guards_of, step_bound_of
from drfl.experiments.config.hyperparameters import PARSED, SAMPLINGS, Value, canonical, plain_local
from drfl.experiments.config.learned import Origin
from drfl.experiments.config.wrap import wrap_algorithm
from drfl.experiments.run.manifest import CALLED
from drfl.federation.algorithm import Algorithm
from drfl.task.metrics import Metric
from drfl.task.task import Task

CLIENTS = "clients"
"""What stands for data set and partition in the files, where the data came divided."""

ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class ObjectConfig(Config):
    """The configuration of a run of objects: it says what they are; `drfl run` cannot make them from it."""

    dataset: str = CLIENTS
    partition: str = CLIENTS
    loss: str = "given"
    _algorithms: Mapping[str, Algorithm] = PrivateAttr(default_factory=dict)
    _task: Task | None = PrivateAttr(default=None)
    _sources: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, algorithms: Mapping[str, Algorithm], task: Task, settings: Mapping[str, object]) -> ObjectConfig:
        """The configuration of these algorithms, under their names.

        Raises:
            InputError: a name cannot be one of a folder, or what it stands for is no algorithm.
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
        score, *others = (metric.name for metric in task.measures)
        about = {"model": type(task.model).__name__, "score": score, "metrics": tuple(others) or None}
        config = cls.model_validate({**about, **settings})
        config._algorithms, config._task = algorithms, task
        config.selection().check()
        config._sources = _sources(_own((*algorithms.values(), task.model)))  # a worker process may not find them
        return config

    @field_validator("algorithm", "dataset", "partition", "model", "loss", "engine")
    @classmethod
    def _known(cls, value: str, info: ValidationInfo) -> str:
        return canonical("engine", value, REGISTRIES["engine"]) if info.field_name == "engine" else value

    @field_validator("score")
    @classmethod
    def _known_score(cls, value: str | None) -> str | None:
        return value

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, values: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return values

    def _model(self) -> object:
        return None if self._task is None else self._task.model

    def measures(self) -> tuple[Metric, ...]:
        """Those of the task."""
        assert self._task is not None
        return self._task.measures

    @field_validator("algorithm")
    @classmethod
    def _algorithm(cls, value: str) -> str:
        return value

    @model_validator(mode="before")
    @classmethod
    def _own_data(cls, values: object) -> object:
        return values

    @model_validator(mode="after")
    def _parameters_fit(self) -> ObjectConfig:
        guards_of(self.guards)
        aggregator_of(self.aggregator)
        step_bound_of(self.step_bound)
        failures_of(self.faults or {})
        return self

    def partition_parameters(self, defaults: bool = False) -> dict[str, int | float]:
        """None: nothing is divided here."""
        return {}

    def parameters(self, algorithm: str, clients: int | None = None) -> dict[str, Value]:
        """The fields of the object, as values that a file can hold."""
        thing, found = self._algorithms[algorithm], dict[str, Value]()
        fields = dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ()
        for name, value in ((field.name, getattr(thing, field.name)) for field in fields):
            if name == "local":
                found |= plain_local(value)
            elif isinstance(value, bool | int | float | str | None):
                found[name] = value
            elif isinstance(value, tuple(PARSED)):
                found[name] = str(value)
            elif value in SAMPLINGS.values():
                found[name] = next(known for known, draw in SAMPLINGS.items() if draw is value)
            else:
                # Drop memory addresses: they differ between processes, and equal runs would look different.
                found[name] = ADDRESS.sub("", repr(value))
        return found

    def user_files(self, algorithms: Sequence[str]) -> dict[str, str]:
        """SHA-256 of the source of every class of the user's behind these algorithms and the model."""
        kinds = (
            type(thing) for thing in (*(self._algorithms[name] for name in algorithms), self._task and self._task.model)
        )
        return {name: self._sources[name] for kind in kinds if (name := f"class {kind.__qualname__}") in self._sources}

    def user_modules(self, *functions: Callable[..., object]) -> list[ModuleType]:
        """The modules that these classes, and functions of the user's, are from, less the program that runs."""
        names = dict.fromkeys(kind.__module__ for kind in _own((*self._algorithms.values(), self._model())))
        names |= dict.fromkeys(getattr(function, "__module__", "__main__") for function in functions)
        return [sys.modules[name] for name in names if name != "__main__" and name in sys.modules]


def _own(things: Iterable[object]) -> list[type]:
    """The user's classes behind these objects: those that are of no installed package."""
    found: list[type] = []
    for kind in dict.fromkeys(map(type, things)):
        if kind.__module__.partition(".")[0] not in ("drfl", "torch"):
            file = getattr(sys.modules.get(kind.__module__), "__file__", None)
            # A class defined at a prompt has no file.
            if file is None or "site-packages" not in Path(file).parts:
                found.append(kind)
    return found


def _sources(kinds: Iterable[type]) -> dict[str, str]:
    """SHA-256 of the classes' sources; not of those that were typed in at a prompt."""
    found: dict[str, str] = {}
    for kind in kinds:
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
    config: ObjectConfig, data: Callable[[int], ClientData], task: Callable[[int], Task]
) -> Callable[[str, int], Job]:
    """Makes the runs of a comparison of objects.

    Args:
        config: of the objects.
        data: the clients' samples at a seed.
        task: the model and its loss at a seed.
    """

    def make(name: str, seed: int) -> Job:
        own, clients, learned = config.for_algorithm(name, seed), data(seed), task(seed)
        algorithm = wrap_algorithm(own, config._algorithms[name], None, clients, learned)
        kind = type(learned.model)
        source = config._sources.get(f"class {kind.__qualname__}")
        module = {"class": _named(kind)} | ({} if source is None else {"sha256": source})
        return job_of(own, None, clients, learned, algorithm, Origin(module, _named(learned.criterion.given)))

    return make
