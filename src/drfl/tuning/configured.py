"""The subjects of ``drfl tune``: algorithms by name, on a job from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from drfl import user_code
from drfl.experiments.build import build, load_data
from drfl.experiments.cells import Cell
from drfl.experiments.hyperparameters import Value
from drfl.experiments.training_cells import cost_of, job_of
from drfl.tuning import own_spaces, spaces
from drfl.tuning.criterion import Criterion
from drfl.tuning.job import FIRST_SEED, TuningJob
from drfl.tuning.search import Search
from drfl.tuning.suggestion import Point, needed

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Configured:
    """An algorithm by its name.

    Args:
        job: whose hyperparameters.
        algorithm: its name.
        clients: N.
        own: the reference of a space of the user's own; None = its class's, or drfl's.
    """

    job: TuningJob
    algorithm: str
    clients: int
    own: str | None = None

    @property
    def base(self) -> dict[str, Value]:
        """What all trials have in common."""
        return spaces.fixed(self.algorithm, self.job.tables.get(self.algorithm, {}), self.clients)

    @property
    def space(self) -> spaces.Space:
        """Where drfl looks for the hyperparameters of an algorithm that has no space of its own."""
        config = self.job.config(self.algorithm, self.base, FIRST_SEED)
        return spaces.around(self.algorithm, config.lr or spaces.USUAL)

    def fingerprint(self) -> dict[str, object]:
        """See :class:`drfl.tuning.search.Subject`."""
        own, name = own_spaces.of_name(self.algorithm, self.own), self.algorithm
        table = {f"{name}.{parameter}": value for parameter, value in self.base.items()}
        files = self.job.config(name, self.base, FIRST_SEED).user_files([name])
        if own is None:
            return {**table, **{f"the range of {name}.{d.name}": str(d) for d in self.space}, **_named(files)}
        if self.own is not None:
            files |= user_code.digests(self.own)
        return {**table, f"the space of {name}": self.own or "its class's", **_named(files)}

    def defaults(self) -> Point:
        """What the job says of the algorithm, else the defaults."""
        base = self.base
        config = self.job.config(self.algorithm, base, FIRST_SEED)
        table = spaces.default_table(config, base)
        if own_spaces.of_name(self.algorithm, self.own) is not None:
            return Point({}, table)
        values = spaces.default_point(config.parameters(self.algorithm), self.space)
        return Point(values, table, spaces.places(self.space) if values else {})

    def draw(self, trial: optuna.Trial) -> Point:
        """See :class:`drfl.tuning.search.Subject`."""
        own = own_spaces.of_name(self.algorithm, self.own)
        if own is None:
            values = spaces.draw(self.space, trial)
            return Point(values, spaces.table_at(self.space, self.base, values))
        table = own_spaces.parameters(user_code.label_of(self.algorithm), own, trial)
        return Point(dict(trial.params), {**self.base, **table})

    def cells(self, table: Mapping[str, Value], seeds: Sequence[int]) -> list[Cell]:
        """See :class:`drfl.tuning.search.Subject`."""
        configs = [self.job.config(self.algorithm, table, seed) for seed in seeds]
        return [Cell("training", job_of(config), cost_of(config)) for config in configs]


def _named(files: Mapping[str, str]) -> dict[str, object]:
    return {f"the SHA-256 of {path}": digest[:12] for path, digest in files.items()}


OF_ONE = ("algorithm", "algorithms", "seed", "files")
"""What differs from algorithm to algorithm in a job; the user's files are in each one's fingerprint."""


def prepare(
    job: TuningJob,
    algorithms: Sequence[str],
    *,
    trials: int,
    repeats: int,
    criterion: str,
    data_dir: Path | None,
    own: Mapping[str, str] | None = None,
) -> Search:
    """Load the data, so that downloads and features are at hand, and make sure that each algorithm can start.

    Args:
        job: what is run.
        algorithms: by name.
        trials: of each of them, the defaults included.
        repeats: seeds of each trial.
        criterion: what trials are compared by, see :class:`drfl.tuning.criterion.Criterion`.
        data_dir: where the data set's files lie.
        own: references of spaces of the user's own, by algorithm.

    Raises:
        InputError: the data cannot be had, an algorithm or a space cannot run on them, or Optuna is missing.
    """
    needed()
    judged = Criterion(criterion, job.measure())
    where = {} if data_dir is None else {"data_dir": data_dir}
    config = job.config(algorithms[0], job.tables.get(algorithms[0], {}), FIRST_SEED).model_copy(update=where)
    dataset = load_data(config)
    clients, references = build(config, dataset).data.n, own or {}
    subjects = {name: Configured(job, name, clients, references.get(name)) for name in algorithms}
    plain = job.config(algorithms[0], {}, FIRST_SEED)
    common = {key: value for key, value in job_of(plain).items() if key not in OF_ONE}
    about = {
        "rounds": plain.rounds,
        "validation": plain.validation,
        "score": judged.score.name,
        "stand_in": job.stand_in,
        "device": plain.device,
        "job": dict(job.values),
    }
    search = Search(job.name, subjects, trials, repeats, judged, common, about)
    for name, subject in subjects.items():
        build(job.config(name, subject.defaults().table, FIRST_SEED), dataset)
        if own_spaces.of_name(name, subject.own) is not None:  # of which nobody knows yet whether it works
            build(job.config(name, search.suggested(name, ()).table, FIRST_SEED), dataset)
    return search
