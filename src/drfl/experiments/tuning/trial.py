"""A trial: one setting of an algorithm's hyperparameters, run at every seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from drfl.experiments.parameters import Value
from drfl.experiments.tuning import criterion


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
        return criterion.mean(self.scores)


def best(trials: Sequence[Trial]) -> Trial:
    """The one with the best score; of equal ones the earliest."""
    return max(trials, key=lambda trial: (trial.score, -trial.number))
