"""A search: the trials of one algorithm, suggested by Optuna."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from drfl.errors import InputError
from drfl.experiments import cells
from drfl.experiments.build import build, load_data
from drfl.experiments.cells import Cell
from drfl.experiments.hyperparameters import Value
from drfl.experiments.training_cells import cost_of, job_of
from drfl.key import Key
from drfl.tuning import job, spaces
from drfl.tuning.job import FIRST_SEED, Metric, TuningJob
from drfl.tuning.spaces import Dimension, Space, rounded

if TYPE_CHECKING:
    from optuna.distributions import FloatDistribution


class Trial(NamedTuple):
    """A trial that ended.

    Args:
        number: of the trial; 0 is the defaults.
        point: where it lies in the search space; some dimensions may be missing in trial 0.
        table: the algorithm's parameters as they ran.
        scores: by seed, fractions; 0 where the run broke off.
        stopped: by seed, how the run ended: "rounds", "diverged" or "refused".
    """

    number: int
    point: dict[str, float]
    table: dict[str, Value]
    scores: tuple[float, ...]
    stopped: tuple[str, ...]

    @property
    def score(self) -> float:
        """What it is judged by."""
        return job.mean(self.scores)


def best(trials: Sequence[Trial]) -> Trial:
    """The one with the best score; of equal ones the earliest."""
    return max(trials, key=lambda trial: (trial.score, -trial.number))


STARTUP = 8
"""So many points are drawn at random before the estimator has its say."""


def needed() -> ModuleType:
    """Optuna, told to be quiet.

    Raises:
        InputError: it is not installed.
    """
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:
        raise InputError("tuning needs optuna: pip install 'drfl[experiments]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def distribution(dimension: Dimension) -> FloatDistribution:
    """A dimension in Optuna's terms."""
    from optuna.distributions import FloatDistribution

    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def suggest(space: Space, trials: Sequence[Trial], key: Key) -> dict[str, float]:
    """The next point. It depends on the arguments alone.

    Trials that have no place in the space, as a default that is a rule and no number, are passed over.

    Args:
        space: where to look.
        trials: those that ended, in order.
        key: names the draws; another one for every trial.

    Returns:
        A value by dimension, to three significant digits.
    """
    optuna = needed()
    sampler = optuna.samplers.TPESampler(
        seed=key.integer(0, 2**32 - 1), n_startup_trials=STARTUP, multivariate=True, constant_liar=False
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    places = {dimension.name: distribution(dimension) for dimension in space}
    for trial in trials:
        if trial.point.keys() == places.keys():
            study.add_trial(optuna.trial.create_trial(value=trial.score, params=trial.point, distributions=places))
    asked = study.ask(places)
    return {name: rounded(asked.params[name]) for name in places}


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

    job: TuningJob
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
    job: TuningJob, algorithms: Sequence[str], *, trials: int, repeats: int, metric: Metric, data_dir: Path | None
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
