"""Compose the content of a report once; the HTML page and the PDF both show it."""

from __future__ import annotations

import importlib.metadata

from drfl.report.compared import standing
from drfl.report.content import Block, Cards, Caution, Document, Facts, Paragraph
from drfl.report.evidence import Evidence
from drfl.report.formatting import clean
from drfl.report.groups import lost_algorithms
from drfl.report.sections.baselines import alone
from drfl.report.sections.calibration import calibrated
from drfl.report.sections.comparisons import compared
from drfl.report.sections.decisions import decided
from drfl.report.sections.identity import identified
from drfl.report.sections.training import training
from drfl.report.sections.worst import worst
from drfl.report.summary_text import cards, facts, headline, lead, notices, takeaway
from drfl.report.tables import summary_table

BEFORE = "Read this before you rely on the numbers"


def compose(evidence: Evidence, title: str | None = None) -> Document:
    """Compose the report; the same evidence gives the same content.

    Args:
        evidence: The runs with their assessments and comparisons.
        title: The heading; by default the algorithms and the data set.
    """
    groups = evidence.groups
    lost = lost_algorithms(groups, evidence.failed)
    ranking = standing(groups, lost)
    cautions, summary = notices(groups, lost), takeaway(groups, ranking)
    head: list[Block] = [Paragraph(lead(groups)), Facts(facts(groups))]
    head += [Paragraph("", start=BEFORE), Caution(cautions)] if cautions else []
    head += [Cards(cards(groups, ranking)), *([summary] if summary else [])]
    head += [summary_table(groups)] if len(evidence.runs) > 1 else []
    return Document(
        title=clean(title or headline(groups)),
        head=head,
        sections=[
            worst(evidence),
            compared(evidence),
            alone(evidence),
            calibrated(evidence),
            training(evidence),
            decided(evidence),
            identified(evidence),
        ],
        writer=f"drfl {importlib.metadata.version('drfl')}",
    )
