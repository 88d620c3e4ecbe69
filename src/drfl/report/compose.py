"""Compose the content of a report once; the HTML page and the PDF both show it."""

from __future__ import annotations

import importlib.metadata

from drfl.report.compared import rank_algorithms
from drfl.report.content import Block, Cards, Caution, Document, Facts, Paragraph
from drfl.report.evidence import Evidence
from drfl.report.formatting import clean, listing
from drfl.report.groups import kinds_of_models, lost_algorithms
from drfl.report.sections.baselines import baselines_section
from drfl.report.sections.calibration import calibration_section
from drfl.report.sections.comparisons import comparisons_section
from drfl.report.sections.decisions import decisions_section
from drfl.report.sections.identity import identity_section
from drfl.report.sections.training import training_section
from drfl.report.sections.worst import worst_section
from drfl.report.summary_text import cards, facts, headline, lead, notices, takeaways
from drfl.report.tables import summary_table

BEFORE = "Read this before you rely on the numbers"


def compose(evidence: Evidence, title: str | None = None) -> Document:
    """Compose the report; the same evidence gives the same content."""
    groups = evidence.groups
    lost = lost_algorithms(groups, evidence.failed)
    ranking = rank_algorithms(groups, lost) if len(kinds_of_models(groups)) < 2 else None
    cautions = notices(groups, lost)
    trained, predicted = evidence.trained, [group.label for group in groups if group.runs[0].is_predicted]
    start = lead(trained.groups)
    if predicted:
        start += f" Predictions of {listing(predicted)} were tested on the same rows."
    head: list[Block] = [Paragraph(start), Facts(facts(trained.groups))]
    head += [Paragraph("", start=BEFORE), Caution(cautions)] if cautions else []
    head += [Cards(cards(groups, ranking)), *takeaways(groups, lost)]
    head += [summary_table(groups)] if len(evidence.runs) > 1 else []
    return Document(
        title=clean(title or headline(groups)),
        head=head,
        sections=[
            worst_section(evidence),
            comparisons_section(evidence),
            baselines_section(evidence),
            calibration_section(evidence),
            training_section(trained),
            decisions_section(trained),
            identity_section(trained),
        ],
        writer=f"drfl {importlib.metadata.version('drfl')}",
    )
