"""A deployment's table of two models tested on the same rows: sums from which paired differences are reckoned."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from drfl.experiments.run.artifacts import exact
from drfl.report.run_gains import CLASSES, PAIRED_COLUMNS
from drfl.task.measure import Measure, Rows
from drfl.training.history import csv_text
from drfl.training.loop import Result

COLUMNS = ("client", "measure", "class", *PAIRED_COLUMNS)


def paired_csv(
    names: Sequence[str], measures: Sequence[Measure], result: Result, products: Tensor | None
) -> str | None:
    """A row for each client and measure that is a mean over rows; None where the last iterate is what is returned.

    Of a measure that ranks rows there is a row for each of the two classes: its rows' placements are averaged, see
    :func:`drfl.data.row_scores.placements`.

    Args:
        names: (N,) of the clients.
        measures: what was measured.
        result: of the run.
        products: (N, M, 2) of the last test of the last iterate and the returned model; None where there was none.
    """
    returned, last = result.evaluation.sums, result.last.sums
    if products is None or returned is None or last is None or result.returned != "average":
        return None
    rows = []
    for i, name in enumerate(names):
        for j, measure in enumerate(measures):
            one, other, both = returned[i, j].tolist(), last[i, j].tolist(), products[i, j].tolist()
            if measure.rows.mean:
                # Write sums of whole numbers without a fraction, so that they are read back exactly.
                numbers, whole = (*one[1:3], *other[1:3], both[0]), measure.rows is Rows.BINARY
                samples = int(result.evaluation.samples[i])
                rows.append((name, measure.name, "", samples, *(exact(x, whole=whole) for x in numbers)))
            elif measure.rows is Rows.RANKS:
                for k, own in enumerate(CLASSES):
                    numbers = (one[2], one[3 + k], other[2], other[3 + k], both[k])
                    rows.append((name, measure.name, own, exact(one[k], whole=True), *map(exact, numbers)))
    return csv_text(COLUMNS, rows) if rows else None
