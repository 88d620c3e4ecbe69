"""What a run's files allow to be said of its clients."""

from __future__ import annotations

import numpy as np

from drfl.assessment.clients import Assessment, assess_clients
from drfl.assessment.possible_sums import possible_sums
from drfl.errors import InputError
from drfl.measure import Measure, Rows
from drfl.report.formatting import clean
from drfl.report.read_run import RunRecord


def assessment_of(
    run: RunRecord, measure: Measure | None = None, level: float = 0.95, *, independent: bool = True
) -> Assessment | None:
    """The assessment of a run by one of its measures, or by its score; None where its files say too little.

    Raises:
        InputError: the files contradict each other, the level is none, or no client has a value.
    """
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
    sums = np.stack((first, n - first, second) if own.rows is Rows.RANKS else (n, first, second), 1)
    names = run.clients["client"].tolist()
    for client, value, samples, found in zip(names, values, n, sums, strict=True):
        if not (samples > 0 and samples.is_integer() and possible_sums(own, value, samples, found.tolist())):
            raise InputError(
                f"{run.label}/clients.csv is damaged: the {name} of '{clean(client, 40)}' is not that of its sums; "
                "run it again"
            )
    return assess_clients(own, names, sums, n.astype(np.int64), level=level, independent=independent)
