"""What a search is: a job, its algorithms, and how each trial follows from those before it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drfl.experiments.build import build, load_data
from drfl.experiments.parameters import Value
from drfl.experiments.reproduce import cells
from drfl.experiments.reproduce.cells import Cell
from drfl.experiments.reproduce.training import cost_of, job_of
from drfl.experiments.tuning import spaces
from drfl.experiments.tuning.criterion import FIRST_SEED, Metric
from drfl.experiments.tuning.job import Job
from drfl.experiments.tuning.suggest import needed, suggest
from drfl.experiments.tuning.trial import Trial
from drfl.key import Key


@dataclass(frozen=True)
class Search:
    """What is to be found out.

    Args:
        job: whose hyperparameters.
        algorithms: of whom.
        trials: of each algorithm, the defaults included.
        repeats: seeds of each trial.
        metric: what is judged.
        clients: N.
    """

    job: Job
    algorithms: tuple[str, ...]
    trials: int
    repeats: int
    metric: Metric
    clients: int

    @property
    def seeds(self) -> range:
        """The tuning seeds."""
        return range(FIRST_SEED, FIRST_SEED + self.repeats)

    def base(self, algorithm: str) -> dict[str, Value]:
        """What all trials of an algorithm have in common."""
        return spaces.fixed(algorithm, self.job.tables.get(algorithm, {}), self.clients)

    def space(self, algorithm: str) -> spaces.Space:
        """Where an algorithm's hyperparameters are looked for."""
        config = self.job.config(algorithm, self.base(algorithm), FIRST_SEED)
        return spaces.around(algorithm, config.lr or spaces.USUAL)

    def fingerprint(self, algorithm: str) -> dict[str, object]:
        """All that an algorithm's trials depend on, but for their number."""
        return {
            **self._common(),
            **{f"{algorithm}.{name}": value for name, value in self.base(algorithm).items()},
            **{f"the range of {algorithm}.{d.name}": str(d) for d in self.space(algorithm)},
            "metric": self.metric,
            "seeds": self.repeats,
            "optuna": needed().__version__,
            "the format of records": cells.FORMAT,
        }

    def first(self, algorithm: str) -> tuple[dict[str, float], dict[str, Value]]:
        """Point and table of trial 0, the defaults."""
        base = self.base(algorithm)
        config = self.job.config(algorithm, base, FIRST_SEED)
        return spaces.point_of(config, self.space(algorithm)), spaces.default_table(config, base)

    def following(self, algorithm: str, trials: Sequence[Trial]) -> tuple[dict[str, float], dict[str, Value]]:
        """Point and table of the trial after these."""
        if not trials:
            return self.first(algorithm)
        key = Key(0).fold("tuning", json.dumps(self._common(), sort_keys=True), algorithm, len(trials))
        point = suggest(self.space(algorithm), trials, key)
        return point, spaces.table_at(algorithm, self.base(algorithm), point)

    def cells(self, algorithm: str, table: Mapping[str, Value]) -> list[Cell]:
        """The runs of a trial, a seed each."""
        configs = [self.job.config(algorithm, table, seed) for seed in self.seeds]
        return [Cell("training", job_of(config), cost_of(config)) for config in configs]

    def _common(self) -> dict[str, object]:
        """The job without what differs from run to run, all options spelt out."""
        config = self.job.config(self.algorithms[0], {}, FIRST_SEED)
        return {k: v for k, v in job_of(config).items() if k not in ("algorithm", "algorithms", "seed")}


def prepare(
    job: Job, algorithms: Sequence[str], *, trials: int, repeats: int, metric: Metric, data_dir: Path | None
) -> Search:
    """Load the data, so that downloads and features are at hand, and make sure that each algorithm can start.

    Raises:
        InputError: the data cannot be had, an algorithm cannot run on them, or Optuna is missing.
    """
    needed()
    where = {} if data_dir is None else {"data_dir": data_dir}
    config = job.config(algorithms[0], job.tables.get(algorithms[0], {}), FIRST_SEED).model_copy(update=where)
    dataset = load_data(config)
    clients = build(config, dataset).data.n
    search = Search(job, tuple(algorithms), trials, repeats, metric, clients)
    for algorithm in algorithms:
        build(job.config(algorithm, search.first(algorithm)[1], FIRST_SEED), dataset)
    return search
