"""What a test says of every row, and the sums over a client's rows from which its uncertainty can be reckoned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.engine.base import Tests
from drfl.engine.batches import ClientRows
from drfl.measure import LARGEST_SUM, Measure, Rows
from drfl.metrics import RATES, Metric


class RowScores(NamedTuple):
    """What a model, or each client's own, scores on the clients' test rows, row by row.

    Args:
        starts: (N + 1,) int64: the rows of client i are those from ``starts[i]`` up to ``starts[i + 1]``.
        rows: (n,) int64, each row's place in the pool of test rows.
        scores: (n,) by name. A measure of 0 and 1 is uint8, another that is a mean over rows float64, each under its
            own name, and so is a rate, NaN where a row does not count; one that ranks rows has ``NAME.output``, by
            which it ranks them, float64, and ``NAME.positive``, uint8. Measures of all rows together are not here, nor
            one of 0 and 1 that is not defined on some row.
        data: what the clients' data are known by, see :meth:`drfl.federation.Federation.data_digest`; "" = not known.
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


def row_scores(measures: Sequence[Measure], rows: ClientRows, tests: Tests) -> RowScores:
    """Those of a test on these rows."""
    found: dict[str, Tensor] = {}
    for measure, each in zip(measures, tests.rows, strict=True):
        if measure.rows is Rows.RANKS:
            found |= {f"{measure.name}.output": each[:, 0], f"{measure.name}.positive": each[:, 1].to(torch.uint8)}
        elif measure.rows is Rows.RATE or (measure.rows is not Rows.BINARY and measure.rows.mean):
            found[measure.name] = each[:, 0]
        elif measure.rows is Rows.BINARY and not bool(each.isnan().any()):
            found[measure.name] = each[:, 0].to(torch.uint8)
    return RowScores(torch.cat([rows.starts, rows.sizes.sum()[None]]), rows.index, found)


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
    order = output.argsort(stable=True)
    order = order[client[order].argsort(stable=True)]
    owner, ranked, is_positive = client[order], output[order], positive[order].double()
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
    unknown = torch.zeros(len(sizes), dtype=torch.float64).index_add(0, owner, ranked.isnan().double()) > 0
    return torch.empty_like(found).index_copy(0, order, found.masked_fill(unknown[owner], math.nan))


def youden(output: Tensor, positive: Tensor) -> float | None:
    """The log-odds above which to call rows positive for the largest sensitivity plus specificity (Youden 1950).

    It is halfway between two outputs, the lowest of several that are equally good.

    Args:
        output: (n,) log-odds.
        positive: (n,) 1 for rows of the positive class, 0 for others.

    Returns:
        None if a class has no row, or an output is NaN.
    """
    total = float(positive.sum())
    if not 0 < total < len(output) or bool(output.isnan().any()):
        return None
    ranked, order = output.sort()
    share = (1 - positive[order]) / (len(output) - total) - positive[order] / total
    between = (ranked[1:] > ranked[:-1]).nonzero().flatten()
    # Rows up to a place are called negative: at best none or all of them.
    gain = torch.cat([torch.zeros(1, dtype=torch.float64), share.cumsum(0)[between]])
    best = int(gain.argmax()) - 1
    if best < 0:
        return float(ranked[0]) - 1
    return float(ranked[between[best]] / 2 + ranked[between[best] + 1] / 2)


def at_threshold(measures: Sequence[Metric], rows: ClientRows, tests: Tests, threshold: float | None) -> Tests:
    """The test with its rates at a threshold on the log-odds; None = 0.

    Their rows become (n, 1): 1 where the answer is right, 0 where it is wrong, NaN where the row does not count.
    """
    values, scores = list(tests.values), list(tests.rows)
    for j, measure in enumerate(measures):
        if measure.rows is Rows.RATE:
            output, positive = scores[j].unbind(1)
            right, among = (each.double() for each in RATES[measure.function](output > (threshold or 0), positive > 0))
            # An output that is not finite takes its client's value along.
            values[j] = rows.totals(right * among + 0 * output) / rows.totals(among)
            scores[j] = right.where(among > 0, math.nan)[:, None]
    return Tests(tests.loss, tuple(values), tuple(scores), threshold)


def sums_of(measures: Sequence[Measure], rows: ClientRows, tests: Tests) -> Tensor:
    """(N, M, 5) float64, see :class:`drfl.federation.Evaluation`."""
    n, found = rows.sizes.double(), list[Tensor]()
    none = torch.zeros_like(n)
    for measure, each in zip(measures, tests.rows, strict=True):
        if measure.rows.mean:
            total = rows.totals(each[:, 0])
            squares = total if measure.rows is Rows.BINARY else rows.totals(each[:, 0].square())
            found += [n, total, squares, none, none]
        elif measure.rows is Rows.RATE:
            right = rows.totals(each[:, 0].nan_to_num(0))
            found += [rows.totals((~each[:, 0].isnan()).double()), right, right, none, none]
        elif measure.rows is Rows.RANKS:
            positive, placed = rows.totals(each[:, 1]), placements(rows.sizes, each[:, 0], each[:, 1])
            squares = (rows.totals(placed.square() * own) for own in (each[:, 1], 1 - each[:, 1]))
            found += [positive, n - positive, rows.totals(placed * each[:, 1]), *squares]
        else:
            found += [n, *[none] * 4]
    sums = torch.stack(found, 1).view(rows.n, -1, 5)
    # A model beyond the finite numbers has scores that mean nothing; one sum that is none takes the others along.
    fine = (sums.abs() <= LARGEST_SUM).all(2) & (tests.loss.abs() < math.inf)[:, None]
    sums = sums.where(fine[:, :, None], math.nan)
    if nothing := [j for j, measure in enumerate(measures) if measure.rows is Rows.WHOLE]:
        sums[:, nothing, 1:] = math.nan
    return sums


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
