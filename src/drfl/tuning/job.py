"""What is tuned."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drfl.algorithms import ALGORITHMS
from drfl.errors import InputError, unknown
from drfl.experiments.build import VALIDATION
from drfl.experiments.config import Config, load_config
from drfl.experiments.hyperparameters import Value, algorithm_name
from drfl.experiments.training_cells import NOT_IN_JOB
from drfl.measure import Measure

FIRST_SEED = 1000
"""Tuning's seeds begin here, so that its partitions and initial models are others than those of seeds 0, 1, …"""

JUDGED = {"judged_on": "validation"}
"""What every run of a job is tested on."""

OURS = ("algorithm", "seed", "evaluate_every", "until", "certificate", "select", "patience", "judged_on")
"""Keys of a configuration that tuning sets itself; those of a job are passed over."""

ELSEWHERE = {
    "algorithms": "write it into a job file",
    "data_dir": "give it by --data-dir",
    "threads": "each run has one thread, and --jobs says how many run at once",
}
"""Keys that --set does not take, and what to do instead."""


@dataclass(frozen=True)
class TuningJob:
    """A job whose hyperparameters are looked for.

    Args:
        name: of the file that they are written to.
        values: keys of a `Config`.
        tables: what the job says of single algorithms.
        stand_in: whether the stand-in takes the place of the paper's data.
        data_dir: where the job's file says that the data lie.
    """

    name: str
    values: Mapping[str, object]
    tables: Mapping[str, Mapping[str, Value]]
    stand_in: bool = False
    data_dir: Path | None = None

    def config(self, algorithm: str, table: Mapping[str, Value], seed: int) -> Config:
        """One run: tested once, after its last round.

        Raises:
            InputError: a value is impossible.
        """
        values = {**self.values, **JUDGED}
        own = {"algorithm": algorithm, "algorithms": {algorithm: table}, "seed": seed}
        return load_config(None, {**values, **own, "evaluate_every": load_config(None, values).rounds})

    def measure(self) -> Measure:
        """The runs' score."""
        return load_config(None, {**self.values, **JUDGED}).measures()[0]


def from_file(path: Path, changes: Mapping[str, object]) -> TuningJob:
    """A job from its file.

    Args:
        path: a TOML file as `drfl compare` takes it.
        changes: keys of a `Config` that take the place of the job's.

    Raises:
        InputError: no such file, or an impossible value.
    """
    config = load_config(path, {**changes, **JUDGED})
    return of_values(path.stem, tomllib.loads(path.read_text(encoding="utf-8")), changes, config)


def of_values(
    name: str, values: Mapping[str, object], changes: Mapping[str, object], config: Config, *, stand_in: bool = False
) -> TuningJob:
    """A job from the keys of a `Config`, without those that tuning sets itself.

    Args:
        name: of the file that the hyperparameters are written to.
        values: the job.
        changes: what takes the place of its values.
        config: both together, checked.
        stand_in: whether the stand-in takes the place of the paper's data.

    Raises:
        InputError: there is not a round to tune.
    """
    if config.rounds < 1:
        raise InputError("rounds = 0: there is nothing to tune without a round")
    left_out = (*OURS, *NOT_IN_JOB, "algorithms")
    plain = {key: value for key, value in {**values, **changes}.items() if key not in left_out}
    return TuningJob(
        name,
        {"validation": VALIDATION, **plain},
        config.algorithms,
        stand_in,
        config.data_dir,
    )


def chosen_algorithms(text: str | None, job: TuningJob) -> list[str]:
    """The algorithms that are tuned: those named, else those that the job's file has tables of, else all.

    Raises:
        InputError: an unknown name; the nearest is suggested.
    """
    if text is None:
        return list(job.tables or ALGORITHMS)
    return list(dict.fromkeys(algorithm_name(part.strip()) for part in text.split(",")))


def changes_of(texts: Sequence[str]) -> dict[str, object]:
    """The keys and values behind KEY=VALUE texts; a value that is no TOML is a text.

    Raises:
        InputError: not of that form, given twice, no such key, or one that tuning sets itself.
    """
    found: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise InputError(f"--set '{text}' is not of the form KEY=VALUE, e.g. clients=10")
        if key in OURS:
            raise InputError(f"--set '{text}': tuning sets {key} itself, leave it out")
        if key in ELSEWHERE:
            raise InputError(f"--set '{text}': {ELSEWHERE[key]}")
        if key not in Config.model_fields:
            raise unknown("key", key, [k for k in Config.model_fields if k not in OURS and k not in ELSEWHERE])
        if key in found:
            raise InputError(f"--set gives {key} twice: leave one out")
        found[key] = _plain(value.strip())
    return found


def _plain(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # also of numbers with thousands of digits, and of deep nesting
        return text
