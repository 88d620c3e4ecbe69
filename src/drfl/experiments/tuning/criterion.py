"""The criterion that compares trials: a statistic over clients of the score, or a loss, of a run's model."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from drfl.core.errors import InputError, unknown
from drfl.core.run_end import FAILURES
from drfl.experiments.execution.records import Record
from drfl.experiments.run.measures import MetricColumn, column
from drfl.task.measure import Measure
from drfl.training.history import DIGITS, Metrics, columns_of, smaller_is_better
from drfl.training.model_selection import SHORT

WORDS: Mapping[str, str] = {
    "worst": "the worst client's {}",
    "worst20": "the mean {} of the worst 20 % of the clients",
    "average": "the mean {} of the clients",
    "loss": "the worst client's loss",
}
"""The criteria in words, by the names that model selection also uses; {} is the score."""


@dataclass(frozen=True)
class Criterion:
    """The criterion that compares trials.

    Args:
        name: "worst", "worst20" or "average" of the score over clients, or "loss", the worst client's.
        score: The runs' score, which defines whether more is better.
    """

    name: str
    score: Measure

    def __post_init__(self) -> None:
        if self.name not in WORDS:
            raise unknown("criterion", self.name, WORDS)

    @property
    def _field(self) -> str:
        return SHORT[self.name]

    @property
    def metric(self) -> str:
        """Its name in files, such as "worst_accuracy"."""
        return columns_of(self.score.name)[Metrics._fields.index(self._field)]

    @property
    def shown(self) -> MetricColumn:
        """How its values are shown."""
        return column(self.metric, (self.score,))

    @property
    def smaller(self) -> bool:
        """Whether less is better."""
        return smaller_is_better(self._field, self.score)

    @property
    def worst(self) -> float:
        """The value of a run without a model: 0 for fractions such as accuracy, otherwise an infinity."""
        if self.smaller:
            return math.inf
        # Use a finite value if possible, so that the mean over seeds is finite.
        return 0.0 if self.score.percent else -math.inf

    def sentence(self) -> str:
        """Describe it in words, for files."""
        value = "0" if self.worst == 0 else f"{self.worst:g}"
        return (
            f"mean over the seeds of {WORDS[self.name].format(self.score.words)} after the last round, on rows held "
            f"out of the clients' training rows; {value} if a run breaks off at any seed; test data are not touched"
        )

    def end(self, record: Record) -> str:
        """Return how a run ended: "rounds", or "diverged" or "refused" if there is no model to judge."""
        return str(record["stopped"])

    def undefined(self, record: Record) -> tuple[int, int]:
        """Return the number of clients at which a run's score is undefined, and of all clients; both are 0 for a failed
        run.

        A loss is never undefined.
        """
        values = cast("list[float]", record.get("accuracy", []))
        return 0 if self._field.endswith("_loss") else sum(math.isnan(float(x)) for x in values), len(values)

    def of(self, record: Record) -> float:
        """Return the value of a run's returned model; the worst value if the run failed or the score is undefined.

        Raises:
            InputError: If the run has another score.
        """
        rows = record["rows"]
        if self.end(record) in FAILURES or not isinstance(rows, list) or not rows:
            return self.worst
        if self.metric not in rows[-1]:
            raise InputError(
                f"the run's record has no {self.metric}: delete the folder of records, and run the command again",
                code="missing-results",
                field=self.metric,
            )
        value = float(rows[-1][self.metric])
        # Optuna rejects NaN, so an undefined score counts as the worst one.
        return self.worst if math.isnan(value) else value


def mean(scores: Sequence[float]) -> float:
    """Return the value of a trial: the mean over its seeds, with the digits of files."""
    return round(statistics.fmean(scores), DIGITS)
