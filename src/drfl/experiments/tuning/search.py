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
from drfl.experiments.tuning.suggestion import SearchPoint, Trial, best, needed, suggest

if TYPE_CHECKING:
    import optuna


class SearchSubject(Protocol):
    """An algorithm whose hyperparameters are looked for, be it named in a job's file or an object."""

    def fingerprint(self) -> Mapping[str, object]:
        """All that its trials depend on besides the search's :attr:`Search.common`, as plain values."""
        ...

    def defaults(self) -> SearchPoint | None:
        """The first trial; None where there are no defaults, and it is suggested like the others."""
        ...

    def draw(self, trial: optuna.Trial) -> SearchPoint:
        """Another one, drawn by an Optuna trial; its places are left out.

        Raises:
            InputError: the user's own space fails.
        """
        ...

    def cells(self, table: Mapping[str, Value], seeds: Sequence[int]) -> list[Cell]:
        """The runs of a trial, a seed each.

        Raises:
            InputError: a value is impossible.
        """
        ...


@dataclass(frozen=True)
class Search:
    """What is to be found out.

    Args:
        name: of the file that the hyperparameters are written to.
        subjects: whose hyperparameters, by name.
        trials: of each of them.
        repeats: seeds of each trial.
        criterion: what trials are compared by.
        common: what all runs have in common, all options spelt out, as plain values.
        about: what the file of hyperparameters says of the job.
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
        """The tuning seeds."""
        return range(FIRST_SEED, FIRST_SEED + self.repeats)

    def fingerprint(self, name: str) -> dict[str, object]:
        """All that a subject's trials depend on, but for their number."""
        return {
            **self.common,
            "metric": self.criterion.metric,
            "seeds": self.repeats,
            **self.subjects[name].fingerprint(),
            "optuna": needed().__version__,
            "the format of records": cells.FORMAT,
        }

    def best(self, trials: Sequence[Trial]) -> Trial:
        """The best of some trials; of equal ones the earliest."""
        return best(trials, smaller=self.criterion.smaller)

    def following(self, name: str, trials: Sequence[Trial]) -> SearchPoint:
        """What the trial after these tries."""
        subject = self.subjects[name]
        # The first trial runs the defaults, so that tuning never returns less than they give.
        defaults = None if trials else subject.defaults()
        return self.suggested(name, trials) if defaults is None else defaults

    def suggested(self, name: str, trials: Sequence[Trial]) -> SearchPoint:
        """What Optuna would try after these."""
        # The key depends on the trial's number, not on what ran before: a resumed search draws the same trials.
        key = Key(0).fold("tuning", json.dumps(dict(self.common), sort_keys=True), name, len(trials))
        return suggest(self.subjects[name].draw, trials, key, smaller=self.criterion.smaller)

    def cells(self, name: str, table: Mapping[str, Value]) -> list[Cell]:
        """The runs of a trial, a seed each."""
        return self.subjects[name].cells(table, self.seeds)
