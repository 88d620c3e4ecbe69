"""A report on finished runs to print and file: A4 pages, in black and grey.

It is made from :class:`drfl.report.pdf.evidence.Evidence`, which
:func:`drfl.experiments.assess.report_evidence.gathered` reads from the runs' folders. It needs the extra ``pdf``, which
is imported only when a page is drawn.
"""

from drfl.report.pdf.document import render_pdf, write_pdf
from drfl.report.pdf.evidence import Evidence, RowGain, RunEvidence, SeedGain

__all__ = ["Evidence", "RowGain", "RunEvidence", "SeedGain", "render_pdf", "write_pdf"]
