"""A deployment's table of sums over test rows, from which paired differences of two models are computed."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from drfl.core.csv_cells import csv_text
from drfl.experiments.run.artifacts import exact_text
from drfl.report.run_gains import CLASSES, PAIRED_COLUMNS
from drfl.task.measure import Measure, Rows
from drfl.training.loop import Result

COLUMNS = ("client", "measure", "class", *PAIRED_COLUMNS)


def paired_csv(
    names: Sequence[str], measures: Sequence[Measure], result: Result, products: Tensor | None
) -> str | None:
    """Write the table with a row for each client and each measure that is a mean over rows.

    A measure that ranks rows has two rows, one for each class, whose placements are averaged. See
    :func:`drfl.data.row_scores.placements`.

    ``products`` (N, M, 2) are from the last test of the last iterate and the returned model; None if there was no such
    test.

    Returns:
        The CSV text; None if the returned model is the last iterate, or no measure is of this kind.
    """
    returned, last = result.evaluation.sums, result.last.sums
    if products is None or returned is None or last is None or result.returned != "average":
        return None
    rows = []
    for i, name in enumerate(names):
        if bool(returned[i].isnan().all()):  # the site did not answer the last test
            continue
        for j, measure in enumerate(measures):
            first, second, both = returned[i, j].tolist(), last[i, j].tolist(), products[i, j].tolist()
            if measure.rows.mean:
                # Write sums of whole numbers without a fraction, so that they are read back exactly.
                numbers, whole = (*first[1:3], *second[1:3], both[0]), measure.rows is Rows.BINARY
                samples = int(result.evaluation.samples[i])
                rows.append((name, measure.name, "", samples, *(exact_text(x, whole=whole) for x in numbers)))
            elif measure.rows is Rows.RANKS:
                for k, name_of_class in enumerate(CLASSES):
                    numbers = (first[2], first[3 + k], second[2], second[3 + k], both[k])
                    rows.append(
                        (name, measure.name, name_of_class, exact_text(first[k], whole=True), *map(exact_text, numbers))
                    )
    return csv_text(COLUMNS, rows) if rows else None
