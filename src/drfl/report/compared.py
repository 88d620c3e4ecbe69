"""Which algorithm serves the worst-off client best, and against which others its seeds show that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from drfl.report.formatting import mean
from drfl.report.groups import Group
from drfl.report.read_run import RunRecord, text

if TYPE_CHECKING:
    from drfl.assessment.seeds import SeedDifference


class Against(NamedTuple):
    """The algorithm whose worst client measures best, against another one.

    Args:
        rival: the other one.
        gain: of the best's worst client over the rival's, paired over the seeds at which both were tested on the same
            clients; turned such that larger is better.
        verdict: of the best: see :func:`drfl.assessment.seeds.verdict`.
    """

    rival: Group
    gain: SeedDifference
    verdict: str


@dataclass(frozen=True)
class Standing:
    """Who is where by the worst client.

    Args:
        best: the algorithm whose worst client measures best, by its mean over seeds.
        against: it against each of the others, of which the best comes first.
        tests: for how many tests p-values are corrected.
    """

    best: Group
    against: tuple[Against, ...]
    tests: int

    @property
    def shown(self) -> bool:
        """Whether the best is shown to be better than every other one."""
        return all(one.verdict == "better" for one in self.against)

    def rivals(self, *verdicts: str) -> list[Against]:
        """Those others against which the verdict is one of these."""
        return [one for one in self.against if one.verdict in verdicts]


def standing(groups: Sequence[Group]) -> Standing | None:
    """The algorithms by their worst clients; None for fewer than two that ended with a finite value at every seed.

    None too if test rows have stopped any of the runs: its value was chosen, and without it nobody knows the best.
    """
    from drfl.assessment.seeds import seed_difference  # loads scipy

    if any(run.stopped_on_test for group in groups for run in group.runs):
        return None
    means = {group.key: _sign(group) * mean(group.finals("worst_score")) for group in groups}
    ranked = sorted((g for g in groups if math.isfinite(means[g.key])), key=lambda g: -means[g.key])
    if len(ranked) < 2:
        return None
    best, rivals = ranked[0], ranked[1:]
    own = [seed_difference(paired(best, rival)) for rival in rivals]
    others = [seed_difference(paired(one, other)) for i, one in enumerate(rivals) for other in rivals[i + 1 :]]
    verdicts, tests = decided(own, others)
    return Standing(best, tuple(map(Against, rivals, own, verdicts)), tests)


def decided(own: Sequence[SeedDifference], others: Sequence[SeedDifference]) -> tuple[list[str], int]:
    """What the seeds show of the algorithm that measures best, which was chosen by looking.

    Holm's correction over its own differences alone would show a winner among equals too often
    (`experiments/best_by_looking.py`). It is enough to say that the best is better than every other one, all at once;
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
        if all(told == "better" for told in verdicts):
            return verdicts, len(own)
    return verdicts, sum(gain.n >= T_FROM for gain in (*own, *others))


def paired(one: Group, other: Group) -> list[float]:
    """The gains of one algorithm's worst client over another's, a value a seed that both have with the same clients."""
    others = _by_seed(other)
    return [
        _sign(one) * (run.final("worst_score") - others[seed].final("worst_score"))
        for seed, run in _by_seed(one).items()
        if seed in others and same_clients(run, others[seed])
    ]


def same_clients(one: RunRecord, other: RunRecord) -> bool:
    """Whether two runs were tested on one dataset, on clients of the same names with as many test rows each."""
    import numpy as np

    if text(one.summary, "dataset") != text(other.summary, "dataset"):
        return False
    names, sizes = ([run.clients[column] for run in (one, other)] for column in ("client", "samples"))
    return names[0].tolist() == names[1].tolist() and np.array_equal(*(own.to_numpy(float) for own in sizes))


def _by_seed(group: Group) -> dict[str, RunRecord]:
    found: dict[str, RunRecord] = {}
    for run in group.runs:
        found.setdefault(run.seed, run)
    return found


def _sign(group: Group) -> int:
    return 1 if group.score.more_is_better else -1
