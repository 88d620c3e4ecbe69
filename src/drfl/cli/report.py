"""``drfl report``."""

from __future__ import annotations

from pathlib import Path

from drfl.cli import console
from drfl.cli.options import ReportOptions
from drfl.cli.paper_files import check_paper_files, write_paper_files
from drfl.core.errors import InputError
from drfl.core.output_files import check_output

PAGE = Path("report.html")
"""The page to write by default."""


def report_command(options: ReportOptions) -> int:
    """Write one report on runs, as a page, a PDF or both, or figures and tables, and return the exit code."""
    has_other = any(path is not None for path in (options.pdf, options.latex, options.figure))
    out = options.out or (None if has_other else PAGE)
    # Reading takes a while: check first that the files can be written.
    if options.pdf is not None:
        from drfl.report.pdf import check_typst

        check_typst()
        if out is not None and out.resolve() == options.pdf.resolve():
            raise InputError(
                f"--out and --pdf are both {out}: pass two different files", code="conflicting-options", field="pdf"
            )
    for path, name in ((out, "--out"), (options.pdf, "--pdf")):
        if path is not None:
            check_output(path, name, overwrite=options.overwrite)
    check_paper_files(options.latex, options.figure, options.x_axis, overwrite=options.overwrite)
    folders, failed = console.runs_to_read(options.runs)
    if any(choice is not None for choice in (options.latex, options.figure, options.costs_to)):
        from drfl.experiments.compare.stored_runs import comparison_of, find_runs

        comparison = comparison_of(find_runs(*options.runs))
        write_paper_files(comparison, options.latex, options.figure, options.x_axis, options.costs_to)
    if out is not None or options.pdf is not None:
        from drfl.experiments.assess.predicted_records import predicted_beside
        from drfl.report import document, load_run, write_html, write_pdf

        records = [load_run(folder) for folder in folders]
        content = document([*records, *predicted_beside(options.runs, records)], options.title, failed)
        for path, write in ((options.pdf, write_pdf), (out, write_html)):
            if path is not None:
                write(content, path)
                console.out.print(f"report: {path}", markup=False)
    return 0
