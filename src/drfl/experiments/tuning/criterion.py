"""What trials are compared by: a statistic over clients of the score, or a loss, of a run's model."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from drfl.core.errors import InputError, unknown
from drfl.core.run_end import BROKEN
from drfl.experiments.execution.records import Record
from drfl.experiments.run.measures import Column, column
from drfl.task.measure import Measure
from drfl.training.history import DIGITS, Metrics, columns_of, smaller_is_better
from drfl.training.model_selection import SHORT

WORDS: Mapping[str, str] = {
    "worst": "the worst client's {}",
    "worst20": "the mean {} of the worst 20 % of the clients",
    "average": "the mean {} of the clients",
    "loss": "the worst client's loss",
}
"""The criteria in words, by the names that model selection has for them too; {} is the score."""


@dataclass(frozen=True)
class Criterion:
    """What trials are compared by.

    Args:
        name: "worst", "worst20" or "average" of the score over clients, or "loss", the worst client's.
        score: the runs' score, which says whether more is better.
        halving_diverges: whether a run that halved the step size that it had found, as the loss rose, counts as
            diverged. So it is where multiples of that step size are compared, as a multiple that was halved is another.

    Raises:
        InputError: there is no such criterion.
    """

    name: str
    score: Measure
    halving_diverges: bool = False

    def __post_init__(self) -> None:
        if self.name not in WORDS:
            raise unknown("criterion", self.name, WORDS)

    @property
    def _field(self) -> str:
        return SHORT[self.name]

    @property
    def metric(self) -> str:
        """What files call it, e.g. "worst_accuracy"."""
        return columns_of(self.score.name)[Metrics._fields.index(self._field)]

    @property
    def shown(self) -> Column:
        """How its values are shown."""
        return column(self.metric, (self.score,))

    @property
    def smaller(self) -> bool:
        """Whether less is better."""
        return smaller_is_better(self._field, self.score)

    @property
    def worst(self) -> float:
        """What counts for a run without a model: 0 of a fraction such as accuracy, else an infinity."""
        if self.smaller:
            return math.inf
        # Finite if possible, so that the mean over seeds is a number.
        return 0.0 if self.score.percent else -math.inf

    def sentence(self) -> str:
        """It in words, for files."""
        value = "0" if self.worst == 0 else f"{self.worst:g}"
        fails = "breaks off, or halves its step size," if self.halving_diverges else "breaks off"
        return (
            f"mean over the seeds of {WORDS[self.name].format(self.score.words)} after the last round, on rows held "
            f"out of the clients' training rows; {value} if a run {fails} at any seed; test data are not touched"
        )

    def end(self, record: Record) -> str:
        """How a run ended: "rounds", or "diverged" or "refused", where there is no model to judge.

        Args:
            record: of a training cell.
        """
        return "diverged" if self.halving_diverges and record.get("halved", 0) else str(record["stopped"])

    def undefined(self, record: Record) -> tuple[int, int]:
        """At how many clients the score of a run is undefined, and of how many; of no client if the run broke off.

        A loss is never undefined.

        Args:
            record: of a training cell.
        """
        values = cast("list[float]", record.get("accuracy", []))
        return 0 if self._field.endswith("_loss") else sum(math.isnan(float(x)) for x in values), len(values)

    def of(self, record: Record) -> float:
        """One run's: of its last model; the worst value where it broke off, or the score is not defined.

        Args:
            record: of a training cell, see `drfl.experiments.execution.training_cells.train`.

        Raises:
            InputError: the run had another score.
        """
        rows = record["rows"]
        if self.end(record) in BROKEN or not isinstance(rows, list) or not rows:
            return self.worst
        if self.metric not in rows[-1]:
            raise InputError(
                f"the run's record has no {self.metric}: delete the folder of records, and run it again",
                code="missing-results",
                field=self.metric,
            )
        value = float(rows[-1][self.metric])
        # Optuna rejects NaN: an undefined score counts as the worst.
        return self.worst if math.isnan(value) else value


def mean(scores: Sequence[float]) -> float:
    """A trial's score: the mean over its seeds, to as many digits as files have."""
    return round(statistics.fmean(scores), DIGITS)
