"""What is tuned: a job of the papers or one of the user's, with changes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drfl.algorithms import ALGORITHMS
from drfl.errors import InputError, unknown
from drfl.experiments.config import Config, load_config
from drfl.experiments.parameters import Value, canonical
from drfl.experiments.reproduce.spec import PAPERS, Spec, load_job, load_spec, names
from drfl.experiments.reproduce.training import NOT_IN_JOB
from drfl.experiments.tuning.criterion import VALIDATION

OURS = ("algorithm", "seed", "evaluate_every", "until", "certificate")
"""Keys of a configuration that tuning sets itself; those of a job are passed over."""

ELSEWHERE = {
    "algorithms": "write it into a job file",
    "data_dir": "give it by --data-dir",
    "threads": "each run has one thread, and --jobs says how many run at once",
}
"""Keys that --set does not take, and what to do instead."""


@dataclass(frozen=True)
class Job:
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
        rounds = load_config(None, self.values).rounds
        own = {"algorithm": algorithm, "algorithms": {algorithm: table}, "seed": seed, "evaluate_every": rounds}
        return load_config(None, {**self.values, **own})


def resolve(text: str, changes: Mapping[str, object], *, stand_in: bool = False) -> Job:
    """A job by its name among the papers', or by its file.

    Args:
        text: a name such as "mnist-linear", or the path of a TOML file as `drfl compare` takes it.
        changes: keys of a `Config` that take the place of the job's.
        stand_in: take what is run where the paper's data cannot be had.

    Raises:
        InputError: no such job or file, no stand-in, or an impossible value.
    """
    if Path(text).suffix == ".toml":
        if stand_in:
            raise InputError("--stand-in is for the papers' jobs: leave it out beside a file")
        name, config = Path(text).stem, load_config(Path(text), changes)
        values = tomllib.loads(Path(text).read_text(encoding="utf-8"))
    else:
        name = _known(text)
        values = dict[str, object](load_job(name))
        if stand_in:
            name, changed = _stand_in(name)
            values |= changed
        config = load_config(None, {**values, **changes})
    if config.rounds < 1:
        raise InputError("rounds = 0: there is nothing to tune without a round")
    left_out = (*OURS, *NOT_IN_JOB, "algorithms")
    plain = {key: value for key, value in {**values, **changes}.items() if key not in left_out}
    return Job(name, {"validation": VALIDATION, **plain}, config.algorithms, stand_in, config.data_dir)


def chosen_algorithms(text: str | None, job: Job) -> list[str]:
    """The algorithms that are tuned: those named, else those that the job's file has tables of, else all.

    Raises:
        InputError: an unknown name; the nearest is suggested.
    """
    if text is None:
        return list(job.tables or ALGORITHMS)
    return list(dict.fromkeys(canonical("algorithm", part.strip(), ALGORITHMS) for part in text.split(",")))


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


def _known(text: str) -> str:
    known = sorted(path.stem for path in (PAPERS / "jobs").glob("*.toml"))
    try:
        return canonical("job", text, dict.fromkeys(known))
    except InputError as error:
        raise InputError(f"{error}, or give a TOML file, whose name ends in .toml") from None


def _plain(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # also of numbers with thousands of digits, and of deep nesting
        return text


def _stand_in(job: str) -> tuple[str, Mapping[str, object]]:
    """The name of the hyperparameter file and the changed keys of a job's stand-in, as the papers' tables have it."""
    found: list[tuple[str, Mapping[str, object]]] = []
    for spec in map(load_spec, names()):
        own = _of(spec) if spec.job == job else None
        if own is not None and own not in found:
            found.append(own)
    if not found:
        raise InputError(f"the job '{job}' has no stand-in: leave --stand-in out")
    if len(found) > 1:
        raise InputError(f"the job '{job}' has {len(found)} stand-ins: say which data by --set dataset=NAME")
    return found[0]


def _of(spec: Spec) -> tuple[str, Mapping[str, object]] | None:
    if spec.stand_in is None or (spec.stand_in.tuned or spec.tuned) is None:
        return None
    return str(spec.stand_in.tuned or spec.tuned), spec.stand_in.job
