"""Reports on one run or on several runs side by side, as an HTML page and as a PDF.

Importing this package is cheap: the modules that read runs, lay out pages or compute statistics are imported on use.

Example:
    >>> from pathlib import Path
    >>> from drfl.report import document, load_run, write_html, write_pdf
    >>> report = document([load_run(Path(f"runs/{name}")) for name in ("fedavg", "drfa")])  # doctest: +SKIP
    >>> write_html(report, Path("report.html"))  # doctest: +SKIP
    >>> write_pdf(report, Path("report.pdf"))  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence

from drfl.report.content import Document
from drfl.report.html import render_html, write_html
from drfl.report.pdf import render_pdf, write_pdf
from drfl.report.read_run import FailedRun, RunRecord, load_run

__all__ = [
    "Document",
    "FailedRun",
    "RunRecord",
    "document",
    "load_run",
    "render_html",
    "render_pdf",
    "write_html",
    "write_pdf",
]


def document(records: Sequence[RunRecord], title: str | None = None, failed: Sequence[FailedRun] = ()) -> Document:
    """Compose the report on one run or several; runs that differ only in their seed are summarised together.

    Args:
        records: The runs, at least one, in the order in which the algorithms are to appear.
        title: The heading; by default the algorithms and the data set.
        failed: Further runs that left no results.

    Raises:
        InputError: If no run is given, the runs have different measures, or a file of a run is damaged.
    """
    from drfl.report.compose import compose
    from drfl.report.evidence import gather_evidence  # this import loads torch

    return compose(gather_evidence(records, failed), title)
