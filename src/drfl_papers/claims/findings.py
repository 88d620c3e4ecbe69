"""The outcome of one comparison: significant, not significant, opposite significant, or not decided.

- A lead of one method over another is tested over the seeds for which both have a number: by the paired t-test and,
  from six pairs on, by the sign-flip test (:mod:`drfl.assessment.seeds`). If some seed never reaches a level, its
  rounds count as later than any number, and only the signs are tested (exact binomial test that leads and lags are
  equally likely).
- Two methods are level if the 95 % t-interval of the lead lies within a margin. They differ if a paired t-test finds
  the lead to be significantly beyond the margin.
- A statement about every seed is significant if all of at least five seeds agree, and its opposite if none agrees.
- A claim as worded needs all its findings in a setting at once. Its p-value there is the largest of theirs (an
  intersection–union test, Berger 1982), corrected over the settings of the claim. If it is significant, so is each of
  the findings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from drfl.assessment.seeds import LEVEL, T_FROM, SeedDifference, holm, seed_difference
from drfl.experiments.run.measures import MetricColumn

SIGNIFICANT, NOT_SIGNIFICANT, OPPOSITE, UNDECIDED = (
    "significant",
    "not significant",
    "opposite significant",
    "not decided",
)
SIGNS_FROM = 6
"""Smallest number of pairs for which the sign test can reach LEVEL: 2/2ⁿ is 0.0625 at n = 5."""


class MeasureLike(Protocol):
    """A measure: one of :mod:`drfl_papers.claims.measures`."""

    @property
    def name(self) -> str:
        """The name used in files, unique among measures."""
        ...

    @property
    def display(self) -> MetricColumn:
        """How its numbers are displayed."""
        ...

    def paper(self, result: str, setting: str, method: str) -> float:
        """Return the paper's number; NaN if the paper gives none."""
        ...


class Place(NamedTuple):
    """A method in a setting of a result."""

    result: str
    setting: str
    method: str


@dataclass(frozen=True)
class Lead:
    """How far a place is ahead of another in the claim's direction, per seed.

    Args:
        metric: Name of the measure.
        display: How its numbers are displayed.
        first: The place that the claim says is ahead.
        second: The other place.
        leads: One value per seed that both places have; ±inf if one of them never reaches the level, 0 if neither does.
        tests: Mean, interval and p-values of the leads. If a lead is infinite, only the sign test's p-value, in the
            field of the t-test.
        paper: The paper's lead; NaN if the paper gives none.
        p_holm: p-value corrected for the family; NaN if the lead is not decided.
        outcome: One of the four outcomes above.
        p_claim: p-value for the claim, not corrected; 1 if the first place does not lead, NaN if it is not decided.
        p_worded: p-value of the claim as worded in this setting, corrected over the settings; NaN if it is not decided.
    """

    metric: str
    display: MetricColumn
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
        """Whether there are enough pairs for a test."""
        return len(self.leads) >= (SIGNS_FROM if self.by_signs else T_FROM)

    @property
    def wins(self) -> int:
        """Number of seeds with a lead."""
        return sum(lead > 0 for lead in self.leads)

    @property
    def losses(self) -> int:
        """Number of seeds with a lag."""
        return sum(lead < 0 for lead in self.leads)


class EverySeed(NamedTuple):
    """How many seeds of a place have a number within bounds.

    Args:
        metric: Name of the measure.
        display: How its numbers are displayed.
        place: The place.
        values: One number per seed.
        agree: Number of seeds within the bounds.
    """

    metric: str
    display: MetricColumn
    place: Place
    values: tuple[float, ...]
    agree: int

    @property
    def outcome(self) -> str:
        """One of the four outcomes above."""
        n = len(self.values)
        if n < T_FROM:
            return UNDECIDED
        return SIGNIFICANT if self.agree == n else NOT_SIGNIFICANT if self.agree else OPPOSITE

    @property
    def p_claim(self) -> float:
        """0 if the outcome is significant, else 1 (seeds are counted, not tested); NaN if it is not decided."""
        return math.nan if self.outcome == UNDECIDED else float(self.outcome != SIGNIFICANT)

    @property
    def share(self) -> tuple[float, float]:
        """The exact 95 % interval of the share of all seeds that agree (Clopper and Pearson 1934)."""
        from scipy.special import betaincinv  # imported here because it is slow to load

        k, n = self.agree, len(self.values)
        low = float(betaincinv(k, n - k + 1, LEVEL / 2)) if k else 0.0
        return low, float(betaincinv(k + 1, n - k, 1 - LEVEL / 2)) if k < n else 1.0


Finding = Lead | EverySeed


class SettingOutcome(NamedTuple):
    """The outcome of a claim as worded in one of its settings.

    Args:
        p: Its p-value, corrected over the settings; NaN if it is not decided.
        is_significant: Whether it is significant.
        has_opposite: Whether the opposite of one of its findings is significant.
        is_undecided: Whether one of its findings is not decided.
    """

    p: float
    is_significant: bool
    has_opposite: bool
    is_undecided: bool


def lead_of(
    measure: MeasureLike,
    places: tuple[Place, Place],
    values: tuple[Mapping[int, float], Mapping[int, float]],
    sign: int,
) -> Lead:
    """Compute the lead of the first place over the second; ``sign`` is 1 if more is better, −1 if less is."""
    first, second = values
    leads = tuple(
        # If neither reaches the level, the difference of the two infinities would be NaN.
        0.0 if math.isinf(first[seed]) and math.isinf(second[seed]) else sign * (first[seed] - second[seed])
        for seed in sorted(first.keys() & second.keys())
    )
    if any(map(math.isinf, leads)):  # infinite leads have a sign but no mean to test
        p = sign_test_p(sum(x > 0 for x in leads), sum(x < 0 for x in leads))
        tests = SeedDifference(len(leads), math.nan, math.nan, math.nan, p, math.nan)
    else:
        tests = seed_difference(leads)
    ours, theirs = (measure.paper(*place) for place in places)
    return Lead(measure.name, measure.display, *places, leads, tests, sign * (ours - theirs))


def sign_test_p(wins: int, losses: int) -> float:
    """Test with the exact two-sided binomial test whether leads and lags are equally likely; ties are dropped.

    The p-value is 1 if there are only ties.
    """
    n = wins + losses
    tail = sum(math.comb(n, k) for k in range(min(wins, losses) + 1)) / 2**n
    return min(1.0, 2 * tail)


def with_lead_outcome(lead: Lead, p_holm: float) -> Lead:
    """Add the outcome for the claim that the first place is ahead."""
    if not lead.testable:
        return replace(lead, p_holm=math.nan, outcome=UNDECIDED)
    forward = lead.wins > lead.losses if lead.by_signs else lead.tests.mean > 0
    if lead.tests.p_flips > LEVEL:  # with too few pairs p_flips is NaN, and only the t-test decides
        return replace(lead, p_holm=p_holm, outcome=NOT_SIGNIFICANT, p_claim=1.0)
    outcome = NOT_SIGNIFICANT if not p_holm <= LEVEL else SIGNIFICANT if forward else OPPOSITE
    return replace(lead, p_holm=p_holm, outcome=outcome, p_claim=lead.tests.p_t if forward else 1.0)


def beyond_p(lead: Lead, margin: float, both_sides: bool) -> float:
    """Compute the two-sided p-value of a lead against the margin if its mean is beyond it.

    The p-value is 1 if the mean is within the margin, and NaN if there are too few pairs. If some seed never reaches
    the level, the p-value is that of the signs, for any margin.

    Args:
        lead: The lead.
        margin: Largest difference that counts as none, in the metric's unit.
        both_sides: Whether being ahead by more than the margin counts too.
    """
    if not lead.testable:
        return math.nan
    if lead.by_signs:
        return lead.tests.p_t if both_sides or lead.losses > lead.wins else 1.0
    if abs(lead.tests.mean) <= margin or (lead.tests.mean > 0 and not both_sides):
        return 1.0
    edge = math.copysign(margin, lead.tests.mean)
    return seed_difference([value - edge for value in lead.leads]).p_t


def with_level_outcome(lead: Lead, p_holm: float, margin: float, both_sides: bool) -> Lead:
    """Add the outcome for the claim that the first place is level with the second, or not behind it.

    ``p_holm`` is the lead's :func:`beyond_p`, corrected for all comparisons of the claim.
    """
    if not lead.testable:
        return lead
    low, high = lead.tests.low, lead.tests.high
    if math.isnan(low):  # equal at every seed
        low = high = lead.tests.mean
    within = low >= -margin and (high <= margin or not both_sides)
    outcome = OPPOSITE if p_holm <= LEVEL else SIGNIFICANT if within else NOT_SIGNIFICANT
    return replace(lead, p_holm=p_holm, outcome=outcome, p_claim=within_p(lead, margin, both_sides))


def within_p(lead: Lead, margin: float, both_sides: bool) -> float:
    """Return the level of the smallest t-interval that lies within the margin, as a p-value.

    It is 1 if the mean is not within the margin, or if some seed never reaches the level.
    """
    edges = (-margin, margin) if both_sides else (-margin,)
    if lead.by_signs or any((lead.tests.mean - edge) * edge >= 0 for edge in edges):
        return 1.0
    if math.isnan(lead.tests.low):  # equal at every seed
        return 0.0
    return max(seed_difference([value - edge for value in lead.leads]).p_t for edge in edges)


def decide_as_worded(
    found: Sequence[Finding], setting: Callable[[Finding], object]
) -> tuple[list[Finding], list[SettingOutcome]]:
    """Test a claim that needs all its findings in a setting at once.

    Returns:
        The findings and the settings. All leads are significant in the settings in which the claim as worded is.
    """
    groups: dict[object, list[Finding]] = {}
    for finding in found:
        groups.setdefault(setting(finding), []).append(finding)
    # A finding that is not decided has p = NaN and leaves the setting undecided.
    p = [max((f.p_claim for f in group), key=lambda p: (math.isnan(p), p)) for group in groups.values()]
    settings: dict[object, SettingOutcome] = {}
    for (name, group), corrected in zip(groups.items(), holm(p).tolist(), strict=True):
        kinds = {f.outcome for f in group}
        settings[name] = SettingOutcome(corrected, corrected <= LEVEL, OPPOSITE in kinds, UNDECIDED in kinds)
    worded: list[Finding] = []
    for finding in found:
        place = settings[setting(finding)]
        if isinstance(finding, Lead):
            worded.append(
                replace(finding, p_worded=place.p, outcome=SIGNIFICANT if place.is_significant else finding.outcome)
            )
        else:
            worded.append(finding)
    return worded, list(settings.values())


def every_seed(measure: MeasureLike, place: Place, values: Mapping[int, float], least: float, most: float) -> EverySeed:
    """Count the seeds whose number lies between two bounds, both included."""
    numbers = tuple(values[seed] for seed in sorted(values))
    return EverySeed(measure.name, measure.display, place, numbers, sum(least <= value <= most for value in numbers))
