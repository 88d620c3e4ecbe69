"""All that two models' results on the same test rows allow to be said: of each client, and of the worst one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from drfl.assessment.clients import AucInterval, auc_interval_of, check_level, scores_of, undefined_everywhere
from drfl.assessment.differences import BinaryGains, Gains, MeanGains, WorstGain, worst_gain
from drfl.assessment.scores import Floats, RankScores
from drfl.assessment.seeds import holm
from drfl.core.errors import InputError
from drfl.core.html_table import html_table
from drfl.task.measure import Measure, Rows, undefined_note

if TYPE_CHECKING:
    import pandas as pd

    from drfl.data.row_scores import RowScores


WITH_ROWS = "run with --metric accuracy too, or mae for numbers"
"""The remedy for a measure that has no value for a single row."""


@dataclass(frozen=True, eq=False, repr=False)
class GainAssessment:
    """Model B against model A on the same test rows of N clients. Gains are B − A, turned such that larger is better.

    Args:
        measure: what was measured.
        level: of every interval, e.g. 0.95.
        names: (N,) of the clients.
        samples: (N,) test rows.
        values: (N,) measured gains; NaN where the measure is undefined with either model.
        low: (N,) lower ends of their intervals, simultaneous over clients; NaN where there is no gain.
        high: (N,) upper ends.
        p_holm: (N,) two-sided p-values of "no gain", after Holm's correction: at most 1 − level where a gain or a loss
            is shown.
        worst: by how much B's worst client is better than A's, whoever they are, of those that have a gain.
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
        """The clients at which B is shown to be better."""
        return self._shown(self.values > 0)

    @property
    def worse(self) -> list[str]:
        """The clients at which B is shown to be worse."""
        return self._shown(self.values < 0)

    @property
    def undefined(self) -> list[str]:
        """The clients at which the measure is undefined with either model, which are in neither of the two."""
        return [name for name, value in zip(self.names, self.values, strict=True) if np.isnan(value)]

    @property
    def note(self) -> str:
        """What follows the worst client's gain in a line, see :func:`drfl.task.measure.undefined_note`."""
        return undefined_note([len(self.undefined)], [len(self.names)])

    def _shown(self, which: NDArray[np.bool_]) -> list[str]:
        shown = which & (self.p_holm <= 1 - self.level)
        return [name for name, own in zip(self.names, shown, strict=True) if own]

    def to_frame(self) -> pd.DataFrame:
        """A row a client, in their order: client, samples, gain, low, high, p_holm."""
        import pandas as pd

        columns = {"gain": self.values, "low": self.low, "high": self.high, "p_holm": self.p_holm}
        return pd.DataFrame({"client": self.names, "samples": self.samples, **columns})

    def __repr__(self) -> str:
        scale, digits, found = self.measure.scale, self.measure.digits, self.worst
        low, high = (f"{scale * end:+.{digits}f}" for end in (found.low, found.high))
        return (
            f"<GainAssessment of {len(self.names)} clients: the worst one's {self.measure.words}: {found.shown}, gain "
            f"between {low} and {high}{self.note}; shown at single clients: {len(self.better)} better, "
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
    """Assess model B against model A by what both scored on the same rows.

    Args:
        measure: what was measured, a mean over rows or a ranking of them.
        names: (N,) of the clients.
        first: (N, 5) model A's sums over each client's rows, see :class:`drfl.federation.federation.Evaluation`.
        second: (N, 5) model B's.
        products: (N, 2) sums over rows of A's value times B's, see :func:`drfl.data.row_scores.products`; of a mean
            over rows (N,) is enough.
        level: of the intervals, in (0, 1).
        independent: whether no two clients share a test row.
        auc_interval: see :func:`drfl.assessment.clients.assess_clients`.

    Raises:
        InputError: the measure says nothing of single rows, the level is none, or no client has a value with both
            models.
    """
    check_level(level)
    if not measure.rows.paired:
        raise no_row_values(measure)
    n = first[:, 0] + (first[:, 1] if measure.rows is Rows.RANKS else 0)
    products = products.reshape(len(names), -1)
    # Clients at which the measure is defined for both models.
    known = np.isfinite(first + second).all(1) & np.isfinite(products).all(1)
    known &= np.isfinite(scores_of(measure, first).values)
    if not known.any():
        raise undefined_everywhere(measure)
    first, second, products = first[known], second[known], products[known]
    a, b = (scores_of(measure, sums, auc_interval_of(auc_interval)) for sums in (first, second))
    gains: Gains
    if isinstance(a, RankScores) and isinstance(b, RankScores):
        gains = MeanGains(a.gain(b, products), True)
    elif measure.rows is Rows.BINARY:
        # Rows that only B and rows that only A gets right; the others carry no information (McNemar).
        gains = BinaryGains(first[:, 0], second[:, 1] - products[:, 0], first[:, 1] - products[:, 0])
    else:
        # Sums over rows of the differences b − a and of their squares: Σ(b − a)² = Σb² + Σa² − 2Σab.
        total, squares = second[:, 1] - first[:, 1], second[:, 2] + first[:, 2] - 2 * products[:, 0]
        bounded = measure.rows is Rows.UNIT
        gains = MeanGains.of(first[:, 0], total, np.maximum(0.0, squares), bounded=bounded)
    if not measure.more_is_better:
        gains = gains.turned()
    # Bonferroni: two ends for each client.
    each = (1 - level) / (2 * len(first))

    def in_place(values: Floats) -> Floats:
        found = np.full(len(names), np.nan)
        found[known] = values
        return found

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
    """The error of two models that are compared by a measure that has no value for a single row.

    Args:
        measure: which.
        others: what else was measured.
    """
    able = [other.name for other in others if other.rows.paired]
    remedy = f"use drfl assess --measure {able[0]}" if able else WITH_ROWS
    return InputError(
        f"{measure.words} has no value for a single row: {remedy}",
        code="unsupported-metric",
        field=measure.name,
    )


def sums_of_rows(
    starts: NDArray[np.int64], first: Floats, second: Floats, positive: Floats | None = None
) -> tuple[Floats, Floats, Floats]:
    """What :func:`assess_gain` takes: the sums (N, 5) of both models over each client's rows, and the products (N, 2).

    Args:
        starts: (N + 1,) where each client's rows start.
        first: (n,) model A's values; of a measure that ranks rows their placements.
        second: (n,) model B's, of the same rows.
        positive: (n,) 1 for rows of the positive class and 0 for others, of a measure that ranks rows.
    """

    def sums(values: Floats) -> Floats:
        # Every client must have rows: for one without, reduceat would return the first value of the next.
        return np.add.reduceat(values, starts[:-1])

    n = np.diff(starts).astype(np.float64)
    none = np.zeros_like(n)
    if positive is None:
        a, b = (np.stack([n, sums(own), sums(own**2), none, none], 1) for own in (first, second))
        return a, b, np.stack([sums(first * second), none], 1)
    of, rest = sums(positive), 1 - positive
    a, b = (
        np.stack([of, n - of, sums(own * positive), sums(own**2 * positive), sums(own**2 * rest)], 1)
        for own in (first, second)
    )
    return a, b, np.stack([sums(first * second * positive), sums(first * second * rest)], 1)


def sums_of_pair(measure: Measure, rows: Sequence[RowScores], labels: Sequence[str]) -> tuple[Floats, Floats, Floats]:
    """What :func:`assess_gain` takes, from what two models score on the same rows.

    Args:
        measure: one that has a value for a single row, or ranks rows.
        rows: of model A and of model B.
        labels: what errors call the models.

    Raises:
        InputError: a model has no value on some row.
    """
    from drfl.data.row_scores import paired_values  # loads torch

    for scores, label in zip(rows, labels, strict=True):
        if not scores.has(measure):
            raise InputError(
                f"{measure.words} is undefined on a test row with {label}, so models cannot be compared row by row: "
                "look for outputs that are not finite",
                code="undefined-metric",
                field=measure.name,
            )
    first, second, positive = paired_values(measure, rows[0], rows[1])
    values = first.numpy(), second.numpy(), None if positive is None else positive.numpy()
    return sums_of_rows(rows[0].starts.numpy(), *values)
