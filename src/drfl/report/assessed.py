"""What a run's files allow to be said of its clients."""

from __future__ import annotations

import numpy as np

from drfl.assessment.clients import Assessment, assess_clients
from drfl.measure import Measure, Rows
from drfl.report.read_run import RunRecord


def assessment_of(
    run: RunRecord, measure: Measure | None = None, level: float = 0.95, *, independent: bool = True
) -> Assessment | None:
    """The assessment of a run by one of its measures, or by its score; None where its files say too little."""
    own = run.score if measure is None else measure
    frame, n = run.clients, run.clients["samples"].to_numpy(float)
    name, values = own.name, run.clients["score" if own.name == run.score.name else own.name].to_numpy(float)
    ends = {Rows.BINARY: ("count", "count"), Rows.RANKS: ("positive", "pairs")}.get(own.rows, ("sum", "squares"))
    columns = [f"{name}_{end}" for end in ends]
    if own.rows is Rows.WHOLE:
        return None
    if not set(columns) <= set(frame.columns):
        if own.rows is not Rows.BINARY:
            return None
        first = second = np.round(values * n)
    else:
        first, second = (frame[column].to_numpy(float) for column in columns)
    sums = (first, n - first, second) if own.rows is Rows.RANKS else (n, first, second)
    names = run.clients["client"].tolist()
    return assess_clients(own, names, np.stack(sums, 1), n.astype(np.int64), level=level, independent=independent)
