"""All that one model's test results allow to be said: of each client, of the worst one, and of one not yet seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

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

ClientScores = BinaryScores | BoundedScores | RankScores | RealScores

AucInterval = Literal["delong", "distribution-free"]
"""What intervals of the AUC are made by."""

METHODS = {
    BinaryScores: "Clopper–Pearson",
    BoundedScores: "bounds of Hoeffding and of Maurer and Pontil",
    DeLongScores: "DeLong's variance, Clopper–Pearson at as many answers (approximate)",
    RankScores: "Hoeffding's bound of U-statistics (distribution-free)",
    RealScores: "Student's t (approximate: the rows' values have no bounds)",
}
"""What intervals are made by."""


@dataclass(frozen=True, eq=False, repr=False)
class Assessment:
    """One model on the test rows of N clients. Values are as measured: where less is better the worst is the largest.

    Args:
        measure: what was measured.
        level: of every interval and set, e.g. 0.95.
        names: (N,) of the clients.
        samples: (N,) test rows; of a rate those that count.
        values: (N,) measured; NaN where the measure is not defined on a client's rows.
        low: (N,) lower ends of the clients' intervals, simultaneous over clients; NaN where there is no value.
        high: (N,) upper ends.
        worst: the worst client, and an interval for its true value.
        candidates: (N,) bool, the clients that could be the worst: a truly worst one is left out with probability at
            most 1 − level. One without a value could be.
        p_worst: (N,) p-values of being the worst; NaN where there is no value.
        equal: what equally good clients would show; None unless rows are right or wrong.
        homogeneity: tests that all are equally good; None for one client, and of AUC.
        unseen: what is known of a client not yet seen; its ``low`` is the worse end.
        independent: whether no two clients share a test row.
        method: what the intervals are made by.
        auc_interval: what those of the AUC are, or would be, made by.
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

    @property
    def order(self) -> list[int]:
        """The clients, the worst measured first, those without a value last."""
        return np.argsort(turned(self.values, self.measure), kind="stable").tolist()

    @property
    def undefined(self) -> list[str]:
        """The clients on whose rows the measure is undefined: only :attr:`candidates` speaks of them."""
        return [name for name, value in zip(self.names, self.values, strict=True) if np.isnan(value)]

    @property
    def note(self) -> str:
        """What follows a statistic over the other clients in a line, see :func:`drfl.task.measure.undefined_note`."""
        return undefined_note([len(self.undefined)], [len(self.names)])

    def to_frame(self) -> pd.DataFrame:
        """A row a client, in their order: client, samples, the measure, low, high, could_be_worst, p_worst."""
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
            f"<Assessment of {len(self.names)} clients: worst {self.measure.words} {shown(self.values[i])} "
            f"({self.names[i]}){self.note}, truly {shown(self.worst.low)} to {shown(self.worst.high)}, "
            f"{int(self.candidates.sum())} could be it>"
        )

    def _repr_html_(self) -> str:
        return html_table(repr(self), self.to_frame().iloc[self.order].head(10))


def turned(values: Floats, measure: Measure) -> Floats:
    """Values such that larger is better, or such turned back: 1 − x of rows in [0, 1], −x of others."""
    if measure.more_is_better:
        return values
    return -values if measure.rows == Rows.REAL else 1 - values


def interval(low: Floats, high: Floats, measure: Measure) -> tuple[Floats, Floats]:
    """Ends of intervals of turned scores as those of the measure."""
    low, high = turned(low, measure), turned(high, measure)
    if measure.percent:  # a fraction, also where the rows' values have no bounds
        low, high = np.clip(low, 0, 1), np.clip(high, 0, 1)
    # Turning swaps the ends of the interval.
    return (low, high) if measure.more_is_better else (high, low)


def scores_of(measure: Measure, sums: Floats, auc_interval: AucInterval = "delong") -> ClientScores:
    """The clients' scores, turned such that larger is better.

    Args:
        measure: what was measured.
        sums: (N, 5) of the clients' rows, see :class:`drfl.federation.federation.Evaluation`.
        auc_interval: see :func:`assess_clients`.

    Raises:
        InputError: the measure says nothing of single rows.
    """
    first, second, third, *squares = np.asarray(sums, dtype=np.float64).T
    if measure.rows == Rows.RANKS:
        # Of a federation that has no squares the distribution-free bound is all there is.
        if auc_interval == "distribution-free" or not squares:
            return RankScores(first, second, third)
        return DeLongScores(first, second, third, *squares)
    if measure.rows in (Rows.BINARY, Rows.RATE):
        # If smaller is better, turn the rows here and below, so that the worst client always has the smallest score.
        return BinaryScores(first, second if measure.more_is_better else first - second)
    if measure.rows == Rows.UNIT:
        found = BoundedScores(first, second, third)
        return found if measure.more_is_better else found.mirrored()
    if measure.rows == Rows.REAL:
        return RealScores(first, second if measure.more_is_better else -second, third)
    raise InputError(
        f"{measure.words} is a number of all rows together, for which there is no interval here: assess a measure that "
        "has a value for every row, such as accuracy, or auc",
        code="unsupported-metric",
        field=measure.name,
    )


def auc_interval_of(name: str) -> AucInterval:
    """The method of this name.

    Raises:
        InputError: there is none.
    """
    known: tuple[AucInterval, ...] = get_args(AucInterval)
    for method in known:
        if method == name:
            return method
    raise unknown("AUC interval", name, known, "auc_interval")


def check_level(level: float) -> None:
    """Refuse a level that is no probability.

    Raises:
        InputError: it is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise InputError(f"level {level} must be between 0 and 1, e.g. 0.95", code="out-of-range", field="level")


def undefined_everywhere(measure: Measure) -> InputError:
    """The error of a measure that no client has a value of."""
    return InputError(
        f"{measure.words} is undefined on every client's test rows: assess another measure",
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
) -> Assessment:
    """Assess a model by what its test said.

    Args:
        measure: what was measured.
        names: (N,) of the clients.
        sums: (N, 5) of their rows, see :class:`drfl.federation.federation.Evaluation`.
        samples: (N,) test rows.
        level: of intervals and sets, in (0, 1).
        independent: whether no two clients share a test row; if they do, the set of candidates is larger.
        auc_interval: "delong", or "distribution-free", which holds for every law of the outputs and any number of rows,
            and is far wider.
        equality: whether to compare the clients with equally good ones, which takes seconds for a thousand of them;
            False leaves ``equal`` and ``homogeneity`` None.

    Raises:
        InputError: the measure says nothing of single rows, the level or ``auc_interval`` is none, or no client has a
            value.
    """
    check_level(level)
    every = scores_of(measure, sums, auc_interval_of(auc_interval))
    known = np.isfinite(every.values)
    if not known.any():
        raise undefined_everywhere(measure)
    scores, alpha = select(every, known), 1 - level

    def in_place(values: Floats, otherwise: float = np.nan) -> Floats:
        found = np.full(len(names), otherwise)
        found[known] = values
        return found

    # Bonferroni: two ends for each client.
    each = alpha / (2 * np.count_nonzero(known))
    low, high = interval(scores.lower(each), scores.upper(each), measure)
    worst, p = worst_score(scores, alpha), could_be_worst(scores, alpha, independent=independent)
    ends = interval(np.array([worst.low]), np.array([worst.high]), measure)
    equal = test = None
    # Only for binary scores does the mean determine how much test sets vary.
    if equality and isinstance(scores, BinaryScores) and measure.more_is_better:
        equal = equal_clients(scores.count.sum() / scores.n.sum(), scores.n)
    if equality and len(scores.n) > 1 and not isinstance(scores, RankScores):
        test = homogeneity(scores)
    unseen = unseen_client(scores.values, level)
    return Assessment(
        measure=measure,
        level=level,
        names=tuple(names),
        samples=np.nan_to_num(sums[:, 0]).astype(np.int64) if measure.rows == Rows.RATE else samples,
        values=turned(every.values, measure),
        low=in_place(low),
        high=in_place(high),
        worst=WorstScore(float(turned(np.array([worst.value]), measure)[0]), float(ends[0][0]), float(ends[1][0])),
        # A client without a value counts as one that could be the worst: no evidence excludes it.
        candidates=in_place(p, 1.0) > alpha,
        p_worst=in_place(p),
        equal=equal,
        homogeneity=test,
        unseen=unseen._replace(low=float(turned(np.array([unseen.low]), measure)[0])),
        independent=independent,
        method=METHODS[type(every)],
        auc_interval=auc_interval,
    )
