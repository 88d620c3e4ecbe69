"""From a test's outputs to scores row by row, and to the sums over a client's rows behind its intervals."""

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


def row_scores(measures: Sequence[Measure], rows: ClientRows, tests: Tests) -> RowScores:
    """Those of a test on these rows."""
    found: dict[str, Tensor] = {}
    for measure, each in zip(measures, tests.rows, strict=True):
        if measure.rows is Rows.RANKS:
            found |= {f"{measure.name}.output": each[:, 0], f"{measure.name}.positive": each[:, 1].to(torch.uint8)}
        elif measure.rows is Rows.RATE or (measure.rows is not Rows.BINARY and measure.rows.mean):
            found[measure.name] = each[:, 0]
        elif measure.rows is Rows.BINARY and not bool(each.isnan().any()):
            # 0 and 1 fit into a byte; NaN does not.
            found[measure.name] = each[:, 0].to(torch.uint8)
    return RowScores(torch.cat([rows.starts, rows.sizes.sum()[None]]), rows.index, found)


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
    # Sensitivity and specificity change only where the threshold passes an output.
    ranked, order = output.sort()
    share = (1 - positive[order]) / (len(output) - total) - positive[order] / total
    # No threshold separates equal outputs.
    between = (ranked[1:] > ranked[:-1]).nonzero().flatten()
    # Rows up to a place are called negative: at best none or all of them.
    gain = torch.cat([torch.zeros(1, dtype=torch.float64), share.cumsum(0)[between]])
    # argmax takes the first of equal gains, which is the lowest threshold.
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
    """(N, M, 5) float64, see :class:`drfl.federation.federation.Evaluation`."""
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
