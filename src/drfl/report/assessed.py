"""What a run's files allow to be said of its clients."""

from __future__ import annotations

import numpy as np

from drfl.assessment.clients import Assessment, AucInterval, assess_clients, scores_of
from drfl.assessment.evaluation import worst_of
from drfl.assessment.gains import WITH_ROWS
from drfl.assessment.possible_sums import possible_sums
from drfl.assessment.scores import Floats
from drfl.core.errors import InputError, Notice
from drfl.core.run_end import ON_TEST
from drfl.report.formatting import clean
from drfl.report.read_run import RunRecord, listed
from drfl.task.measure import Measure, Rows

MOST_ROWS = 10**9
"""More than any test has, and than numpy's tables with given margins can have."""

ENDS = {
    Rows.BINARY: ("count",),
    Rows.RATE: ("rows", "count"),
    Rows.RANKS: ("positive", "pairs", "positive_squares", "negative_squares"),
}
"""What the columns of the sums are called behind the measure's name; of the others ("sum", "squares")."""


def assessment_of(
    run: RunRecord,
    measure: Measure | None = None,
    level: float = 0.95,
    *,
    independent: bool = True,
    auc_interval: AucInterval = "delong",
    equality: bool = True,
) -> Assessment | None:
    """The assessment of a run by one of its measures, or by its score; None for the reason of :func:`why_nothing`.

    The other arguments are those of :func:`drfl.assessment.clients.assess_clients`.

    Raises:
        InputError: clients.csv says what cannot be.
    """
    own = run.score if measure is None else measure
    sums = _sums(run, own)
    if sums is None or not np.isfinite(scores_of(own, sums).values).any():
        return None
    names, samples = run.clients["client"].tolist(), run.clients["samples"].to_numpy(np.int64)
    return assess_clients(
        own, names, sums, samples, level=level, independent=independent, auc_interval=auc_interval, equality=equality
    )


def worst_interval(run: RunRecord, measure: Measure | None = None, alpha: float = 0.05) -> tuple[float, float] | None:
    """The interval of the worst client's true value alone, which takes little time; None as in :func:`assessment_of`.

    Args:
        run: its files.
        measure: one of its measures; None = its score.
        alpha: the probability that the interval misses.

    Raises:
        InputError: clients.csv says what cannot be.
    """
    own = run.score if measure is None else measure
    sums = _sums(run, own)
    return None if sums is None else worst_of(scores_of(own, sums), own, alpha)


def why_nothing(run: RunRecord, measure: Measure | None = None) -> Notice:
    """Why there are no intervals of one of a run's measures, or of its score, and the remedy, in a sentence."""
    own, found = run.score if measure is None else measure, listed(run.summary, "measures")
    words = f"{own.words[:1].upper()}{own.words[1:]}"
    if run.stopped_on_test:
        return Notice(
            f"{words} has no interval, as {ON_TEST}: run again for a fixed number of rounds, or in a simulation with "
            "--until METRIC=VALUE, which stops by validation rows.",
            "no-results",
            own.name,
        )
    if _sums(run, own) is not None:
        return Notice(f"{words} is undefined on every client's test rows.", "undefined-metric", own.name)
    if own.rows is Rows.WHOLE and found and isinstance(found[0], dict) and "rows" in found[0]:
        others = [other.name for other in run.measures if other.rows is not Rows.WHOLE]
        remedy = f"use drfl assess --measure {others[0]}" if others else WITH_ROWS
        return Notice(
            f"{words} has no interval, as it is a number of all of a client's rows together: {remedy}.",
            "unsupported-metric",
            own.name,
        )
    return Notice(
        f"{words} has no interval, as the files are of an older drfl without sums over test rows: run it again.",
        "no-results",
        own.name,
    )


def _sums(run: RunRecord, own: Measure) -> Floats | None:
    """(N, 5) of the clients' rows, see :class:`drfl.federation.federation.Evaluation`; None if nothing can be concluded
    from them: the files do not have them, or test rows have stopped the run.
    """
    if own.rows is Rows.WHOLE or run.stopped_on_test:
        return None
    n = run.clients["samples"].to_numpy(float)
    values = run.clients["score" if own.name == run.score.name else own.name].to_numpy(float)
    columns = [f"{own.name}_{end}" for end in ENDS.get(own.rows, ("sum", "squares"))]
    if set(columns) <= set(run.clients.columns):
        found = [run.clients[column].to_numpy(float) for column in columns]
    elif own.rows is Rows.BINARY:
        # Older runs have only the shares, from which the number of right rows follows.
        found = [np.round(values * n)]
    else:
        return None
    # In the order of Evaluation.sums. For values of 0 and 1, the sums of squares equal the sums.
    if own.rows is Rows.RANKS:
        found.insert(1, n - found[0])
    elif own.rows is Rows.RATE:
        found.append(found[1])
    else:
        found = [n, found[0], found[-1]]
    sums = np.stack([*found, *[np.zeros_like(n)] * (5 - len(found))], 1)
    if not ((n >= 0) & (n == np.round(n))).all() or n.sum() >= MOST_ROWS:
        raise InputError(
            f"{run.label}/clients.csv is damaged: its samples are no numbers of test rows; run it again",
            code="damaged-run",
            field=f"{run.label}/clients.csv",
        )
    for client, value, samples, found in zip(run.clients["client"], values, n, sums.tolist(), strict=True):
        # Where the model's outputs are not finite there are no sums.
        if samples and np.isfinite(found).all() and not possible_sums(own, value, int(samples), found):
            raise InputError(
                f"{run.label}/clients.csv is damaged: the {own.name} of '{clean(client, 40)}' is not that of its sums; "
                "run it again",
                code="damaged-run",
                field=f"{run.label}/clients.csv",
            )
    return sums
