"""Assess one model: confidence intervals for each client, for the worst one, and for one not yet seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from drfl.assessment.clusters import ClusterScores
from drfl.assessment.equal_clients import EqualClients, equal_clients
from drfl.assessment.homogeneity import Homogeneity, homogeneity
from drfl.assessment.scores import (
    BinaryScores,
    BoundedScores,
    DeLongScores,
    Floats,
    RankScores,
    RealScores,
    select,
)
from drfl.assessment.unseen import UnseenClient, unseen_client
from drfl.assessment.worst import WorstScore, could_be_worst, worst_score
from drfl.core.errors import InputError, unknown
from drfl.core.html_table import html_table
from drfl.task.measure import Measure, Rows, undefined_note

if TYPE_CHECKING:
    import pandas as pd

ClientScores = BinaryScores | BoundedScores | ClusterScores | RankScores | RealScores

AucInterval = Literal["delong", "distribution-free"]
"""Method for intervals of the AUC."""

METHODS = {
    BinaryScores: "Clopper–Pearson",
    BoundedScores: "bounds of Hoeffding and of Maurer and Pontil",
    ClusterScores: "Hoeffding's bound for rows of patients",
    DeLongScores: "DeLong's variance, Clopper–Pearson for the effective number of answers (approximate)",
    RankScores: "Hoeffding's bound of U-statistics (distribution-free)",
    RealScores: "Student's t (approximate because the values are unbounded)",
}
"""Names of the methods for intervals, by type of score."""

RATIO = "Student's t (approximate because rows have different numbers of targets that count)"
"""Name of the method for a fraction whose rows have ignored targets or unknown labels."""


@dataclass(frozen=True, eq=False, repr=False)
class Assessment:
    """One model on the test rows of N clients. Values are as measured: if less is better, the worst is the largest.

    Args:
        measure: The measure that was assessed.
        level: Confidence level of every interval and set, such as 0.95.
        names: (N,) Names of the clients.
        samples: (N,) Test rows; for a rate, the rows that count.
        values: (N,) Measured values; NaN if the measure is undefined on a client's rows.
        low: (N,) Lower ends of the clients' intervals, simultaneous over clients; NaN for a client without a value.
        high: (N,) Upper ends.
        worst: The worst measured value, and an interval for the true value of the worst client.
        candidates: (N,) bool, the clients that could be the worst. The truly worst client is missing with probability
            at most 1 − level. A client without a value is a candidate.
        p_worst: (N,) p-values of being the worst; NaN for a client without a value.
        equal: The scores expected if all clients were equally good; None unless rows are right or wrong.
        homogeneity: Tests of the hypothesis that all clients are equally good; None for a single client and for the
            AUC.
        unseen: Prediction for a client not yet seen; its ``low`` is the worse end.
        independent: Whether no two clients share a test row.
        method: Name of the method of the intervals.
        auc_interval: Method of AUC intervals, also if the measure is not the AUC.
        patients: (N,) Patients among the test rows; None if rows are independent or the patients are not known.
    """

    measure: Measure
    level: float
    names: tuple[str, ...]
    samples: NDArray[np.int64]
    values: Floats
    low: Floats
    high: Floats
    worst: WorstScore
    candidates: NDArray[np.bool_]
    p_worst: Floats = field(repr=False)
    equal: EqualClients | None
    homogeneity: Homogeneity | None
    unseen: UnseenClient
    independent: bool
    method: str
    auc_interval: AucInterval
    patients: NDArray[np.int64] | None = None

    @property
    def order(self) -> list[int]:
        """Indices of the clients, the worst measured first, those without a value last."""
        return np.argsort(flip_direction(self.values, self.measure), kind="stable").tolist()

    @property
    def undefined(self) -> list[str]:
        """The clients on whose rows the measure is undefined; they count only in :attr:`candidates`."""
        return [name for name, value in zip(self.names, self.values, strict=True) if np.isnan(value)]

    @property
    def note(self) -> str:
        """Note on undefined clients to follow a statistic, see :func:`drfl.task.measure.undefined_note`."""
        return undefined_note([len(self.undefined)], [len(self.names)])

    def to_frame(self) -> pd.DataFrame:
        """Return one row per client, in order: client, samples, the measure, low, high, could_be_worst, p_worst."""
        import pandas as pd

        return pd.DataFrame(
            {
                "client": self.names,
                "samples": self.samples,
                self.measure.name: self.values,
                "low": self.low,
                "high": self.high,
                "could_be_worst": self.candidates,
                "p_worst": self.p_worst,
            }
        )

    def __repr__(self) -> str:
        shown, i = self.measure.shown, self.order[0]
        return (
            f"<Assessment of {len(self.names)} client{'s' * (len(self.names) > 1)}: "
            f"worst {self.measure.words} {shown(self.values[i])} "
            f"({self.names[i]}){self.note}, true value {shown(self.worst.low)} to {shown(self.worst.high)}, "
            f"{int(self.candidates.sum())} could be the worst>"
        )

    def _repr_html_(self) -> str:
        return html_table(repr(self), self.to_frame().iloc[self.order].head(10))


Numbers = TypeVar("Numbers", float, Floats)


def flip_direction(values: Numbers, measure: Measure) -> Numbers:
    """Turn values so that larger is better, or turn them back: 1 − x for rows in [0, 1], −x for others."""
    if measure.more_is_better:
        return values
    return -values if measure.rows == Rows.REAL else 1 - values


def interval(low: Floats, high: Floats, measure: Measure) -> tuple[Floats, Floats]:
    """Convert interval ends of turned scores to ends in the measure's own direction."""
    low, high = flip_direction(low, measure), flip_direction(high, measure)
    if measure.percent:  # a fraction, even if the rows' values are unbounded
        low, high = np.clip(low, 0, 1), np.clip(high, 0, 1)
    # Turning swaps the ends of the interval.
    return (low, high) if measure.more_is_better else (high, low)


def scores_of(measure: Measure, sums: Floats, auc_interval: AucInterval = "delong") -> ClientScores:
    """Build the clients' scores, turned so that larger is better.

    Args:
        measure: The measure of the sums.
        sums: (N, 5) Sums over the clients' rows, see :class:`drfl.federation.federation.Evaluation`.
        auc_interval: See :func:`assess_clients`.

    Raises:
        InputError: If the measure has no value for a single row.
    """
    first, second, third, *squares = np.asarray(sums, dtype=np.float64).T
    if measure.rows == Rows.RANKS:
        # Without squares only the distribution-free bound can be computed.
        if auc_interval == "distribution-free" or not squares:
            return RankScores(first, second, third)
        return DeLongScores(first, second, third, *squares)
    # NaN at clients whose outputs are not finite, and for measures of all rows together.
    largest = np.nan_to_num(squares[0]) if squares else np.zeros_like(first)
    if largest.any() and measure.rows is Rows.REAL:
        # The variance of a mean is at most as if there were this number of independent rows.
        first, second, third = (sums / np.maximum(1, largest) for sums in (first, second, third))
    elif largest.any():
        clusters = ClusterScores(first, second, np.maximum(1, largest))
        return clusters if measure.more_is_better else clusters.mirrored()
    if measure.rows in (Rows.BINARY, Rows.RATE):
        # If smaller is better, turn the rows (here and below), so that the worst client always has the smallest score.
        return BinaryScores(first, second if measure.more_is_better else first - second)
    if measure.rows == Rows.UNIT:
        bounded = BoundedScores(first, second, third)
        return bounded if measure.more_is_better else bounded.mirrored()
    if measure.rows == Rows.REAL:
        real = RealScores(first, second, third, (0.0, 1.0) if measure.percent else (-np.inf, np.inf))
        return real if measure.more_is_better else real.mirrored()
    raise InputError(
        f"{measure.words} is computed from all rows together and has no interval. Assess accuracy or log_loss for "
        "classes, auc for two classes, or mae for numbers.",
        code="unsupported-metric",
        field=measure.name,
    )


def auc_interval_of(name: str) -> AucInterval:
    """Look up the method for AUC intervals by its name.

    Raises:
        InputError: If the name is unknown.
    """
    known: tuple[AucInterval, ...] = get_args(AucInterval)
    for method in known:
        if method == name:
            return method
    raise unknown("AUC interval", name, known, "auc_interval")


def check_level(level: float) -> None:
    """Check that a confidence level is a probability.

    Raises:
        InputError: If the level is not a number between 0 and 1.
    """
    if not isinstance(level, Real) or not 0 < level < 1:
        raise InputError(
            f"level must be between 0 and 1, such as 0.95, got {level!r}", code="out-of-range", field="level"
        )


def no_patient_intervals(measure: Measure) -> InputError:
    """Build the error for intervals of a measure that ranks rows if the rows belong to patients."""
    return InputError(
        f"{measure.words} has no interval if several rows belong to one patient. Assess a measure with a value for "
        "each row, such as accuracy.",
        code="unsupported-metric",
        field=measure.name,
    )


def undefined_everywhere(measure: Measure) -> InputError:
    """Build the error for a measure that has no value at any client."""
    return InputError(
        f"{measure.words} is undefined on every client's test rows. Assess another measure.",
        code="undefined-metric",
        field=measure.name,
    )


def assess_clients(
    measure: Measure,
    names: Sequence[str],
    sums: Floats,
    samples: NDArray[np.int64],
    *,
    level: float = 0.95,
    independent: bool = True,
    auc_interval: AucInterval = "delong",
    equality: bool = True,
    patients: NDArray[np.int64] | None = None,
) -> Assessment:
    """Assess a model from the sums of its test results.

    Args:
        measure: The measure of the sums.
        names: (N,) Names of the clients.
        sums: (N, 5) Sums over their rows, see :class:`drfl.federation.federation.Evaluation`.
        samples: (N,) Test rows.
        level: Confidence level of intervals and sets, in (0, 1).
        independent: Whether no two clients share a test row. If some do, the set of candidates is larger.
        auc_interval: "delong", or "distribution-free", which is valid for every distribution of the outputs and any
            number of rows, and far wider.
        equality: Whether to compare the clients with equally good ones, which takes seconds for a thousand clients;
            False leaves ``equal`` and ``homogeneity`` None.
        patients: (N,) Patients among the test rows; None if rows are independent.

    Raises:
        InputError: If the measure has no value for a single row, the level or ``auc_interval`` is invalid, or no client
            has a value.
    """
    check_level(level)
    every = scores_of(measure, sums, auc_interval_of(auc_interval))
    known = np.isfinite(every.values)
    if not known.any():
        raise undefined_everywhere(measure)
    scores, alpha = select(every, known), 1 - level

    def in_place(values: Floats, otherwise: float = np.nan) -> Floats:
        placed = np.full(len(names), otherwise)
        placed[known] = values
        return placed

    # Bonferroni correction: each client has two ends.
    each = alpha / (2 * np.count_nonzero(known))
    low, high = interval(scores.lower(each), scores.upper(each), measure)
    worst, p = worst_score(scores, alpha), could_be_worst(scores, alpha, independent=independent)
    ends = interval(np.array([worst.low]), np.array([worst.high]), measure)
    equal = test = None
    # Only for binary scores does the mean determine the variance of a test result.
    if equality and isinstance(scores, BinaryScores) and measure.more_is_better:
        equal = equal_clients(scores.count.sum() / scores.n.sum(), scores.n)
    if equality and len(scores.n) > 1 and not isinstance(scores, RankScores | ClusterScores):
        test = homogeneity(scores)
    unseen = unseen_client(scores.values, level)
    return Assessment(
        measure=measure,
        level=level,
        names=tuple(names),
        samples=np.nan_to_num(sums[:, 0]).astype(np.int64) if measure.rows == Rows.RATE else samples,
        values=flip_direction(every.values, measure),
        low=in_place(low),
        high=in_place(high),
        worst=WorstScore(flip_direction(worst.value, measure), float(ends[0][0]), float(ends[1][0])),
        # A client without a value could be the worst: no evidence excludes it.
        candidates=in_place(p, 1.0) > alpha,
        p_worst=in_place(p),
        equal=equal,
        homogeneity=test,
        unseen=unseen._replace(low=flip_direction(unseen.low, measure)),
        independent=independent,
        method=RATIO if isinstance(every, RealScores) and measure.percent else METHODS[type(every)],
        auc_interval=auc_interval,
        # A rate counts only some of the rows, and their patients are not known.
        patients=None if measure.rows == Rows.RATE else patients,
    )
