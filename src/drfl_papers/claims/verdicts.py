"""The verdict on a claim, from what it comes to in its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from drfl_papers.claims.findings import InSetting

HOLDS, PARTLY, NOT_SHOWN = "holds", "holds partly", "not shown"
FALSE, OPEN, UNTESTABLE = "does not hold", "not decided", "not testable here"
Verdict = Literal["holds", "holds partly", "not shown", "does not hold", "not decided", "not testable here"]

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""All of them, the best first; docs/claims.md says what each means."""


def verdict(settings: Sequence[InSetting], needed: Literal["all", "most"], left_out: bool = False) -> Verdict:
    """The verdict by what was found.

    Args:
        settings: of the claim, those in which not all could be compared included.
        needed: in which settings the claim says it is so.
        left_out: whether settings of the paper were not run, which a claim on all of them holds for only partly.
    """
    n = len(settings)
    shown, against = sum(s.shown for s in settings), sum(s.opposite for s in settings)
    if n and against >= (1 if needed == "all" else n / 2):
        return FALSE
    # undecided settings cannot overturn a majority
    if needed == "most" and shown > n / 2:
        return HOLDS
    if not n or any(s.undecided for s in settings):
        return OPEN
    if shown == n and not left_out:
        return HOLDS
    return PARTLY if shown and not against else NOT_SHOWN
