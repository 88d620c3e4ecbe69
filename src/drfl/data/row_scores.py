"""What models score on single test rows, and what two models score on the same ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.task.measure import Measure, Rows


class RowScores(NamedTuple):
    """What a model, or each client's own, scores on the clients' test rows, row by row.

    Args:
        starts: (N + 1,) int64: the rows of client i are those from ``starts[i]`` up to ``starts[i + 1]``.
        rows: (n,) int64, each row's place in the pool of test rows.
        scores: (n,) by name. A measure of 0 and 1 is uint8, another that is a mean over rows float64, each under its
            own name, and so is a rate, NaN where a row does not count; one that ranks rows has ``NAME.output``, by
            which it ranks them, float64, and ``NAME.positive``, uint8. Measures of all rows together are not here, nor
            one of 0 and 1 that is not defined on some row.
        data: what the clients' data are known by, see :meth:`drfl.federation.federation.Federation.data_digest`; "" =
            not known.
    """

    starts: Tensor
    rows: Tensor
    scores: dict[str, Tensor]
    data: str = ""

    @property
    def shared(self) -> bool:
        """Whether some row is that of two clients."""
        return len(self.rows.unique()) < len(self.rows)

    def has(self, measure: Measure) -> bool:
        """Whether what two models score by a measure can be paired, see :func:`paired_values`."""
        return measure.rows.paired and {measure.name, f"{measure.name}.output"} & self.scores.keys() != set()

    def same_rows(self, other: RowScores) -> bool:
        """Whether both are of the same rows of the same data, so that they can be paired row by row."""
        alike = torch.equal(self.starts, other.starts) and torch.equal(self.rows, other.rows)
        return alike and self.data == other.data


def placements(sizes: Tensor, output: Tensor, positive: Tensor) -> Tensor:
    """How many of its client's rows of the other class each row is on the right side of, ties for half.

    Their sums over the positive rows, and over the others, are both Mann and Whitney's count; their spread makes
    DeLong's variance of the AUC. They are multiples of a half, so that sums of them and of squares are exact.

    Args:
        sizes: (N,) rows of each client, one client after the other.
        output: (n,) by what rows are ranked.
        positive: (n,) 1 for rows of the positive class, 0 for others.

    Returns:
        (n,) float64; NaN at clients of whom an output is NaN.
    """
    client = torch.arange(len(sizes)).repeat_interleave(sizes)
    # Two stable sorts give the order by client and, within a client, by output.
    order = output.argsort(stable=True)
    order = order[client[order].argsort(stable=True)]
    owner, ranked, is_positive = client[order], output[order], positive[order].double()
    # Rows of one value are tied and share a rank; `first` marks where a new value begins.
    first = torch.ones(len(order), dtype=torch.bool)
    first[1:] = (ranked[1:] != ranked[:-1]) | (owner[1:] != owner[:-1])
    tie = first.cumsum(0) - 1

    def below(rows: Tensor) -> Tensor:
        """Of the client's rows that count those ranked below each row, ties for half."""
        tied = torch.zeros(int(first.sum()), dtype=torch.float64).index_add(0, tie, rows)
        total = torch.segment_reduce(rows, "sum", lengths=sizes)
        return (tied.cumsum(0) - tied / 2)[tie] - (total.cumsum(0) - total)[owner]

    positives = torch.segment_reduce(is_positive, "sum", lengths=sizes)
    found = torch.where(is_positive > 0, below(1 - is_positive), positives[owner] - below(is_positive))
    # A NaN has no rank, so it leaves all of its client's ranks undefined.
    unknown = torch.zeros(len(sizes), dtype=torch.float64).index_add(0, owner, ranked.isnan().double()) > 0
    return torch.empty_like(found).index_copy(0, order, found.masked_fill(unknown[owner], math.nan))


def paired_values(measure: Measure, one: RowScores, other: RowScores) -> tuple[Tensor, Tensor, Tensor | None]:
    """What two models score on the same rows (n,) by a measure that both have.

    Of a measure that ranks rows they are placements, and the third says which rows are of the positive class.
    """
    name, scores = measure.name, (one.scores, other.scores)
    if measure.rows is not Rows.RANKS:
        return one.scores[name].double(), other.scores[name].double(), None
    positive, sizes = one.scores[f"{name}.positive"].double(), one.starts.diff()
    first, second = (placements(sizes, own[f"{name}.output"], positive) for own in scores)
    return first, second, positive


def products(one: RowScores, other: RowScores, measures: Sequence[Measure]) -> Tensor:
    """(M, 2) float64: over all rows, the sum of the products of both models' values; NaN where rows have none.

    Of a measure that is a mean over rows it is the first of the two, and the second is 0. Of values of 0 and 1 it is
    the number of rows that both have right, and with both sums the whole 2×2 table. Of one that ranks rows they are
    those of placements, over the positive rows and over the others, which the covariance of two AUCs is made of.
    """

    def product(measure: Measure) -> list[float]:
        if not (one.has(measure) and other.has(measure)):
            return [math.nan, math.nan]
        first, second, positive = paired_values(measure, one, other)
        both = first * second
        return [float(both.sum()), 0.0] if positive is None else [float(both @ positive), float(both @ (1 - positive))]

    return torch.tensor([product(measure) for measure in measures], dtype=torch.float64)
