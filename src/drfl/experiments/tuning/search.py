"""A search: the trials of several subjects, each an algorithm with a space of its hyperparameters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from drfl.core.key import Key
from drfl.experiments.config.hyperparameters import Value
from drfl.experiments.execution import cells
from drfl.experiments.execution.cells import Cell
from drfl.experiments.tuning.criterion import Criterion
from drfl.experiments.tuning.job import FIRST_SEED
from drfl.experiments.tuning.suggestion import SearchPoint, Trial, best, import_optuna, suggest

if TYPE_CHECKING:
    import optuna


class SearchSubject(Protocol):
    """An algorithm whose hyperparameters are searched for, by its name in a job's file or as an object."""

    def fingerprint(self) -> Mapping[str, object]:
        """Return everything that its trials depend on besides :attr:`Search.common`, as plain values."""
        ...

    def defaults(self) -> SearchPoint | None:
        """Return the first trial; None if there are no defaults, so that it is suggested like the others."""
        ...

    def draw(self, trial: optuna.Trial) -> SearchPoint:
        """Draw a point with an Optuna trial; its places are left empty."""
        ...

    def cells(self, table: Mapping[str, Value], seeds: Sequence[int]) -> list[Cell]:
        """Return the runs of a trial, one per seed."""
        ...


@dataclass(frozen=True)
class Search:
    """The definition of a search.

    Args:
        name: The name of the file with the hyperparameters.
        subjects: The algorithms, by name.
        trials: The number of trials of each algorithm.
        repeats: The number of seeds of each trial.
        criterion: Compares trials.
        common: The settings that all runs share, with all defaults, as plain values.
        about: The description of the job in the file of hyperparameters.
    """

    name: str
    subjects: Mapping[str, SearchSubject]
    trials: int
    repeats: int
    criterion: Criterion
    common: Mapping[str, object]
    about: Mapping[str, object]

    @property
    def seeds(self) -> range:
        """The seeds of every trial."""
        return range(FIRST_SEED, FIRST_SEED + self.repeats)

    def fingerprint(self, name: str) -> dict[str, object]:
        """Return everything that a subject's trials depend on, except their number."""
        return {
            **self.common,
            "metric": self.criterion.metric,
            "seeds": self.repeats,
            **self.subjects[name].fingerprint(),
            # Another version may suggest other points from the same trials.
            "optuna": import_optuna().__version__,
            "the format of records": cells.FORMAT,
        }

    def best(self, trials: Sequence[Trial]) -> Trial:
        """Return the best trial, the earliest of equally good ones."""
        return best(trials, smaller=self.criterion.smaller)

    def next_point(self, name: str, trials: Sequence[Trial]) -> SearchPoint:
        """Return the point of the trial after these."""
        subject = self.subjects[name]
        # The first trial runs the defaults, so that tuning never returns a worse setting.
        defaults = None if trials else subject.defaults()
        return self.suggest_point(name, trials) if defaults is None else defaults

    def suggest_point(self, name: str, trials: Sequence[Trial]) -> SearchPoint:
        """Return the point that Optuna suggests after these trials."""
        # The key depends on the trial's number, not on earlier runs, so a resumed search draws the same trials.
        key = Key(0).fold("tuning", json.dumps(dict(self.common), sort_keys=True), name, len(trials))
        return suggest(self.subjects[name].draw, trials, key, smaller=self.criterion.smaller)

    def cells(self, name: str, table: Mapping[str, Value]) -> list[Cell]:
        """Return the runs of a trial, one per seed."""
        return self.subjects[name].cells(table, self.seeds)
