"""What is tuned: a job from a TOML file, or one that an installed package has under a name."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol, cast

from drfl.algorithms import ALGORITHMS
from drfl.core.errors import InputError, unknown
from drfl.core.plugins import plugins
from drfl.core.user_code import is_reference
from drfl.experiments.config.build import VALIDATION
from drfl.experiments.config.config import Config, config_of, load_config, read_file, references_of
from drfl.experiments.config.hyperparameters import KNOWN, Value, algorithm_name, canonical
from drfl.experiments.execution.training_cells import NOT_IN_JOB
from drfl.task.measure import Measure

FIRST_SEED = 1000
"""Tuning's seeds begin here, so that its partitions and initial models are others than those of seeds 0, 1, …"""

JUDGED = {"judged_on": "validation", "select": None, "patience": None, "until": None}
"""What every run of a job is tested on; nothing else goes by those rows."""

OURS = ("algorithm", "seed", "evaluate_every", "until", "certificate", "select", "patience", "judged_on")
"""Keys of a configuration that tuning sets itself; those of a job are passed over."""

ELSEWHERE = {
    "algorithms": "write it into a job file",
    "data_dir": "give it by --data-dir",
    "threads": "each run has one thread, and --jobs says how many run at once",
}
"""Keys that --set does not take, and what to do instead."""


class TunedMethod(NamedTuple):
    """An algorithm as a job has it, e.g. SCAFF-PD with 20 clients a round.

    Args:
        algorithm: its name.
        table: parameters that all its trials have, or those of the first one where a parameter is searched for.
        changes: keys of a `Config` that are others than the job's.
        held: whether the table's values make the method what it is, so that none of them is searched for.
    """

    algorithm: str
    table: Mapping[str, Value] = MappingProxyType({})
    changes: Mapping[str, object] = MappingProxyType({})
    held: bool = False


@dataclass(frozen=True)
class TuningJob:
    """A job whose hyperparameters are looked for.

    Args:
        name: of the file that they are written to.
        values: keys of a `Config`.
        methods: what the job says of single methods, by name.
        stand_in: whether the stand-in takes the place of the paper's data.
        data_dir: where the job's file says that the data lie.
        without_data: what to do where the data cannot be had.
    """

    name: str
    values: Mapping[str, object]
    methods: Mapping[str, TunedMethod]
    stand_in: bool = False
    data_dir: Path | None = None
    without_data: str = ""

    def method(self, name: str) -> TunedMethod:
        """The method of this name: one of the job's, else the algorithm as it is."""
        return self.methods.get(name) or TunedMethod(name)

    def config(self, method: TunedMethod, table: Mapping[str, Value], seed: int) -> Config:
        """One run: tested once, after its last round.

        Args:
            method: what is run.
            table: all its parameters.
            seed: of the run.

        Raises:
            InputError: a value is impossible.
        """
        own = {"algorithm": method.algorithm, "algorithms": {method.algorithm: table}, "seed": seed}
        config = load_config(None, {**self.values, **method.changes, **JUDGED, **own})
        return config.model_copy(update={"evaluate_every": config.rounds})

    def measure(self) -> Measure:
        """The runs' score."""
        return load_config(None, {**self.values, **JUDGED}).measures()[0]


class NamedJobs(Protocol):
    """The functions of an object, or a module, that an entry point of the group ``drfl.tuning_jobs`` names."""

    def job_names(self) -> Sequence[str]:
        """The names of its jobs."""
        ...

    def job(self, name: str, changes: Mapping[str, object], *, stand_in: bool = False) -> TuningJob:
        """One of them, with some values changed; with ``stand_in`` on data that stand in for those of a paper."""
        ...


def resolve(text: str, changes: Mapping[str, object], *, stand_in: bool = False, trust: bool = False) -> TuningJob:
    """A job by its name, or by its file.

    Args:
        text: a name such as "mnist-linear", or the path of a TOML file as `drfl compare` takes it.
        changes: keys of a `Config` that take the place of the job's.
        stand_in: use the data that stand in for those of a paper.
        trust: see :func:`drfl.experiments.config.config.load_config`.

    Raises:
        InputError: no such job or file, no stand-in, or an impossible value.
    """
    if Path(text).suffix == ".toml":
        if stand_in:
            raise InputError(
                "--stand-in is for the papers' jobs: remove it beside a file", code="unused-option", field="stand_in"
            )
        return from_file(Path(text), changes, trust=trust)
    known = {name: jobs for _, jobs in plugins("drfl.tuning_jobs") for name in cast("NamedJobs", jobs).job_names()}
    try:
        name = canonical("job", text, known)
    except InputError as error:
        raise InputError(
            f"{error}, or give a TOML file, whose name ends in .toml", code=error.code, field=error.field
        ) from None
    return cast("NamedJobs", known[name]).job(name, changes, stand_in=stand_in)


def from_file(path: Path, changes: Mapping[str, object], *, trust: bool = False) -> TuningJob:
    """A job from its file.

    Args:
        path: a TOML file as `drfl compare` takes it.
        changes: keys of a `Config` that take the place of the job's.
        trust: see :func:`drfl.experiments.config.config.load_config`.

    Raises:
        InputError: no such file, or an impossible value.
    """
    values = read_file(path, references_of(changes), trust=trust)
    return of_values(path.stem, values, changes, config_of(values, {**changes, **JUDGED}))


def of_values(
    name: str,
    values: Mapping[str, object],
    changes: Mapping[str, object],
    config: Config,
    *,
    methods: Mapping[str, TunedMethod] | None = None,
    stand_in: bool = False,
    without_data: str = "",
) -> TuningJob:
    """A job from the keys of a `Config`, without those that tuning sets itself.

    Args:
        name: of the file that the hyperparameters are written to.
        values: the job.
        changes: what takes the place of its values.
        config: both together, checked.
        methods: by name; None = the algorithms that it has tables of.
        stand_in: whether the stand-in takes the place of the paper's data.
        without_data: what to do where the data cannot be had.

    Raises:
        InputError: there is not a round to tune.
    """
    if config.rounds < 1:
        raise InputError("rounds = 0: there is nothing to tune without a round", code="out-of-range", field="rounds")
    left_out = (*OURS, *NOT_IN_JOB, "algorithms")
    plain = {key: value for key, value in {**values, **changes}.items() if key not in left_out}
    return TuningJob(
        name,
        {"validation": VALIDATION, **plain},
        methods or {name: TunedMethod(name, table) for name, table in config.algorithms.items()},
        stand_in,
        config.data_dir,
        without_data,
    )


def chosen_methods(text: str | None, job: TuningJob) -> list[str]:
    """The methods that are tuned: those named, else those that the job speaks of, else all algorithms.

    Args:
        text: names of the job's methods or of algorithms, with commas between them.
        job: what is tuned.

    Raises:
        InputError: an unknown name; the nearest is suggested.
    """
    if text is None:
        return list(job.methods or ALGORITHMS)
    known = dict.fromkeys((*job.methods, *KNOWN))
    names = [part.strip() for part in text.split(",")]
    kind = "method or algorithm" if job.methods.keys() - KNOWN else "algorithm"
    return list(dict.fromkeys(algorithm_name(n) if is_reference(n) else canonical(kind, n, known) for n in names))


def changes_of(texts: Sequence[str]) -> dict[str, object]:
    """The keys and values behind KEY=VALUE texts; a value that is no TOML is a text.

    Raises:
        InputError: not of that form, given twice, no such key, or one that tuning sets itself.
    """
    found: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        # Accept the spelling of command-line options.
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise InputError(
                f"--set '{text}' is not of the form KEY=VALUE, e.g. clients=10", code="invalid-format", field="set"
            )
        if key in OURS:
            raise InputError(f"--set '{text}': tuning sets {key} itself, remove it", code="unused-option", field=key)
        if key in ELSEWHERE:
            raise InputError(f"--set '{text}': {ELSEWHERE[key]}", code="unused-option", field=key)
        if key not in Config.model_fields:
            raise unknown("key", key, [k for k in Config.model_fields if k not in OURS and k not in ELSEWHERE])
        if key in found:
            raise InputError(f"--set gives {key} twice: leave one out", code="given-twice", field=key)
        try:
            found[key] = tomllib.loads(f"value = {value.strip()}")["value"]
        except (ValueError, RecursionError):  # also for numbers with thousands of digits and for deep nesting
            found[key] = value.strip()
    return found
