"""A printed report: six questions on the worst client, each with its answer and what that rests on."""

from __future__ import annotations

import importlib.metadata
import os
import re
from pathlib import Path

from drfl.core.atomic_files import atomic_write
from drfl.core.errors import InputError
from drfl.report.groups import lost_algorithms
from drfl.report.pdf import names
from drfl.report.pdf.baselines import alone
from drfl.report.pdf.calibration import calibrated
from drfl.report.pdf.comparisons import compared
from drfl.report.pdf.content import Document
from drfl.report.pdf.decisions import decided
from drfl.report.pdf.evidence import Evidence
from drfl.report.pdf.identity import identified
from drfl.report.pdf.names import printable
from drfl.report.pdf.worst import worst
from drfl.report.summary_text import facts, headline, lead, notices


def document(evidence: Evidence, title: str | None = None) -> Document:
    """What is on the sheets.

    Args:
        evidence: the runs and what may be said of them.
        title: the heading; by default what was run on what.

    Raises:
        InputError: there is no run, or the runs are judged by different measures.
    """
    if not evidence.runs:
        raise InputError(
            "a report needs at least one run: give a folder that `drfl run` wrote", code="empty", field="runs"
        )
    measured = {run.record.measures for run in evidence.runs}
    if len(measured) > 1:
        each = "; ".join(sorted(", ".join(m.name for m in measures) for measures in measured))
        raise InputError(f"the runs measure different things ({each}): give runs of one kind", code="runs-differ")
    groups = evidence.groups
    return Document(
        title=printable(title or headline(groups), 200),
        lead=printable(lead(groups)),
        # At most four digits: nobody reads 0.3333333333333333.
        facts=[
            (name, re.sub(r"\d+\.\d{5,}", lambda found: f"{float(found[0]):.4g}", printable(value)))
            for name, value in facts(groups)
        ],
        notices=[printable(line) for line in notices(groups, lost_algorithms(groups, evidence.failed))],
        questions=[
            worst(evidence),
            compared(evidence),
            alone(evidence),
            calibrated(evidence),
            decided(evidence),
            identified(evidence),
        ],
        writer=f"drfl {importlib.metadata.version('drfl')}",
    )


def render_pdf(evidence: Evidence, title: str | None = None) -> bytes:
    """The report as a PDF file of A4 pages in black and grey; the same evidence gives the same bytes.

    Args:
        evidence: the runs and what may be said of them.
        title: the heading; by default what was run on what.

    Raises:
        InputError: there is no run, the runs are judged by different measures, or fpdf2 is not installed.
    """
    names.check()
    from drfl.report.pdf.sheet import drawn

    return drawn(document(evidence, title))


def write_pdf(evidence: Evidence, path: Path, title: str | None = None) -> None:
    """Write the report to a file atomically.

    Args:
        evidence: the runs and what may be said of them.
        path: the file, in a folder that is there; an older one is replaced.
        title: the heading; by default what was run on what.

    Raises:
        InputError: see :func:`render_pdf`; or the file cannot be written.
    """
    path = Path(path)
    data = render_pdf(evidence, title)
    if not os.path.isdir(path.parent):  # which is not made: its name may be misspelt
        raise InputError(
            f"cannot write {path}: there is no folder {path.parent}", code="folder-not-found", field=str(path.parent)
        )
    try:
        with atomic_write(path) as file:
            file.write(data)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}", code="cannot-write", field=str(path)) from None
