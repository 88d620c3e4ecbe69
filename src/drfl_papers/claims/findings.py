"""What one comparison, or one place, says of a claim: shown, not shown, the opposite shown, or not decided.

- A lead of one method over another is tested over the seeds that both have a number for: by the paired t-test and,
  from six pairs on, by all sign flips (:mod:`drfl.assessment.seeds`). Where some seed never reaches a level its rounds
  are later than any number, and the signs alone are tested (exact binomial test of as many leads as lags).
- Two methods are level where the 95 % t-interval of the lead lies within a margin, and apart where a paired t-test
  shows the lead to be beyond it.
- A statement on every seed is shown where all of at least five seeds agree, and its opposite where none does.
- A claim as worded needs all its findings in a setting at once. It is shown there by the largest of their p-values (an
  intersection–union test, Berger 1982), corrected over the settings of the claim; then each of the findings is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from drfl.assessment.seeds import LEVEL, T_FROM, SeedDifference, holm, seed_difference
from drfl.experiments.run.measures import Column

SHOWN, NOT_SHOWN, OPPOSITE, UNDECIDED = "shown", "not shown", "opposite shown", "not decided"
SIGNS_FROM = 6
"""Fewest pairs at which the test of signs can reach LEVEL: 2/2ⁿ is 0.0625 at n = 5."""


class MeasureLike(Protocol):
    """What numbers are of: one of :mod:`drfl_papers.claims.measures`."""

    @property
    def name(self) -> str:
        """As files have it; no other measure has the same."""
        ...

    @property
    def shown(self) -> Column:
        """How its numbers are shown."""
        ...

    def paper(self, result: str, setting: str, method: str) -> float:
        """The paper's number; NaN where it gives none."""
        ...


class Place(NamedTuple):
    """A method in a setting of a result."""

    result: str
    setting: str
    method: str


@dataclass(frozen=True)
class Lead:
    """How far a place is ahead of another in the claim's direction, seed by seed.

    Args:
        metric: name of the measure.
        shown: how its numbers are shown.
        first: the place that is claimed to be ahead.
        second: the other.
        leads: a value a seed that both have; ±inf where one of them never reaches the level, 0 where neither does.
        tests: their mean, interval and p-values; with infinite ones the signs' p-value alone, as the t-test's.
        paper: the paper's lead; NaN where it gives none.
        p_holm: corrected for the family; NaN where it is not decided.
        outcome: one of the four above.
        p_claim: for the claim, not corrected; 1 where it does not lead, NaN where it is not decided.
        p_worded: that of the claim as worded in this setting, corrected over the settings; NaN likewise.
    """

    metric: str
    shown: Column
    first: Place
    second: Place
    leads: tuple[float, ...]
    tests: SeedDifference
    paper: float = math.nan
    p_holm: float = math.nan
    outcome: str = UNDECIDED
    p_claim: float = math.nan
    p_worded: float = math.nan

    @property
    def by_signs(self) -> bool:
        """Whether only the signs are tested."""
        return any(map(math.isinf, self.leads))

    @property
    def testable(self) -> bool:
        """Whether there are pairs enough."""
        return len(self.leads) >= (SIGNS_FROM if self.by_signs else T_FROM)

    @property
    def wins(self) -> int:
        """Seeds with a lead."""
        return sum(lead > 0 for lead in self.leads)

    @property
    def losses(self) -> int:
        """Seeds that lag."""
        return sum(lead < 0 for lead in self.leads)


class EverySeed(NamedTuple):
    """How many seeds of a place have a number within bounds.

    Args:
        metric: name of the measure.
        shown: how its numbers are shown.
        place: which.
        values: a number a seed.
        agree: how many are within the bounds.
    """

    metric: str
    shown: Column
    place: Place
    values: tuple[float, ...]
    agree: int

    @property
    def outcome(self) -> str:
        """One of the four above."""
        n = len(self.values)
        if n < T_FROM:
            return UNDECIDED
        return SHOWN if self.agree == n else NOT_SHOWN if self.agree else OPPOSITE

    @property
    def p_claim(self) -> float:
        """0 where it is shown and else 1, as seeds are counted and not tested; NaN where it is not decided."""
        return math.nan if self.outcome == UNDECIDED else float(self.outcome != SHOWN)

    @property
    def share(self) -> tuple[float, float]:
        """The exact 95 % interval of the share of all seeds that agree (Clopper, Pearson 1934)."""
        from scipy.special import betaincinv  # it takes a while to load

        k, n = self.agree, len(self.values)
        low = float(betaincinv(k, n - k + 1, LEVEL / 2)) if k else 0.0
        return low, float(betaincinv(k + 1, n - k, 1 - LEVEL / 2)) if k < n else 1.0


Finding = Lead | EverySeed


class InSetting(NamedTuple):
    """What a claim as worded comes to in one of its settings.

    Args:
        p: its p-value, corrected over the settings; NaN where it is not decided.
        shown: whether it is shown.
        opposite: whether the opposite of one of its findings is.
        undecided: whether one of its findings is not decided.
    """

    p: float
    shown: bool
    opposite: bool
    undecided: bool


def lead_of(
    measure: MeasureLike,
    places: tuple[Place, Place],
    values: tuple[Mapping[int, float], Mapping[int, float]],
    sign: int,
) -> Lead:
    """The lead of the first place over the second.

    Args:
        measure: whose numbers they are.
        places: both.
        values: theirs, by seed.
        sign: 1 where a greater number leads, −1 where a smaller one does.
    """
    first, second = values
    leads = tuple(
        # if neither reaches the level, the difference of the two infinities would be NaN
        0.0 if math.isinf(first[seed]) and math.isinf(second[seed]) else sign * (first[seed] - second[seed])
        for seed in sorted(first.keys() & second.keys())
    )
    if any(map(math.isinf, leads)):  # infinite leads have a sign, but no mean to test
        p = sign_test_p(sum(x > 0 for x in leads), sum(x < 0 for x in leads))
        tests = SeedDifference(len(leads), math.nan, math.nan, math.nan, p, math.nan)
    else:
        tests = seed_difference(leads)
    ours, theirs = (measure.paper(*place) for place in places)
    return Lead(measure.name, measure.shown, *places, leads, tests, sign * (ours - theirs))


def sign_test_p(wins: int, losses: int) -> float:
    """Two-sided p-value of the exact binomial test that leads and lags are equally likely; ties are left out.

    1 where there are only ties.
    """
    n = wins + losses
    tail = sum(math.comb(n, k) for k in range(min(wins, losses) + 1)) / 2**n
    return min(1.0, 2 * tail)


def ahead(lead: Lead, p_holm: float) -> Lead:
    """With what it says of the claim that the first place is ahead.

    Args:
        lead: what was found.
        p_holm: its p-value, corrected for all comparisons of its family.
    """
    if not lead.testable:
        return replace(lead, p_holm=math.nan, outcome=UNDECIDED)
    forward = lead.wins > lead.losses if lead.by_signs else lead.tests.mean > 0
    if lead.tests.p_flips > LEVEL:  # with too few pairs p_flips is NaN, and only the t-test decides
        return replace(lead, p_holm=p_holm, outcome=NOT_SHOWN, p_claim=1.0)
    outcome = NOT_SHOWN if not p_holm <= LEVEL else SHOWN if forward else OPPOSITE
    return replace(lead, p_holm=p_holm, outcome=outcome, p_claim=lead.tests.p_t if forward else 1.0)


def beyond_p(lead: Lead, margin: float, both_sides: bool) -> float:
    """Two-sided p-value of a lead at the margin, where the mean lies beyond it; 1 where it does not, or n is too small.

    Where some seed never reaches the level: of the signs, whatever the margin.

    Args:
        lead: what was found.
        margin: how large a difference counts as none, in the metric's own unit.
        both_sides: whether being ahead by more than the margin counts too.
    """
    if not lead.testable:
        return math.nan
    if lead.by_signs:
        return lead.tests.p_t if both_sides or lead.losses > lead.wins else 1.0
    if abs(lead.tests.mean) <= margin or (lead.tests.mean > 0 and not both_sides):
        return 1.0
    edge = math.copysign(margin, lead.tests.mean)
    return seed_difference([value - edge for value in lead.leads]).p_t


def level(lead: Lead, p_holm: float, margin: float, both_sides: bool) -> Lead:
    """With what it says of the claim that the first place is level with the second, or not behind it.

    Args:
        lead: what was found.
        p_holm: its :func:`beyond_p`, corrected for all comparisons of the claim.
        margin: as there.
        both_sides: as there.
    """
    if not lead.testable:
        return lead
    low, high = lead.tests.low, lead.tests.high
    if math.isnan(low):  # equal at every seed
        low = high = lead.tests.mean
    within = low >= -margin and (high <= margin or not both_sides)
    outcome = OPPOSITE if p_holm <= LEVEL else SHOWN if within else NOT_SHOWN
    return replace(lead, p_holm=p_holm, outcome=outcome, p_claim=within_p(lead, margin, both_sides))


def within_p(lead: Lead, margin: float, both_sides: bool) -> float:
    """The level of the smallest t-interval that lies within the margin, as a p-value; 1 where the mean does not.

    Where some seed never reaches the level: 1.

    Args:
        lead: what was found.
        margin: see :func:`beyond_p`.
        both_sides: see there.
    """
    edges = (-margin, margin) if both_sides else (-margin,)
    if lead.by_signs or any((lead.tests.mean - edge) * edge >= 0 for edge in edges):
        return 1.0
    if math.isnan(lead.tests.low):  # equal at every seed
        return 0.0
    return max(seed_difference([value - edge for value in lead.leads]).p_t for edge in edges)


def as_worded(found: Sequence[Finding], setting: Callable[[Finding], object]) -> tuple[list[Finding], list[InSetting]]:
    """What a claim that needs all its findings in a setting says there.

    Args:
        found: all of them.
        setting: which of the claim's settings a finding belongs to.

    Returns:
        the findings, those in settings where the claim is shown as worded being shown, and the settings.
    """
    groups: dict[object, list[Finding]] = {}
    for one in found:
        groups.setdefault(setting(one), []).append(one)
    # A finding that is not decided, NaN, leaves the setting undecided.
    p = [max((f.p_claim for f in own), key=lambda p: (math.isnan(p), p)) for own in groups.values()]
    settings: dict[object, InSetting] = {}
    for (name, own), corrected in zip(groups.items(), holm(p).tolist(), strict=True):
        kinds = {f.outcome for f in own}
        settings[name] = InSetting(corrected, corrected <= LEVEL, OPPOSITE in kinds, UNDECIDED in kinds)
    worded: list[Finding] = []
    for one in found:
        place = settings[setting(one)]
        if isinstance(one, Lead):
            worded.append(replace(one, p_worded=place.p, outcome=SHOWN if place.shown else one.outcome))
        else:
            worded.append(one)
    return worded, list(settings.values())


def every_seed(measure: MeasureLike, place: Place, values: Mapping[int, float], least: float, most: float) -> EverySeed:
    """How many seeds have a number between two bounds, both included."""
    numbers = tuple(values[seed] for seed in sorted(values))
    return EverySeed(measure.name, measure.shown, place, numbers, sum(least <= value <= most for value in numbers))


def outcomes(found: Sequence[Finding]) -> dict[str, int]:
    """How many of each outcome there are."""
    return {name: sum(f.outcome == name for f in found) for name in (SHOWN, NOT_SHOWN, OPPOSITE, UNDECIDED)}
