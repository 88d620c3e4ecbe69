"""Decide all claims of the papers from the stored results, and write the decisions as CSV text."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from drfl.core.csv_cells import csv_text
from drfl.core.errors import InputError
from drfl_papers.claims import verdicts
from drfl_papers.claims.findings import (
    OPPOSITE,
    SIGNIFICANT,
    UNDECIDED,
    EverySeed,
    Finding,
    Lead,
    SettingOutcome,
    decide_as_worded,
)
from drfl_papers.claims.results import StoredResults
from drfl_papers.claims.rules import AnyClaim, Derived, MeasuredClaim, Untestable
from drfl_papers.claims.verdicts import Verdict, verdict
from drfl_papers.claims.wording import describe
from drfl_papers.specification import load_spec, names

# The column names are part of the file format: they stay when the wording of an outcome changes.
COLUMNS = (
    "id", "paper", "where", "claim", "kind", "verdict", "settings", "shown as worded", "comparisons", "shown",
    "opposite shown", "not decided", "decides", "remark",
)  # fmt: skip
FINDING_COLUMNS = (
    "id", "measure", "result", "setting", "method", "against_setting", "against_method",
    "pairs", "lead", "low", "high", "paper", "p", "p_sign_flips", "p_holm", "p_worded", "wins", "losses", "outcome",
)  # fmt: skip


class ClaimsFile(BaseModel):
    """The contents of the claims file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    claim: list[AnyClaim]


@dataclass(frozen=True)
class ClaimDecision:
    """A claim with its verdict.

    Args:
        claim: The claim.
        verdict: One of :data:`drfl_papers.claims.verdicts.VERDICTS`.
        findings: All comparisons; empty for claims that no measurement decides.
        settings: The outcome of the claim as worded in each of its settings; empty for claims that no measurement
            decides.
        decides: The numbers behind the verdict, in words.
    """

    claim: AnyClaim
    verdict: Verdict
    findings: tuple[Finding, ...]
    settings: tuple[SettingOutcome, ...]
    decides: str


def load(path: Path) -> tuple[AnyClaim, ...]:
    """Read the claims of a file.

    Raises:
        InputError: If the file is missing, a key is unknown, a value is invalid, or two claims have the same id.
    """
    try:
        claims = ClaimsFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8"))).claim
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"{path.name}: {'.'.join(map(str, first['loc']))}: {first['msg']}", code="invalid-value", field=path.name
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path.name}: {error}", code="invalid-value", field=path.name) from None
    ids = [claim.id for claim in claims]
    duplicate = next((name for name in ids if ids.count(name) > 1), None)
    if duplicate is not None:
        raise InputError(f"{path.name}: two claims have the id {duplicate}", code="duplicate-name", field=duplicate)
    return tuple(claims)


def decide(claim: AnyClaim, stored: StoredResults) -> ClaimDecision:
    """Apply a claim's rule to the stored results."""
    if isinstance(claim, Untestable):
        return ClaimDecision(claim, verdicts.UNTESTABLE, (), (), claim.why)
    if isinstance(claim, Derived):
        texts = []
        for confirmation in claim.confirmed_by:
            numbers = confirmation.numbers(stored)
            ends = dict.fromkeys(f"{value:.2g}" for value in (min(numbers), max(numbers))) if numbers else ("–",)
            texts.append(f"{confirmation.says} {' to '.join(ends)}")
        agrees = all(confirmation.agrees(stored) for confirmation in claim.confirmed_by)
        decides = f"[derivation]({claim.page}); {', '.join(texts)}"
        return ClaimDecision(claim, claim.verdict if agrees else verdicts.OPEN, (), (), decides)
    comparisons, settings = decide_as_worded(claim.compare(stored), claim.setting_of)
    not_run = missing_settings(claim, stored)
    beside = {"Failed": failed_methods(comparisons, stored), "Not run": not_run}
    worded = f"As worded: significant in {sum(s.is_significant for s in settings)} of {len(settings)} settings"
    texts = [worded] if len(settings) > 1 else []
    texts.append(describe(comparisons, along=claim.kind == "trend") if comparisons else "not run")
    texts += [f"{label}: {', '.join(items)}" for label, items in beside.items() if items]
    by_rule = verdict(settings, claim.needed, bool(not_run))
    return ClaimDecision(claim, by_rule, tuple(comparisons), tuple(settings), ". ".join(texts))


def failed_methods(found: Sequence[Finding], stored: StoredResults) -> list[str]:
    """List the compared methods that have failed runs, with the number of these runs."""
    pairs = [(f.first, f.second) if isinstance(f, Lead) else (f.place,) for f in found]
    counts: dict[str, int] = {}
    for place in dict.fromkeys(place for pair in pairs for place in pair):
        counts[place.method] = counts.get(place.method, 0) + len(stored.broken(*place))
    return [f"{method} {n} {'run' if n == 1 else 'runs'}" for method, n in counts.items() if n]


def missing_settings(claim: MeasuredClaim, stored: StoredResults) -> list[str]:
    """List the settings that the paper has and the results lack, for a claim on all settings."""
    if claim.settings is not None or claim.kind == "trend":
        return []
    known = [result for result in claim.results if result in names()]
    return [
        f"{setting.name} of {result}"
        for result in known
        for setting in load_spec(result).settings
        if setting.name not in stored.settings(result)
    ]


def claims_csv(decided: Sequence[ClaimDecision]) -> str:
    """Format the claims as CSV text, one row per claim."""
    lines = []
    for item in decided:
        claim, counts = item.claim, Counter(finding.outcome for finding in item.findings)
        settings = (len(item.settings), sum(s.is_significant for s in item.settings))
        numbers = (*settings, len(item.findings), counts[SIGNIFICANT], counts[OPPOSITE], counts[UNDECIDED])
        texts = (claim.id, claim.paper, claim.where, claim.says, claim.kind)
        lines.append([*texts, item.verdict, *numbers, item.decides, claim.remark])
    return csv_text(COLUMNS, lines)


def findings_csv(decided: Sequence[ClaimDecision]) -> str:
    """Format the comparisons as CSV text, one row each.

    Leads are in the unit of the stored numbers; a positive lead agrees with the claim.
    """
    rows: list[list[object]] = []
    for name, finding in ((item.claim.id, finding) for item in decided for finding in item.findings):
        if isinstance(finding, EverySeed):
            # A count of seeds has no second place and no tests, so those columns stay empty.
            n = len(finding.values)
            counts = (finding.agree, n - finding.agree, finding.outcome)
            rows.append([name, finding.metric, *finding.place, "", "", n, *[""] * 8, *counts])
            continue
        lead: Lead = finding
        numbers = (*lead.tests[1:4], lead.paper, *lead.tests[4:], lead.p_holm, lead.p_worded)
        texts = ["" if math.isnan(value) else f"{value:.4g}" for value in numbers]
        against = (lead.second.setting, lead.second.method)
        counts = (lead.wins, lead.losses, lead.outcome)
        rows.append([name, lead.metric, *lead.first, *against, len(lead.leads), *texts, *counts])
    return csv_text(FINDING_COLUMNS, rows)
