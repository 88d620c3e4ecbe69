"""The job to tune, from a TOML file or by the name that an installed package gives it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol, cast

from drfl.algorithms import ALGORITHMS
from drfl.core import checks
from drfl.core.errors import InputError, unknown
from drfl.core.json_toml import toml_value
from drfl.core.plugins import plugins
from drfl.core.user_code import is_reference, label_of
from drfl.experiments.config.build import VALIDATION
from drfl.experiments.config.config import Config, code_references, config_of, load_config, read_file
from drfl.experiments.config.hyperparameters import KNOWN, Value, algorithm_name, canonical
from drfl.experiments.execution.training_cells import NOT_IN_JOB
from drfl.task.measure import Measure

FIRST_SEED = 1000
"""The first seed for tuning. It differs from 0, 1, … so that tuning has other partitions and initial models."""

VALIDATION_SETTINGS = {"judged_on": "validation", "select": None, "patience": None, "until": None}
"""The rows that runs of a job are tested on. Nothing else may use these rows."""

SEARCH_SETTINGS = ("algorithm", "seed", "evaluate_every", "until", "certificate", "select", "patience", "judged_on")
"""Keys of a configuration that tuning sets itself; those of a job are ignored."""

ELSEWHERE = {
    "algorithms": "write it into a job file",
    "data_dir": "use `data_dir`",
    "threads": "each run has one thread; use `jobs` for the number of parallel runs",
}
"""Keys that --set rejects, with the remedy."""


class TunedMethod(NamedTuple):
    """An algorithm as a job has it, such as SCAFF-PD with 20 clients per round.

    Args:
        algorithm: Its name.
        table: Parameters of all its trials; of the first trial only, if a parameter is searched for.
        changes: Keys of a `Config` in which it differs from the job.
        held: Whether the table's values define the method, so that none of them is searched for.
    """

    algorithm: str
    table: Mapping[str, Value] = MappingProxyType({})
    changes: Mapping[str, object] = MappingProxyType({})
    held: bool = False


@dataclass(frozen=True)
class TuningJob:
    """A job whose hyperparameters are searched for.

    Args:
        name: The name of the file with the result.
        values: Keys of a `Config`.
        methods: The job's methods, by name.
        stand_in: Whether a stand-in replaces the paper's data.
        data_dir: The folder of the data, from the job's file.
        without_data: What to do if the data are not available.
    """

    name: str
    values: Mapping[str, object]
    methods: Mapping[str, TunedMethod]
    stand_in: bool = False
    data_dir: Path | None = None
    without_data: str = ""

    def method(self, name: str) -> TunedMethod:
        """Return the job's method of this name, or the algorithm of this name."""
        return self.methods.get(name) or TunedMethod(name)

    def config(self, method: TunedMethod, table: Mapping[str, Value], seed: int) -> Config:
        """Return the configuration of a run, which is tested once, after its last round."""
        choice = {"algorithm": method.algorithm, "algorithms": {method.algorithm: table}, "seed": seed}
        config = load_config(None, {**self.values, **method.changes, **VALIDATION_SETTINGS, **choice})
        return config.model_copy(update={"evaluate_every": config.rounds})

    def measure(self) -> Measure:
        """Return the runs' score."""
        return load_config(None, {**self.values, **VALIDATION_SETTINGS}).measures[0]


class NamedJobs(Protocol):
    """The functions of an object, or a module, that an entry point of the group ``drfl.tuning_jobs`` names."""

    def job_names(self) -> Sequence[str]:
        """Return the names of its jobs."""
        ...

    def job(self, name: str, changes: Mapping[str, object], *, stand_in: bool = False) -> TuningJob:
        """Return a job with some values changed; with ``stand_in`` on data that replace those of a paper."""
        ...


def resolve(
    text: str,
    changes: Mapping[str, object],
    *,
    stand_in: bool = False,
    trust: bool = False,
    algorithms: Collection[str] = (),
) -> TuningJob:
    """Return a job by its name, or from its file.

    For the other arguments see :func:`from_file`. With ``stand_in`` the job uses data that replace those of a paper.
    """
    if Path(text).suffix == ".toml":
        if stand_in:
            raise InputError(
                "--stand-in has no effect on a job file: remove it", code="unused-option", field="stand_in"
            )
        return from_file(Path(text), changes, trust=trust, algorithms=algorithms)
    known = {name: jobs for _, jobs in plugins("drfl.tuning_jobs") for name in cast("NamedJobs", jobs).job_names()}
    try:
        name = canonical("job", text, known)
    except InputError as error:
        raise InputError(
            f"{error}, or pass a TOML file with a name ending in .toml", code=error.code, field=error.field
        ) from None
    return cast("NamedJobs", known[name]).job(name, changes, stand_in=stand_in)


def from_file(
    path: Path, changes: Mapping[str, object], *, trust: bool = False, algorithms: Collection[str] = ()
) -> TuningJob:
    """Read a job from its file.

    ``algorithms`` are tuned: their tables may have the name of a user's class without its file.
    """
    values = read_file(path, code_references(changes), trust=trust)
    return make_job(path.stem, values, changes, config_of(values, {**changes, **VALIDATION_SETTINGS}, algorithms))


def make_job(
    name: str,
    values: Mapping[str, object],
    changes: Mapping[str, object],
    config: Config,
    *,
    methods: Mapping[str, TunedMethod] | None = None,
    stand_in: bool = False,
    without_data: str = "",
) -> TuningJob:
    """Make a job from the keys of a `Config`, without those that tuning sets itself.

    ``config`` is the checked configuration of ``values`` and ``changes``. Without ``methods``, the algorithms with a
    table are the methods. For the others see :class:`TuningJob`.
    """
    if config.rounds < 1:
        raise InputError("`rounds` must be at least 1 for tuning, got 0", code="out-of-range", field="rounds")
    left_out = (*SEARCH_SETTINGS, *NOT_IN_JOB, "algorithms")
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
    """Return the methods to tune: those named, else those of the job, else all algorithms."""
    if text is None:
        return list(job.methods or ALGORITHMS)
    # A user's class can be named without its file.
    labels = {label_of(name): name for name in job.methods}
    known = dict.fromkeys((*job.methods, *labels, *KNOWN))
    names = [part.strip() for part in text.split(",")]
    kind = "method or algorithm" if job.methods.keys() - KNOWN else "algorithm"
    full = (algorithm_name(n) if is_reference(n) else canonical(kind, n, known) for n in names)
    chosen = [labels.get(name, name) for name in full]
    checks.distinct("--algorithms", chosen, field="algorithms")
    return chosen


def changes_of(texts: Sequence[str]) -> dict[str, object]:
    """Parse texts of the form KEY=VALUE. A value that is not TOML is a text."""
    changes: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        # Accept the spelling of command-line options.
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise InputError(
                f"--set '{text}' must have the form KEY=VALUE, such as clients=10", code="invalid-format", field="set"
            )
        if key in SEARCH_SETTINGS:
            raise InputError(f"--set '{text}': tuning sets {key} itself: remove it", code="unused-option", field=key)
        if key in ELSEWHERE:
            raise InputError(f"--set '{text}': {ELSEWHERE[key]}", code="unused-option", field=key)
        if key not in Config.model_fields:
            raise unknown(
                "key", key, [k for k in Config.model_fields if k not in SEARCH_SETTINGS and k not in ELSEWHERE]
            )
        if key in changes:
            raise InputError(f"--set gives {key} twice: remove one", code="given-twice", field=key)
        changes[key] = toml_value(value.strip())
    return changes
