"""The verdict on a claim, from its outcomes in its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from drfl_papers.claims.findings import SettingOutcome

HOLDS, PARTLY, NOT_SIGNIFICANT = "holds", "holds partly", "not significant"
FALSE, OPEN, UNTESTABLE = "does not hold", "not decided", "not testable here"
Verdict = Literal["holds", "holds partly", "not significant", "does not hold", "not decided", "not testable here"]

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""All verdicts, the best first; docs/claims.md explains each."""


def verdict(settings: Sequence[SettingOutcome], needed: Literal["all", "most"], has_missing: bool = False) -> Verdict:
    """Decide a claim from its outcomes in its settings.

    Args:
        settings: Outcomes in the claim's settings, including settings in which not everything could be compared.
        needed: Whether the claim is about all settings or most of them.
        has_missing: Whether settings of the paper were not run. Then a claim about all settings holds at most partly.
    """
    n = len(settings)
    shown, against = sum(s.is_significant for s in settings), sum(s.has_opposite for s in settings)
    if n and against >= (1 if needed == "all" else n / 2):
        return FALSE
    # Undecided settings cannot overturn a majority.
    if needed == "most" and shown > n / 2:
        return HOLDS
    if not n or any(s.is_undecided for s in settings):
        return OPEN
    if shown == n and not has_missing:
        return HOLDS
    return PARTLY if shown and not against else NOT_SIGNIFICANT
