"""Differences between the algorithms of a comparison and one of them, paired over seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drfl.assessment.seeds import FAILED, UNTRAINED, holm_family, seed_difference, verdict
from drfl.core.errors import unknown
from drfl.core.run_end import FAILURES
from drfl.experiments.run.measures import column

if TYPE_CHECKING:
    import pandas as pd

    from drfl.task.measure import Measure

COLUMNS = ("seeds", "difference", "low", "high", "p_holm", "verdict")

ON_TEST = "stopped on test rows"
"""The verdict on an algorithm with a run that test rows stopped: the other seeds would be a selected subset."""


def differences(
    runs: pd.DataFrame, names: tuple[str, ...], measures: tuple[Measure, ...], against: str, of: str
) -> pd.DataFrame:
    """Return a row for each other algorithm; see
    :meth:`drfl.experiments.compare.comparison_results.Comparison.differences`.
    """
    import pandas as pd

    if against not in names:
        raise unknown("algorithm", against, names)
    less_is_better = column(of, measures).small
    # The seeds without failed runs, untrained models and runs that test rows stopped are a selected subset.
    excluded: dict[str, str] = {}
    for name in names:
        of_algorithm = runs[runs["algorithm"] == name]
        if of_algorithm["stopped"].isin(FAILURES).any():
            excluded[name] = FAILED
        elif ((of_algorithm["rounds"] > 0) & (of_algorithm["effective_rounds"] == 0)).any():
            excluded[name] = UNTRAINED
        else:
            excluded[name] = ON_TEST if (of_algorithm["stopped_on"] == "test").any() else ""
    # Subtract seed by seed, because runs at one seed share data and initial model.
    known = {name: runs[runs["algorithm"] == name].set_index("seed")[of] for name in names}
    others = {name: (known[name] - known[against]).dropna() for name in names if name != against}
    reasons = [excluded[against] or excluded[name] for name in others]
    tests = [
        seed_difference([] if why else pairs.to_numpy(float))
        for pairs, why in zip(others.values(), reasons, strict=True)
    ]
    rows = [
        (d.n, d.mean, d.low, d.high, p, why or verdict(d, p, less_is_better=less_is_better))
        for d, p, why in zip(tests, holm_family(tests).tolist(), reasons, strict=True)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS), index=pd.Index(others, name=f"{of} less {against}'s"))
