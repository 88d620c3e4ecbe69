"""Which algorithm serves the worst client best, and how far that conclusion reaches."""

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


class Against(NamedTuple):
    """The algorithm whose worst client measures best, against another one.

    Args:
        rival: the other one.
        gain: of the best's worst client over the rival's, paired over the seeds at which both were tested on the same
            clients; turned such that larger is better.
        verdict: of the best: see :func:`drfl.assessment.seeds.verdict`.
        population: the gain is above this with the error of the test rows in it, corrected for the number of
            differences; NaN if the seeds decide nothing, or rows cannot be compared.
        reach: how far "better" reaches.
    """

    rival: Group
    gain: SeedDifference
    verdict: str
    population: float
    reach: Reach


@dataclass(frozen=True)
class Standing:
    """Who is where by the worst client.

    Args:
        best: the algorithm whose worst client measures best, by its mean over seeds.
        against: it against each of the others, of which the best comes first.
        tests: for how many tests p-values are corrected.
        redrawn: what the seeds redraw.
        failed: labels of algorithms with runs that left no results; they rank last.
    """

    best: Group
    against: tuple[Against, ...]
    tests: int
    redrawn: Redrawn
    failed: tuple[str, ...] = ()

    @property
    def reach(self) -> Reach:
        """How far it reaches that the best is better than every other one."""
        return min(one.reach for one in self.against)

    def rivals(self, *verdicts: str) -> list[Against]:
        """Those others against which the verdict is one of these."""
        return [one for one in self.against if one.verdict in verdicts]


def standing(groups: Sequence[Group], lost: Sequence[str] = ()) -> Standing | None:
    """The algorithms by their worst clients; None for fewer than two that ended with a finite value at every seed.

    None too if test rows have stopped any of the runs: its value was chosen, and without it nobody knows the best.

    References such as Pooled are no rivals. Algorithms with failed runs are none either: the other seeds are those at
    which they happen to work.

    Args:
        groups: the algorithms.
        lost: those without any result, see :func:`drfl.report.groups.lost_algorithms`.
    """
    from drfl.assessment.scope import Reach, Redrawn, population_low
    from drfl.assessment.seeds import seed_difference  # loads scipy

    if any(run.stopped_on_test for group in groups for run in group.runs):
        return None
    means = {group.key: _sign(group) * mean(group.finals("worst_score")) for group in groups}
    rivals = [group for group in groups if not group.reference and math.isfinite(means[group.key])]
    if len(rivals) < 2:
        return None
    best, *others = sorted(rivals, key=lambda g: -means[g.key])
    pairs = [paired(best, other) for other in others]
    own = [seed_difference(_gains(pair)) for pair in pairs]
    # The correction for the best may have to count the differences among the others.
    rest = [seed_difference(_gains(paired(a, b))) for i, a in enumerate(others) for b in others[i + 1 :]]
    verdicts, tests = decided(own, rest)
    alpha, against = LEVEL / max(tests, 1), []
    for rival, gain, verdict, pair in zip(others, own, verdicts, pairs, strict=True):
        low, reach = math.nan, Reach.NOWHERE
        if verdict == "better":  # comparing test rows is slow, and pointless if the seeds do not decide
            lows = [row_low(run, other, alpha) for run, other in pair]
            if None not in lows:
                low = population_low(_gains(pair), [x for x in lows if x is not None], alpha)
            reach = Reach.POPULATION if low > 0 else Reach.SEEDS
        against.append(Against(rival, gain, verdict, low, reach))
    redrawn = Redrawn.of([run.drawn for run in _by_seed(best).values()])
    broken = (g for g in groups if not g.reference and (g.failed or any(run.diverged for run in g.runs)))
    failed = (group.label for group in broken)
    return Standing(best, tuple(against), tests, redrawn, (*failed, *lost))


def decided(own: Sequence[SeedDifference], others: Sequence[SeedDifference]) -> tuple[list[str], int]:
    """What the seeds show of the algorithm that measures best, which was chosen by looking.

    Holm's correction over its own differences alone would show a winner among equals too often
    (`evidence/best_by_looking.py`). It is enough to say that the best is better than every other one, all at once;
    otherwise the correction counts the differences of all pairs.

    Args:
        own: the gains of the best over each of the others.
        others: those of the others over each other.

    Returns:
        the verdicts on its own differences, and for how many tests p-values are corrected.
    """
    from drfl.assessment.seeds import T_FROM, holm_family, verdict  # loads scipy

    verdicts: list[str] = []
    for family in (own, [*own, *others]):
        corrected = holm_family(family)[: len(own)].tolist()
        verdicts = [verdict(gain, p) for gain, p in zip(own, corrected, strict=True)]
        if all(found == "better" for found in verdicts):
            return verdicts, len(own)
    return verdicts, sum(gain.n >= T_FROM for gain in (*own, *others))


def row_low(run: RunRecord, other: RunRecord, alpha: float) -> float | None:
    """By how much a run's worst client is truly better than another's at least, going by the test rows of both.

    Args:
        run: whose gain it is.
        other: over whom.
        alpha: the bound is wrong with probability at most α/2.

    Returns:
        None if the runs cannot be compared row by row.
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
    names = run.clients["client"].tolist()
    return assess_gain(measure, names, *sums, level=1 - alpha, independent=not rows.shared).worst.low


def paired(one: Group, other: Group) -> list[tuple[RunRecord, RunRecord]]:
    """The runs of two algorithms, a pair a seed that both have with the same clients."""
    others = _by_seed(other)
    return [
        (run, others[seed]) for seed, run in _by_seed(one).items() if seed in others and same_clients(run, others[seed])
    ]


def _gains(pairs: Sequence[tuple[RunRecord, RunRecord]]) -> list[float]:
    """By how much the worst client of each pair's first run measures better than that of its second."""
    return [_sign(run) * (run.final("worst_score") - other.final("worst_score")) for run, other in pairs]


def same_clients(one: RunRecord, other: RunRecord) -> bool:
    """Whether two runs were tested on one dataset, on clients of the same names with as many test rows each."""
    return one.tested == other.tested


def _by_seed(group: Group) -> dict[str, RunRecord]:
    found: dict[str, RunRecord] = {}
    for run in group.runs:
        found.setdefault(run.seed, run)
    return found


def _sign(measured: Group | RunRecord) -> int:
    return 1 if measured.score.more_is_better else -1
