"""Scores of models on single test rows, and paired scores of two models on the same rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.task.measure import Measure, Rows


class RowScores(NamedTuple):
    """Scores of one model, or of one model per client, on each of the clients' test rows.

    ``scores`` holds these tensors for each measure with the name NAME:

    - a mean over rows: NAME, uint8 if values are 0 or 1, else float64
    - a rate: NAME, NaN for rows that do not count
    - a measure that ranks rows: ``NAME.output``, the float64 output that ranks them, and ``NAME.positive``, uint8

    It does not hold measures of all rows together, nor a measure of 0 and 1 that is undefined for some row.

    Args:
        starts: (N + 1,) int64; the rows of client i are those from ``starts[i]`` up to ``starts[i + 1]``.
        rows: (n,) int64, index of each row in the test pool.
        scores: (n,) tensors by name, see above.
        data: Digest of the clients' data, see :meth:`drfl.federation.federation.Federation.data_digest`; "" if unknown.
        largest: (N,) int64, rows of each client's patient with the most rows; None if rows are independent.
    """

    starts: Tensor
    rows: Tensor
    scores: dict[str, Tensor]
    data: str = ""
    largest: Tensor | None = None

    @property
    def has_shared_rows(self) -> bool:
        """Whether a row belongs to two clients."""
        return len(self.rows.unique()) < len(self.rows)

    def has(self, measure: Measure) -> bool:
        """Return whether the scores under a measure can be paired, see :func:`paired_values`."""
        return measure.rows.paired and {measure.name, f"{measure.name}.output"} & self.scores.keys() != set()

    def same_rows(self, other: RowScores) -> bool:
        """Return whether both are scores on the same rows of the same data, so that they can be paired row by row."""
        alike = torch.equal(self.starts, other.starts) and torch.equal(self.rows, other.rows)
        return alike and self.data == other.data


def placements(sizes: Tensor, output: Tensor, positive: Tensor) -> Tensor:
    """Count, for each row, its client's rows of the other class that it is ranked correctly against; ties count half.

    The sum over the positive rows and the sum over the negative rows both equal the Mann–Whitney count. The variances
    of the placements give DeLong's variance of the AUC. Placements are multiples of one half, so sums of them and of
    their squares are exact.

    Args:
        sizes: (N,) Number of rows of each client; rows are ordered by client.
        output: (n,) Output that ranks the rows.
        positive: (n,) 1 for rows of the positive class, 0 for others.

    Returns:
        (n,) float64; NaN at clients that have a NaN among their outputs.
    """
    client = torch.arange(len(sizes)).repeat_interleave(sizes)
    # Two stable sorts give the order by client and, within a client, by output.
    order = output.argsort(stable=True)
    order = order[client[order].argsort(stable=True)]
    owner, ranked, is_positive = client[order], output[order], positive[order].double()
    # Rows with equal values are tied and share a rank; `first` marks where a new value begins.
    first = torch.ones(len(order), dtype=torch.bool)
    first[1:] = (ranked[1:] != ranked[:-1]) | (owner[1:] != owner[:-1])
    tie = first.cumsum(0) - 1

    def below(rows: Tensor) -> Tensor:
        """Sum `rows` over the client's rows that are ranked below each row; ties count half."""
        tied = torch.zeros(int(first.sum()), dtype=torch.float64).index_add(0, tie, rows)
        total = torch.segment_reduce(rows, "sum", lengths=sizes)
        return (tied.cumsum(0) - tied / 2)[tie] - (total.cumsum(0) - total)[owner]

    positives = torch.segment_reduce(is_positive, "sum", lengths=sizes)
    found = torch.where(is_positive > 0, below(1 - is_positive), positives[owner] - below(is_positive))
    # A NaN has no rank, so it leaves all of its client's ranks undefined.
    unknown = torch.zeros(len(sizes), dtype=torch.float64).index_add(0, owner, ranked.isnan().double()) > 0
    return torch.empty_like(found).index_copy(0, order, found.masked_fill(unknown[owner], math.nan))


def paired_values(measure: Measure, one: RowScores, other: RowScores) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the scores (n,) of two models on the same rows, under a measure that both have.

    For a measure that ranks rows the scores are placements, and the third value marks rows of the positive class.
    """
    name, scores = measure.name, (one.scores, other.scores)
    if measure.rows is not Rows.RANKS:
        return one.scores[name].double(), other.scores[name].double(), None
    positive, sizes = one.scores[f"{name}.positive"].double(), one.starts.diff()
    first, second = (placements(sizes, own[f"{name}.output"], positive) for own in scores)
    return first, second, positive


def products(one: RowScores, other: RowScores, measures: Sequence[Measure]) -> Tensor:
    """Sum the products of both models' scores over all rows, for each measure.

    The second column is used only for measures that rank rows; otherwise it is 0. For a measure of 0 and 1 the sum is
    the number of rows that both models get right; together with the sums of each model it determines the 2×2 table. For
    a measure that ranks rows the two columns are sums of products of placements over the positive and the negative
    rows, from which the covariance of two AUCs is computed.

    Returns:
        (M, 2) float64; NaN for measures that cannot be paired.
    """

    def product(measure: Measure) -> list[float]:
        if not (one.has(measure) and other.has(measure)):
            return [math.nan, math.nan]
        first, second, positive = paired_values(measure, one, other)
        both = first * second
        return [float(both.sum()), 0.0] if positive is None else [float(both @ positive), float(both @ (1 - positive))]

    return torch.tensor([product(measure) for measure in measures], dtype=torch.float64)
