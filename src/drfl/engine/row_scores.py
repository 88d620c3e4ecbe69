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


class RowScores(NamedTuple):
    """What a model, or each client's own, scores on the clients' test rows, row by row.

    Args:
        starts: (N + 1,) int64: the rows of client i are those from ``starts[i]`` up to ``starts[i + 1]``.
        rows: (n,) int64, each row's place in the pool of test rows.
        scores: (n,) by name. A measure of 0 and 1 is uint8, another that is a mean over rows float64, each under its
            own name; one that ranks rows has ``NAME.output``, by which it ranks them, float64, and ``NAME.positive``,
            uint8. Measures of all rows together are not here, nor one of 0 and 1 that is not defined on some row.
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
        elif measure.rows is not Rows.BINARY and measure.rows.mean:
            found[measure.name] = each[:, 0]
        elif measure.rows is Rows.BINARY and not bool(each.isnan().any()):
            found[measure.name] = each[:, 0].to(torch.uint8)
    return RowScores(torch.cat([rows.starts, rows.sizes.sum()[None]]), rows.index, found)


def sums_of(measures: Sequence[Measure], rows: ClientRows, tests: Tests) -> Tensor:
    """(N, M, 3) float64, see :class:`drfl.federation.Evaluation`."""
    n, found = rows.sizes.double(), list[Tensor]()
    for measure, values, each in zip(measures, tests.values, tests.rows, strict=True):
        if measure.rows.mean:
            total = rows.totals(each[:, 0])
            squares = total if measure.rows is Rows.BINARY else rows.totals(each[:, 0].square())
            found += [n, total, squares]
        elif measure.rows is Rows.RANKS:
            positive = rows.totals(each[:, 1])
            pairs = positive * (n - positive)
            # The AUC is the count over the pairs, and the count a multiple of a half: rounding takes it back exactly.
            count = torch.where(pairs > 0, (2 * values * pairs).round() / 2, rows.totals(0 * each[:, 0]))
            found += [positive, n - positive, count]
        else:
            found += [n, *[torch.zeros_like(n)] * 2]
    sums = torch.stack(found, 1).view(rows.n, -1, 3)
    # A model beyond the finite numbers has scores that mean nothing; one sum that is none takes the others along.
    fine = (sums.abs() <= LARGEST_SUM).all(2) & (tests.loss.abs() < math.inf)[:, None]
    sums = sums.where(fine[:, :, None], math.nan)
    if nothing := [j for j, measure in enumerate(measures) if measure.rows is Rows.WHOLE]:
        sums[:, nothing, 1:] = math.nan
    return sums


def products(one: RowScores, other: RowScores, measures: Sequence[Measure]) -> Tensor:
    """(M,) float64: over all rows, the sum of the products of both models' values; NaN where rows have none.

    Of values of 0 and 1 it is the number of rows that both have right, and with both sums the whole 2×2 table.
    """

    def product(measure: Measure) -> float:
        if not measure.rows.mean or measure.name not in one.scores or measure.name not in other.scores:
            return math.nan
        return float((one.scores[measure.name].double() * other.scores[measure.name].double()).sum())

    return torch.tensor([product(measure) for measure in measures], dtype=torch.float64)
