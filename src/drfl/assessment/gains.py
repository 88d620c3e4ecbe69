"""Compare two models on the same test rows: confidence intervals for each client's gain and for the worst client's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from drfl.assessment.clients import (
    AucInterval,
    auc_interval_of,
    check_level,
    no_patient_intervals,
    scores_of,
    undefined_everywhere,
)
from drfl.assessment.clusters import ClusterScores
from drfl.assessment.differences import BinaryGains, Gains, MeanGains, WorstGain, worst_gain
from drfl.assessment.scores import Floats, RankScores
from drfl.assessment.seeds import holm
from drfl.core.errors import InputError
from drfl.core.html_table import html_table
from drfl.task.measure import Measure, Rows, undefined_note

if TYPE_CHECKING:
    import pandas as pd

    from drfl.data.row_scores import RowScores


def with_row_values(measure: Measure) -> str:
    """Return the remedy for a measure that has no value for a single row: a metric of the same task that has one."""
    from drfl.task.metrics import METRICS  # this import loads torch

    if measure.name not in METRICS:
        return "run with the metric accuracy as well, or with mae for regression"
    name = "mae" if measure.name in ("rmse", "r2") else "accuracy"
    return f"run with the metric {name} as well"


@dataclass(frozen=True, eq=False, repr=False)
class GainAssessment:
    """Model B against model A on the same test rows of N clients. Gains are B − A, turned so that larger is better.

    Args:
        measure: The measure that was assessed.
        level: Confidence level of every interval, such as 0.95.
        names: (N,) Names of the clients.
        samples: (N,) Test rows.
        values: (N,) Measured gains; NaN if the measure is undefined with either model.
        low: (N,) Lower ends of their intervals, simultaneous over clients; NaN for a client without a gain.
        high: (N,) Upper ends.
        p_holm: (N,) Two-sided p-values of "no gain" after Holm's correction; a gain or loss is significant if at most 1
            − level.
        worst: Difference between B's worst client and A's, whichever they are, among the clients that have a gain.
    """

    measure: Measure
    level: float
    names: tuple[str, ...]
    samples: NDArray[np.int64]
    values: Floats
    low: Floats
    high: Floats
    p_holm: Floats
    worst: WorstGain

    @property
    def better(self) -> list[str]:
        """The clients at which B is significantly better."""
        return self._significant(self.values > 0)

    @property
    def worse(self) -> list[str]:
        """The clients at which B is significantly worse."""
        return self._significant(self.values < 0)

    @property
    def undefined(self) -> list[str]:
        """The clients at which the measure is undefined with either model; they are neither better nor worse."""
        return [name for name, value in zip(self.names, self.values, strict=True) if np.isnan(value)]

    @property
    def note(self) -> str:
        """Note on undefined clients to follow the worst client's gain, see :func:`drfl.task.measure.undefined_note`."""
        return undefined_note([len(self.undefined)], [len(self.names)])

    def _significant(self, which: NDArray[np.bool_]) -> list[str]:
        significant = which & (self.p_holm <= 1 - self.level)
        return [name for name, is_significant in zip(self.names, significant, strict=True) if is_significant]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per client, in order: client, samples, gain, low, high, p_holm."""
        import pandas as pd

        columns = {"gain": self.values, "low": self.low, "high": self.high, "p_holm": self.p_holm}
        return pd.DataFrame({"client": self.names, "samples": self.samples, **columns})

    def __repr__(self) -> str:
        scale, digits, worst = self.measure.scale, self.measure.digits, self.worst
        low, high = (f"{scale * end:+.{digits}f}" for end in (worst.low, worst.high))
        return (
            f"<GainAssessment of {len(self.names)} client{'s' * (len(self.names) > 1)}: "
            f"worst client's {self.measure.words}: {worst.shown}, gain "
            f"between {low} and {high}{self.note}; significant at single clients: {len(self.better)} better, "
            f"{len(self.worse)} worse>"
        )

    def _repr_html_(self) -> str:
        return html_table(repr(self), self.to_frame().sort_values("gain").head(10))


def assess_gain(
    measure: Measure,
    names: Sequence[str],
    first: Floats,
    second: Floats,
    products: Floats,
    *,
    level: float = 0.95,
    independent: bool = True,
    auc_interval: AucInterval = "delong",
) -> GainAssessment:
    """Assess model B against model A from the sums of both on the same rows.

    Args:
        measure: The measure, a mean over rows or a ranking of them.
        names: (N,) Names of the clients.
        first: (N, 5) Model A's sums over each client's rows, see :class:`drfl.federation.federation.Evaluation`.
        second: (N, 5) Model B's sums.
        products: (N, 2) Sums over rows of A's value times B's, see :func:`drfl.data.row_scores.products`; (N,) is
            enough for a mean over rows.
        level: Confidence level of the intervals, in (0, 1).
        independent: Whether no two clients share a test row.
        auc_interval: See :func:`drfl.assessment.clients.assess_clients`.

    Raises:
        InputError: If the measure has no value for a single row, the level is invalid, or no client has a value with
            both models.
    """
    check_level(level)
    if not measure.rows.paired:
        raise no_row_values(measure)
    n = first[:, 0] + (first[:, 1] if measure.rows is Rows.RANKS else 0)
    products = products.reshape(len(names), -1)
    # Use only the clients at which the measure is defined for both models.
    known = np.isfinite(first + second).all(1) & np.isfinite(products).all(1)
    known &= np.isfinite(scores_of(measure, first).values)
    if not known.any():
        raise undefined_everywhere(measure)
    first, second, products = first[known], second[known], products[known]
    a, b = (scores_of(measure, sums, auc_interval_of(auc_interval)) for sums in (first, second))
    gains: Gains
    if isinstance(a, RankScores) and isinstance(b, RankScores):
        gains = MeanGains(a.gain(b, products), True)
    elif isinstance(a, ClusterScores):
        # (1 + d)/2 is in [0, 1], as the scores themselves are.
        total = (first[:, 0] + second[:, 1] - first[:, 1]) / 2
        gains = MeanGains(ClusterScores(first[:, 0], total, a.largest), True)
    elif measure.rows is Rows.BINARY:
        # Count the rows that only B and those that only A gets right; the others carry no information (McNemar).
        gains = BinaryGains(first[:, 0], second[:, 1] - products[:, 0], first[:, 1] - products[:, 0])
    else:
        # Sums over rows of the differences b − a and of their squares: Σ(b − a)² = Σb² + Σa² − 2Σab.
        total, squares = second[:, 1] - first[:, 1], second[:, 2] + first[:, 2] - 2 * products[:, 0]
        bounded, each = measure.rows is Rows.UNIT, np.maximum(1, first[:, 3:4].sum(1))
        sums = first[:, 0] / each, total / each, np.maximum(0.0, squares) / each
        gains = MeanGains.of(*sums, bounded=bounded, largest=1.0 if measure.percent else np.inf)
    if not measure.more_is_better:
        gains = gains.turned()
    # Bonferroni correction: each client has two ends.
    each = (1 - level) / (2 * len(first))

    def in_place(values: Floats) -> Floats:
        placed = np.full(len(names), np.nan)
        placed[known] = values
        return placed

    return GainAssessment(
        measure=measure,
        level=level,
        names=tuple(names),
        samples=n.astype(np.int64),
        values=in_place(gains.values),
        low=in_place(gains.lower(each)),
        high=in_place(gains.upper(each)),
        p_holm=in_place(holm(gains.p())),
        worst=worst_gain(a, b, gains, 1 - level, independent=independent),
    )


def no_row_values(measure: Measure, others: Sequence[Measure] = ()) -> InputError:
    """Build the error for comparing two models by a measure that has no value for a single row.

    Args:
        measure: The measure.
        others: The other measures of the runs.
    """
    names = [other.name for other in others if other.rows.paired]
    remedy = f"use drfl assess --measure {names[0]}" if names else with_row_values(measure)
    return InputError(
        f"{measure.words} has no value for a single row: {remedy}",
        code="unsupported-metric",
        field=measure.name,
    )


def sums_of_rows(
    starts: NDArray[np.int64],
    first: Floats,
    second: Floats,
    positive: Floats | None = None,
    largest: Floats | None = None,
) -> tuple[Floats, Floats, Floats]:
    """Compute the arguments of :func:`assess_gain`: the sums (N, 5) of both models and the products (N, 2).

    Args:
        starts: (N + 1,) Indices at which each client's rows start.
        first: (n,) Model A's values; for a measure that ranks rows, their placements.
        second: (n,) Model B's values for the same rows.
        positive: (n,) 1 for rows of the positive class and 0 for others, for a measure that ranks rows.
        largest: (N,) Rows of each client's patient with the most rows; None if rows are independent.
    """

    def sums(values: Floats) -> Floats:
        # Every client must have rows: for a client without rows, reduceat would return the next client's first value.
        return np.add.reduceat(values, starts[:-1])

    n = np.diff(starts).astype(np.float64)
    zeros = np.zeros_like(n)
    if positive is None:
        most = zeros if largest is None else largest
        a, b = (np.stack([n, sums(x), sums(x**2), most, zeros], 1) for x in (first, second))
        return a, b, np.stack([sums(first * second), zeros], 1)
    positives, negative = sums(positive), 1 - positive
    a, b = (
        np.stack([positives, n - positives, sums(x * positive), sums(x**2 * positive), sums(x**2 * negative)], 1)
        for x in (first, second)
    )
    return a, b, np.stack([sums(first * second * positive), sums(first * second * negative)], 1)


def sums_of_pair(measure: Measure, rows: Sequence[RowScores], labels: Sequence[str]) -> tuple[Floats, Floats, Floats]:
    """Compute the arguments of :func:`assess_gain` from two models' scores on the same rows.

    Args:
        measure: A measure that has a value for a single row, or that ranks rows.
        rows: Row scores of model A and of model B.
        labels: Names of the models in error messages.

    Raises:
        InputError: If a model has no value on some row.
    """
    from drfl.data.row_scores import paired_values  # this import loads torch

    for scores, label in zip(rows, labels, strict=True):
        if not scores.has(measure):
            raise InputError(
                f"{measure.words} is undefined on a test row with {label}, so models cannot be compared row by row: "
                "check its outputs for values that are not finite",
                code="undefined-metric",
                field=measure.name,
            )
    first, second, positive = paired_values(measure, rows[0], rows[1])
    values = first.numpy(), second.numpy(), None if positive is None else positive.numpy()
    largest = rows[0].largest
    if largest is not None and measure.rows is Rows.RANKS:
        raise no_patient_intervals(measure)
    return sums_of_rows(rows[0].starts.numpy(), *values, None if largest is None else largest.double().numpy())
