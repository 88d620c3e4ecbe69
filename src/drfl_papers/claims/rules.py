"""The kinds of claims: each kind defines which numbers of the stored results decide a claim.

The kinds do not depend on a paper; `evidence/claims.toml` has the comparison of each claim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field

from drfl.assessment.seeds import holm
from drfl_papers.claims import findings
from drfl_papers.claims.findings import Finding, Lead, Place, lead_of
from drfl_papers.claims.measures import Measure, Part
from drfl_papers.claims.results import StoredResults
from drfl_papers.claims.verdicts import Verdict


class Claim(Part):
    """The fields that all claims have."""

    id: str
    paper: Literal["DRDM", "DRFA", "SCAFF-PD"]
    where: str
    says: str
    needed: Literal["all", "most"] = "all"
    remark: str = ""


class Measured(Claim):
    """A claim about measured numbers."""

    measures: list[Measure] = Field(min_length=1)
    results: list[str] = Field(min_length=1)
    settings: list[str] | None = None
    methods: list[str] = Field(min_length=1)

    def setting_of(self, finding: Finding) -> object:
        """Return the setting of a finding; the claim needs all its findings in a setting at once."""
        return (finding.first if isinstance(finding, Lead) else finding.place)[:2]

    def places(self, stored: StoredResults) -> Iterator[tuple[Measure, str, str]]:
        """Yield every measure in every setting of every result."""
        for measure in self.measures:
            for result in self.results:
                for setting in self.settings or stored.settings(result):
                    yield measure, result, setting


class Ahead(Measured):
    """Each of the methods is better than each of the others, in the measure's sense of better."""

    kind: Literal["ahead"]
    others: list[str] = Field(min_length=1)

    def compare(self, stored: StoredResults) -> Sequence[Finding]:
        """Return every comparison."""
        return _with_p_values(stored, _between(self, self.others, stored))


class Level(Measured):
    """Each of the methods is level with each of the others, or not behind.

    Args:
        others: The other methods.
        margin: Largest difference that counts as none, in the unit of the stored numbers (accuracies are fractions).
        both_sides: Whether being ahead contradicts the claim too.
    """

    kind: Literal["level"]
    others: list[str] = Field(min_length=1)
    margin: float = Field(gt=0)
    both_sides: bool = False

    def compare(self, stored: StoredResults) -> Sequence[Finding]:
        """Return every comparison."""
        leads = _between(self, self.others, stored)
        p = holm([findings.beyond_p(lead, self.margin, self.both_sides) for lead in leads]).tolist()
        return [
            findings.with_level_outcome(lead, q, self.margin, self.both_sides) for lead, q in zip(leads, p, strict=True)
        ]


class TrendValue(Part):
    """A value of a trend's parameter: a setting, or a method if the trend is over methods."""

    result: str
    name: str


class Trend(Measured):
    """A measure rises or falls along a parameter, from each value to the next or from the first to the last.

    Args:
        over: Carrier of the parameter: settings (a separate trend for each method) or methods (in each setting).
        steps: Rows of settings or methods in the parameter's order. They belong to the first result unless they name
            another.
        compared: Compare neighbours, or only the ends.
        direction: Whether the numbers rise or fall.
    """

    kind: Literal["trend"]
    methods: list[str] = Field(default_factory=list)
    over: Literal["settings", "methods"]
    steps: list[list[str | TrendValue]] = Field(min_length=1)
    compared: Literal["neighbours", "ends"] = "neighbours"
    direction: Literal["rises", "falls"]

    def compare(self, stored: StoredResults) -> Sequence[Finding]:
        """Return the comparison of each value with the one before it."""
        pairs: list[tuple[TrendValue, TrendValue]] = []
        for named in self._rows():
            pairs += [(named[0], named[-1])] if self.compared == "ends" else pairwise(named)
        sign = 1 if self.direction == "rises" else -1
        leads = []
        for measure in self.measures:
            for before, after in pairs:
                places: list[tuple[Place, Place]]
                if self.over == "settings":
                    places = [(Place(*_of(after), m), Place(*_of(before), m)) for m in self.methods]
                else:
                    settings = self.settings or stored.settings(after.result)
                    places = [
                        (Place(after.result, s, after.name), Place(before.result, s, before.name)) for s in settings
                    ]
                leads += [_lead(stored, measure, pair, sign) for pair in places]
        return _with_p_values(stored, leads)

    def setting_of(self, finding: Finding) -> object:
        """Return a setting if the trend is over methods; over settings, a row of them with all its methods."""
        if self.over == "methods" or not isinstance(finding, Lead):
            return super().setting_of(finding)
        ends = {finding.first[:2], finding.second[:2]}
        return next(k for k, row in enumerate(self._rows()) if ends <= {_of(step) for step in row})

    def _rows(self) -> list[list[TrendValue]]:
        return [
            [s if isinstance(s, TrendValue) else TrendValue(result=self.results[0], name=s) for s in row]
            for row in self.steps
        ]


class Every(Measured):
    """A number lies between two bounds at every seed; rounds to a level that is never reached are infinite."""

    kind: Literal["every"]
    least: float = -math.inf
    most: float = math.inf

    def compare(self, stored: StoredResults) -> Sequence[Finding]:
        """Return one finding per place."""
        return [
            findings.every_seed(measure, place, measure.values(stored, *place), self.least, self.most)
            for measure, result, setting in self.places(stored)
            for place in (Place(result, setting, method) for method in self.methods)
        ]


class ConfirmingPart(Part):
    """Stored numbers that must lie within bounds, as a derivation predicts.

    Args:
        result: Name of the stored result.
        file: File of the result.
        rows: Values of other columns that select the rows.
        column: Column of the numbers.
        least: Lower bound.
        most: Upper bound.
        says: Name of the numbers in the text.
    """

    result: str
    file: str
    rows: Mapping[str, str]
    column: str
    least: float = -math.inf
    most: float = math.inf
    says: str

    def numbers(self, stored: StoredResults) -> list[float]:
        """Return the numbers of the selected rows."""
        rows = stored.rows(self.result, self.file)
        return [float(row[self.column]) for row in rows if self.rows.items() <= row.items()]

    def agrees(self, stored: StoredResults) -> bool:
        """Return whether there is at least one number and all numbers are within the bounds."""
        numbers = self.numbers(stored)
        return bool(numbers) and all(self.least <= number <= self.most for number in numbers)


class Derived(Claim):
    """A claim that a derivation decides and stored numbers confirm; it is not decided if they do not confirm it."""

    kind: Literal["derived"]
    verdict: Verdict
    page: str
    confirmed_by: list[ConfirmingPart] = Field(min_length=1)


class Untestable(Claim):
    """A claim about something that is not measured here."""

    kind: Literal["untestable"]
    why: str


MeasuredClaim = Ahead | Level | Trend | Every
AnyClaim = Annotated[Ahead | Level | Trend | Every | Derived | Untestable, Field(discriminator="kind")]


def _of(step: TrendValue) -> tuple[str, str]:
    return step.result, step.name


def _between(claim: Measured, others: Sequence[str], stored: StoredResults) -> list[Lead]:
    """Compare every method with every other one, in every setting, by every measure."""
    return [
        _lead(stored, measure, (Place(result, setting, method), Place(result, setting, other)))
        for measure, result, setting in claim.places(stored)
        for method in claim.methods
        for other in others
    ]


def _lead(stored: StoredResults, measure: Measure, places: tuple[Place, Place], sign: int | None = None) -> Lead:
    """Compute a lead; without a sign the measure defines whether more or less is better."""
    sign = sign or (-1 if measure.display.small else 1)
    first, second = (measure.values(stored, *place) for place in places)
    return lead_of(measure, places, (first, second), sign)


def _with_p_values(stored: StoredResults, leads: Sequence[Lead]) -> list[Finding]:
    """Add p-values: those of `paired.csv` if it has all comparisons, else corrected for the claim's comparisons."""
    known: dict[tuple[str, str, str, frozenset[str]], str] = {}
    for result in {lead.first.result for lead in leads}:
        for row in stored.rows(result, "paired.csv"):
            # A p-value has no direction, so the order of the two methods does not matter.
            both = frozenset((row["reference"], row["method"]))
            known[result, row["setting"], row["metric"], both] = row["p_holm"]
    printed = []
    for lead in leads:
        both = frozenset((lead.first.method, lead.second.method))
        same = lead.first[:2] == lead.second[:2]
        printed.append(known.get((*lead.first[:2], lead.metric, both)) if same else None)
    # p-values corrected for different families must not be mixed: take all from the tables, or none.
    if None in printed:
        p = holm([lead.tests.p_t if lead.testable else math.nan for lead in leads]).tolist()
    else:
        p = [float(text) if text else math.nan for text in printed]
    return [findings.with_lead_outcome(lead, corrected) for lead, corrected in zip(leads, p, strict=True)]
