"""Find the algorithm that serves the worst client best, and the scope of that conclusion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from drfl.core.errors import InputError
from drfl.report.formatting import mean
from drfl.report.groups import Group
from drfl.report.read_run import RunRecord

if TYPE_CHECKING:
    from drfl.assessment.scope import Reach, Redrawn
    from drfl.assessment.seeds import SeedDifference

LEVEL = 0.05


class RivalComparison(NamedTuple):
    """The algorithm whose worst client scores best, compared with another one.

    Args:
        rival: The other algorithm.
        gain: Gain of the best's worst client over the rival's, paired over the seeds at which both were tested on the
            same clients; turned so that larger is better.
        verdict: Verdict on the best, see :func:`drfl.assessment.seeds.verdict`.
        population: Lower bound of the gain that includes the error of the test rows, corrected for the number of
            differences; NaN if the seeds decide nothing, or rows cannot be compared.
        reach: Scope of the verdict "better".
    """

    rival: Group
    gain: SeedDifference
    verdict: str
    population: float
    reach: Reach


@dataclass(frozen=True)
class Ranking:
    """Ranking of the algorithms by their worst clients.

    Args:
        best: The algorithm whose worst client scores best, by its mean over seeds.
        comparisons: Comparisons of the best with each other algorithm, ordered from the best rival to the worst.
        tests: Number of tests for which p-values are corrected.
        redrawn: Parts that the seeds redraw.
        last: Labels of algorithms with runs that left no results or returned the initial model; they rank last.
    """

    best: Group
    comparisons: tuple[RivalComparison, ...]
    tests: int
    redrawn: Redrawn
    last: tuple[str, ...] = ()

    @property
    def reach(self) -> Reach:
        """Scope in which the best algorithm is better than every other one."""
        return min(comparison.reach for comparison in self.comparisons)

    def rivals(self, *verdicts: str) -> list[RivalComparison]:
        """Return the comparisons with one of these verdicts."""
        return [comparison for comparison in self.comparisons if comparison.verdict in verdicts]


def rank_algorithms(groups: Sequence[Group], lost: Sequence[str] = ()) -> Ranking | None:
    """Rank the algorithms by their worst clients; None if fewer than two have a finite value at every seed.

    The result is also None if test rows stopped any of the runs: its value was selected, and without it the best is
    unknown.

    References such as Pooled do not compete, and neither do algorithms with runs that failed or returned the initial
    model: they happen to work at their other seeds.
    """
    from drfl.assessment.scope import Reach, Redrawn, population_low
    from drfl.assessment.seeds import seed_difference  # this import loads scipy

    if any(run.stopped_on_test for group in groups for run in group.runs):
        return None
    means = {group.key: _sign(group) * mean(group.finals("worst_score")) for group in groups}
    competitors = [group for group in groups if not group.is_reference]
    rivals = [group for group in competitors if math.isfinite(means[group.key]) and not group.untrained]
    if len(rivals) < 2:
        return None
    best, *others = sorted(rivals, key=lambda g: -means[g.key])
    pairs = [pair_by_seed(best, other) for other in others]
    differences = [seed_difference(_gains(pair)) for pair in pairs]
    # The correction for the best may have to count the differences between the others.
    other_differences = [
        seed_difference(_gains(pair_by_seed(a, b))) for i, a in enumerate(others) for b in others[i + 1 :]
    ]
    verdicts, tests = verdicts_on_best(differences, other_differences)
    # Bonferroni for the bounds: Holm corrects p-values, but gives no simultaneous bounds.
    alpha, against = LEVEL / max(tests, 1), []
    for rival, gain, verdict, pair in zip(others, differences, verdicts, pairs, strict=True):
        low, reach = math.nan, Reach.NOWHERE
        if verdict == "better":  # comparing test rows is slow, and useless if the seeds do not decide
            lows = [row_bound(run, other, alpha) for run, other in pair]
            if None not in lows:
                low = population_low(_gains(pair), [x for x in lows if x is not None], alpha)
            reach = Reach.POPULATION if low > 0 else Reach.SEEDS
        against.append(RivalComparison(rival, gain, verdict, low, reach))
    redrawn = Redrawn.of([run.draw_digests for run in _by_seed(best).values()])
    last = [g.label for g in competitors if g.failed or any(run.has_diverged for run in g.runs)]
    last += [f"{g.label} (untrained: {g.untrained})" for g in competitors if g.untrained and g.label not in last]
    return Ranking(best, tuple(against), tests, redrawn, (*last, *lost))


def verdicts_on_best(own: Sequence[SeedDifference], others: Sequence[SeedDifference]) -> tuple[list[str], int]:
    """Return the seeds' verdicts on the algorithm that scores best, which was selected by looking.

    Holm's correction over its own differences alone would find a winner among equals too often
    (`evidence/best_by_looking.py`). It is sufficient only for the claim that the best is better than every other one at
    once. Otherwise the correction counts the differences of all pairs.

    Args:
        own: Gains of the best over each of the others.
        others: Gains of the others over each other.

    Returns:
        The verdicts on its own differences, and the number of tests for which p-values are corrected.
    """
    from drfl.assessment.seeds import T_FROM, holm_family, verdict  # loads scipy

    verdicts: list[str] = []
    for family in (own, [*own, *others]):
        corrected = holm_family(family)[: len(own)].tolist()
        verdicts = [verdict(gain, p) for gain, p in zip(own, corrected, strict=True)]
        if all(result == "better" for result in verdicts):
            return verdicts, len(own)
    return verdicts, sum(gain.n >= T_FROM for gain in (*own, *others))


def row_bound(run: RunRecord, other: RunRecord, alpha: float) -> float | None:
    """Bound the true gain of a run's worst client over another run's from below, from the test rows of both.

    Args:
        run: The run whose gain it is.
        other: The run to compare with.
        alpha: The bound is wrong with probability at most α/2.

    Returns:
        The bound; None if the runs cannot be compared row by row.
    """
    from drfl.assessment.gains import assess_gain, sums_of_pair

    measure = run.score
    if not measure.rows.paired:
        return None
    rows, before = run.row_scores(), other.row_scores()
    if rows is None or before is None or not rows.same_rows(before):
        return None
    try:
        sums = sums_of_pair(measure, (before, rows), (other.label, run.label))
    except InputError:  # a row without a value
        return None
    # The lower end of a two-sided interval at level 1 − α is wrong with probability at most α/2.
    names = run.clients["client"].tolist()
    return assess_gain(measure, names, *sums, level=1 - alpha, independent=not rows.has_shared_rows).worst.low


def pair_by_seed(one: Group, other: Group) -> list[tuple[RunRecord, RunRecord]]:
    """Pair the runs of two algorithms by seed, if both have the seed with the same clients."""
    others = _by_seed(other)
    return [
        (run, others[seed])
        for seed, run in _by_seed(one).items()
        if seed in others and have_same_clients(run, others[seed])
    ]


def _gains(pairs: Sequence[tuple[RunRecord, RunRecord]]) -> list[float]:
    """Compute the gain of each pair's first run over the second in the worst client's measured value."""
    return [_sign(run) * (run.final("worst_score") - other.final("worst_score")) for run, other in pairs]


def have_same_clients(one: RunRecord, other: RunRecord) -> bool:
    """Check that two runs have the same data set, the same client names and equally many test rows at each."""
    return one.test_setting == other.test_setting


def _by_seed(group: Group) -> dict[str, RunRecord]:
    runs: dict[str, RunRecord] = {}
    for run in group.runs:
        # A second run at a seed is not another independent draw, so only the first counts.
        runs.setdefault(run.seed, run)
    return runs


def _sign(measured: Group | RunRecord) -> int:
    return 1 if measured.score.more_is_better else -1
