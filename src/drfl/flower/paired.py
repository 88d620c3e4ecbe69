"""A deployment's table of two models tested on the same rows: sums from which paired differences are reckoned."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from drfl.experiments.artifacts import exact
from drfl.experiments.run_gains import PAIRED_COLUMNS
from drfl.history import csv_text
from drfl.loop import Result
from drfl.measure import Measure, Rows

COLUMNS = ("client", "measure", *PAIRED_COLUMNS)


def paired_csv(
    names: Sequence[str], measures: Sequence[Measure], result: Result, products: Tensor | None
) -> str | None:
    """A row for each client and measure that is a mean over rows; None where the last iterate is what is returned.

    Args:
        names: (N,) of the clients.
        measures: what was measured.
        result: of the run.
        products: (N, M) of the last test of the last iterate and the returned model; None where there was none.
    """
    returned, last = result.evaluation.sums, result.last.sums
    if products is None or returned is None or last is None or result.returned != "average":
        return None
    rows = []
    for i, name in enumerate(names):
        for j, measure in enumerate(measures):
            if measure.rows.mean:
                numbers = [*returned[i, j, 1:].tolist(), *last[i, j, 1:].tolist(), float(products[i, j])]
                whole = measure.rows is Rows.BINARY
                samples = int(result.evaluation.samples[i])
                rows.append((name, measure.name, samples, *(exact(x, whole=whole) for x in numbers)))
    return csv_text(COLUMNS, rows) if rows else None
