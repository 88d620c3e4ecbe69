"""Algorithms against one of them, paired over seeds, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drfl.assessment.seeds import holm_family, seed_difference, verdict
from drfl.errors import unknown
from drfl.experiments.measures import column

if TYPE_CHECKING:
    import pandas as pd

    from drfl.measure import Measure

COLUMNS = ("seeds", "difference", "low", "high", "p", "verdict")


def differences(
    runs: pd.DataFrame, names: tuple[str, ...], measures: tuple[Measure, ...], against: str, of: str
) -> pd.DataFrame:
    """A row for each other algorithm; see :meth:`drfl.experiments.comparison_results.Comparison.differences`.

    Args:
        runs: a row per run: algorithm, seed and the column.
        names: of the algorithms, in the order of the rows.
        measures: what was measured, the score first.
        against: which of them the others are compared with.
        of: the column.

    Raises:
        InputError: there is no such algorithm or column.
    """
    import pandas as pd

    if against not in names:
        raise unknown("algorithm", against, names)
    less_is_better = column(of, measures).small
    # An algorithm that test rows have stopped at any seed has chosen values, and the seeds left over are unlucky ones.
    runs = runs[~runs["algorithm"].isin(runs.loc[runs["stopped_on"] == "test", "algorithm"])]
    # a run that diverged has no value, and its seed no pair
    known = {name: runs[runs["algorithm"] == name].set_index("seed")[of] for name in names}
    others = {name: (known[name] - known[against]).dropna() for name in names if name != against}
    seen = [seed_difference(pairs.to_numpy(float)) for pairs in others.values()]
    p = holm_family(seen)
    rows = [
        (d.n, d.mean, d.low, d.high, own, verdict(d, own, less_is_better=less_is_better))
        for d, own in zip(seen, p.tolist(), strict=True)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS), index=pd.Index(others, name=f"{of} less {against}'s"))
