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
        pairs: how many pairs of algorithms were tested, for which p-values are corrected.
    """

    best: Group
    against: tuple[Against, ...]
    pairs: int

    @property
    def shown(self) -> bool:
        """Whether the best is shown to be better than every other one."""
        return all(one.verdict == "better" for one in self.against)

    def rivals(self, *verdicts: str) -> list[Against]:
        """Those others against which the verdict is one of these."""
        return [one for one in self.against if one.verdict in verdicts]


def standing(groups: Sequence[Group]) -> Standing | None:
    """The algorithms by their worst clients; None for fewer than two that ended with a finite value at every seed.

    The best is chosen by looking, so that Holm's correction counts the differences of all pairs of algorithms: counting
    those of the chosen one alone would find a winner among equals too often.
    """
    from drfl.assessment.seeds import holm_family, seed_difference, verdict

    means = {group.key: _sign(group) * mean(group.finals("worst_score")) for group in groups}
    ranked = sorted((g for g in groups if math.isfinite(means[g.key])), key=lambda g: -means[g.key])
    if len(ranked) < 2:
        return None
    pairs = [(one, other) for i, one in enumerate(ranked) for other in ranked[i + 1 :]]
    gains: list[SeedDifference] = [seed_difference(paired(one, other)) for one, other in pairs]
    corrected = holm_family(gains).tolist()
    against = tuple(
        Against(other, gain, verdict(gain, p))
        for (one, other), gain, p in zip(pairs, gains, corrected, strict=True)
        if one is ranked[0]
    )
    return Standing(ranked[0], against, sum(not math.isnan(p) for p in corrected))


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
