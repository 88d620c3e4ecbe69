"""The HTML report on one run, or on several side by side.

Importing this package is cheap: pandas and plotly are imported when a run is read or a report is rendered.

Example:
    >>> from pathlib import Path
    >>> from drfl.report import load_run, write_report
    >>> runs = [load_run(Path("runs/fedavg")), load_run(Path("runs/drfa"))]  # doctest: +SKIP
    >>> write_report(runs, Path("report.html"))  # doctest: +SKIP
"""

from drfl.report.html import render, write_report
from drfl.report.read_run import FailedRun, RunRecord, load_run

__all__ = ["FailedRun", "RunRecord", "load_run", "render", "write_report"]
