"""Turn test outputs into scores per row, and into the sums over a client's rows that its confidence intervals need."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from drfl.data.row_scores import RowScores, placements
from drfl.engine.base import Tests
from drfl.engine.batches import ClientRows
from drfl.task.measure import LARGEST_SUM, Measure, Rows
from drfl.task.metrics import RATES, Metric


def row_scores(
    measures: Sequence[Measure], rows: ClientRows, tests: Tests, patients: Tensor | None = None
) -> RowScores:
    """Return the scores per row of a test on these rows."""
    scores: dict[str, Tensor] = {}
    for measure, each in zip(measures, tests.rows, strict=True):
        if measure.rows is Rows.RANKS:
            scores |= {f"{measure.name}.output": each[:, 0], f"{measure.name}.positive": each[:, 1].to(torch.uint8)}
        elif measure.rows is Rows.RATE or (measure.rows is not Rows.BINARY and measure.rows.mean):
            scores[measure.name] = each[:, 0]
        elif measure.rows is Rows.BINARY and not bool(each.isnan().any()):
            # 0 and 1 fit into a byte; NaN does not.
            scores[measure.name] = each[:, 0].to(torch.uint8)
    largest = _largest(rows, patients)
    return RowScores(torch.cat([rows.starts, rows.sizes.sum()[None]]), rows.index, scores, largest=largest)


def _largest(rows: ClientRows, patients: Tensor | None) -> Tensor | None:
    """Return (N,) int64, the rows of each client's patient with the most; None if every row has its own patient."""
    largest = None if patients is None else rows.largest(patients)
    return None if largest is None or bool((largest == 1).all()) else largest


def youden(output: Tensor, positive: Tensor) -> float | None:
    """Return the threshold on the log-odds with the largest sum of sensitivity and specificity (Youden 1950).

    The threshold is halfway between two outputs. If several thresholds are equally good, the lowest is returned.

    Args:
        output: (n,) log-odds.
        positive: (n,) 1 for rows of the positive class, 0 for others.

    Returns:
        None if a class has no rows or an output is NaN.
    """
    total = float(positive.sum())
    if not 0 < total < len(output) or bool(output.isnan().any()):
        return None
    # Sensitivity and specificity change only if the threshold passes an output.
    ranked, order = output.sort()
    share = (1 - positive[order]) / (len(output) - total) - positive[order] / total
    # No threshold separates equal outputs.
    between = (ranked[1:] > ranked[:-1]).nonzero().flatten()
    # Rows up to a position are called negative; the best position may be before the first row, hence the leading 0.
    gain = torch.cat([torch.zeros(1, dtype=torch.float64), share.cumsum(0)[between]])
    # argmax takes the first of equal gains, which is the lowest threshold.
    best = int(gain.argmax()) - 1
    if best < 0:
        return float(ranked[0]) - 1
    return float(ranked[between[best]] / 2 + ranked[between[best] + 1] / 2)


def at_threshold(measures: Sequence[Metric], rows: ClientRows, tests: Tests, threshold: float | None) -> Tests:
    """Set the rates of a test to a threshold on the log-odds; None = 0.

    Their rows become (n, 1): 1 if the answer is right, 0 if it is wrong, NaN if the row does not count.
    """
    values, scores = list(tests.values), list(tests.rows)
    for j, measure in enumerate(measures):
        if measure.rows is Rows.RATE:
            output, positive = scores[j].unbind(1)
            right, among = (each.double() for each in RATES[measure.function](output > (threshold or 0), positive > 0))
            # An output that is not finite makes its client's value NaN.
            values[j] = rows.totals(right * among + 0 * output) / rows.totals(among)
            scores[j] = right.where(among > 0, math.nan)[:, None]
    return Tests(tests.loss, tuple(values), tuple(scores), threshold)


def sums_of(measures: Sequence[Measure], rows: ClientRows, tests: Tests, patients: Tensor | None = None) -> Tensor:
    """Return (N, M, 5) float64, see :class:`drfl.federation.federation.Evaluation`."""
    n, columns = rows.sizes.double(), list[Tensor]()
    none = torch.zeros_like(n)
    repeated = _largest(rows, patients)
    largest = none if repeated is None else repeated.double()
    for measure, each in zip(measures, tests.rows, strict=True):
        if measure.rows.mean:
            total = rows.totals(each[:, 0])
            squares = total if measure.rows is Rows.BINARY else rows.totals(each[:, 0].square())
            columns += [n, total, squares, largest, none]
        elif measure.rows is Rows.RATE:
            right = rows.totals(each[:, 0].nan_to_num(0))
            columns += [rows.totals((~each[:, 0].isnan()).double()), right, right, largest, none]
        elif measure.rows is Rows.RANKS and repeated is not None:
            columns += [none * math.nan] * 5  # no interval is known to be valid
        elif measure.rows is Rows.RANKS:
            positive, placed = rows.totals(each[:, 1]), placements(rows.sizes, each[:, 0], each[:, 1])
            squares = (rows.totals(placed.square() * weight) for weight in (each[:, 1], 1 - each[:, 1]))
            columns += [positive, n - positive, rows.totals(placed * each[:, 1]), *squares]
        else:
            columns += [n, *[none] * 4]
    sums = torch.stack(columns, 1).view(rows.n, -1, 5)
    # The scores of a diverged model are meaningless, so one sum that is not finite makes the others NaN as well.
    is_finite = (sums.abs() <= LARGEST_SUM).all(2) & (tests.loss.abs() < math.inf)[:, None]
    sums = sums.where(is_finite[:, :, None], math.nan)
    if whole := [j for j, measure in enumerate(measures) if measure.rows is Rows.WHOLE]:
        sums[:, whole, 1:] = math.nan
    return sums
