"""The verdict on a claim, from what its comparisons say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from drfl.papers.claims.findings import OPPOSITE, SHOWN, UNDECIDED, Finding, Lead

HOLDS, PARTLY, NOT_SHOWN = "holds", "holds partly", "not shown"
FALSE, OPEN, UNTESTABLE = "does not hold", "not decided", "not testable here"
Verdict = Literal["holds", "holds partly", "not shown", "does not hold", "not decided", "not testable here"]

MEANING: dict[str, str] = {
    HOLDS: 'shown in every comparison that the claim makes (where it says "most": in more than half of the settings)',
    PARTLY: "shown in some, the opposite in none; or shown in all, but some of the paper's settings were not run",
    NOT_SHOWN: "shown in none, the opposite in none",
    FALSE: 'the opposite is shown in at least one (where it says "most": in half of the settings or more)',
    OPEN: "fewer than five seeds somewhere, six where a seed never arrives; runs that broke off do not count",
    UNTESTABLE: "nothing here measures it",
}
"""What each verdict means."""


def verdict(found: Sequence[Finding], needed: Literal["all", "most"], left_out: bool = False) -> Verdict:
    """The verdict by what was found.

    Args:
        found: of all the claim's comparisons, those that could not be made included.
        needed: in which settings the claim says it is so.
        left_out: whether settings of the paper were not run, which a claim on all of them holds for only partly.
    """
    if needed == "most":
        return _in_most(found)
    kinds = {f.outcome for f in found}
    if OPPOSITE in kinds:
        return FALSE
    if not kinds or UNDECIDED in kinds:
        return OPEN
    if kinds == {SHOWN} and not left_out:
        return HOLDS
    return PARTLY if SHOWN in kinds else NOT_SHOWN


def _in_most(found: Sequence[Finding]) -> Verdict:
    """A setting counts for the claim where all of it is shown there, against it where any opposite is."""
    settings: dict[tuple[str, str], set[str]] = {}
    for f in found:
        place = f.first if isinstance(f, Lead) else f.place
        settings.setdefault((place.result, place.setting), set()).add(f.outcome)
    half = len(settings) / 2
    against = sum(OPPOSITE in kinds for kinds in settings.values())
    if settings and against >= half:
        return FALSE
    if sum(kinds == {SHOWN} for kinds in settings.values()) > half:
        return HOLDS
    if not settings or any(UNDECIDED in kinds for kinds in settings.values()):
        return OPEN
    return PARTLY if not against and any(SHOWN in kinds for kinds in settings.values()) else NOT_SHOWN
