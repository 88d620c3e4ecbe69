"""What a run's files allow to be said of its clients."""

from __future__ import annotations

import numpy as np

from drfl.assessment.clients import Assessment, ClientScores, assess_clients, scores_of
from drfl.assessment.evaluation import worst_of
from drfl.assessment.scores import Floats
from drfl.errors import InputError
from drfl.measure import Measure, Rows
from drfl.report.read_run import RunRecord, listed

SLACK = 1e-6
"""How far, relatively, sums may be from what is possible, by rounding."""

MOST_ROWS = 10**9
"""More than any test has, and than numpy's tables with given margins can have."""

ENDS = {Rows.BINARY: ("count",), Rows.RANKS: ("positive", "pairs")}
"""What the columns of the sums are called behind the measure's name; of the others ("sum", "squares")."""


def assessment_of(
    run: RunRecord, measure: Measure | None = None, level: float = 0.95, *, independent: bool = True
) -> Assessment | None:
    """The assessment of a run by one of its measures, or by its score; None where its files say too little.

    Raises:
        InputError: clients.csv says what cannot be, or no client has a value.
    """
    own = run.score if measure is None else measure
    sums = _sums(run, own)
    if sums is None:
        return None
    names, samples = run.clients["client"].tolist(), run.clients["samples"].to_numpy(np.int64)
    return assess_clients(own, names, sums, samples, level=level, independent=independent)


def told_of(run: RunRecord, measure: Measure | None = None) -> Assessment | None:
    """The assessment at 95 %, whether or not clients share test rows; None too where no client has a value.

    Raises:
        InputError: clients.csv says what cannot be.
    """
    scores = _scores(run, measure)
    if scores is None or not np.isfinite(scores.values).any():
        return None
    return assessment_of(run, measure, independent=not run.shared_test_rows)


def worst_interval(run: RunRecord, measure: Measure | None = None) -> tuple[float, float] | None:
    """The 95 % interval of the worst client's true value alone, which takes little time; None as in :func:`told_of`.

    Raises:
        InputError: clients.csv says what cannot be.
    """
    scores = _scores(run, measure)
    return None if scores is None else worst_of(scores, run.score if measure is None else measure)


def why_nothing(run: RunRecord) -> str:
    """Why there are no intervals of a run's score, and the remedy, in a sentence."""
    score, found = run.score, listed(run.summary, "measures")
    if _sums(run, score) is not None:
        return f"There are no intervals: {score.words} is not defined on any client's test rows."
    if score.rows is Rows.WHOLE and found and isinstance(found[0], dict) and "rows" in found[0]:
        return (
            f"There are no intervals: {score.words} is a number of all of a client's rows together; with "
            "--metric accuracy, or auc, there is a measure beside it that has some."
        )
    return "There are no intervals: the files are of an older drfl and have no sums over test rows; run it again."


def _scores(run: RunRecord, measure: Measure | None) -> ClientScores | None:
    own = run.score if measure is None else measure
    sums = _sums(run, own)
    return None if sums is None else scores_of(own, sums)


def _sums(run: RunRecord, own: Measure) -> Floats | None:
    """(N, 3) of the clients' rows, see :class:`drfl.federation.Evaluation`; None where the files do not have them."""
    if own.rows is Rows.WHOLE:
        return None
    n = run.clients["samples"].to_numpy(float)
    columns = [f"{own.name}_{end}" for end in ENDS.get(own.rows, ("sum", "squares"))]
    if set(columns) <= set(run.clients.columns):
        first, *rest = (run.clients[column].to_numpy(float) for column in columns)
    elif own.rows is Rows.BINARY:
        values = run.clients["score" if own.name == run.score.name else own.name].to_numpy(float)
        first, rest = np.round(values * n), []
    else:
        return None
    second = rest[0] if rest else first
    if not _possible(own.rows, n, first, second):
        raise InputError(
            f"clients.csv of {run.label} is damaged: its sums of {own.words} are not those of so many test rows; run "
            "it again"
        )
    return np.stack((first, n - first, second) if own.rows is Rows.RANKS else (n, first, second), 1)


def _possible(rows: Rows, n: Floats, first: Floats, second: Floats) -> bool:
    """Whether there can be such sums over n rows; of a client without a value they may be NaN or infinite."""
    if not ((n >= 0) & (n == np.round(n))).all() or n.sum() >= MOST_ROWS:
        return False
    known = np.isfinite(first) & np.isfinite(second)
    n, first, second = n[known], first[known], second[known]
    slack = SLACK * (1 + n)
    if rows is Rows.REAL:
        return bool((first**2 <= second * n * (1 + SLACK) + slack).all())
    most = first * (n - first) if rows is Rows.RANKS else first
    return bool(((first >= 0) & (first <= n + slack) & (second >= 0) & (second <= most + slack * (1 + n))).all())
