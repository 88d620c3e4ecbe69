"""``drfl report``."""

from __future__ import annotations

from pathlib import Path

from drfl.cli import console
from drfl.cli.options import ReportOptions
from drfl.core.errors import InputError
from drfl.experiments.run.manifest import failed_in, interruption, runs_in
from drfl.report.read_run import FailedRun

PAGE = Path("report.html")
"""What is written where no file is named."""


def report_command(options: ReportOptions) -> int:
    """Read the runs, write one report on them, as a page or to print; gives the exit code."""
    from drfl.report import load_run, write_report

    out = options.out or (PAGE if options.pdf is None else None)
    _check(options, out)
    folders = [folder for path in options.runs for folder in runs_in(path)]
    failed = [run for path in options.runs for run in failed_in(path)]
    for notice in filter(None, map(interruption, options.runs)):
        console.warn(notice)
    if options.pdf is not None:
        _print(options, folders, options.pdf, failed)
    if out is not None:
        write_report([load_run(folder) for folder in folders], out, options.title, failed)
        console.out.print(f"report: {out}", markup=False)
    return 0


def _check(options: ReportOptions, out: Path | None) -> None:
    """Make sure that the files may be written, before anything is read.

    Raises:
        InputError: one is there already, both are one file, or what a PDF needs is not installed.
    """
    if options.pdf is not None:
        from drfl.report.pdf.names import check

        check()
        if out is not None and out.resolve() == options.pdf.resolve():
            raise InputError(f"--out and --pdf are both {out}: give two files", code="conflicting-options", field="pdf")
    for path, name in ((out, "--out"), (options.pdf, "--pdf")):
        if path is not None and path.exists() and not options.overwrite:
            raise InputError(
                f"{path} exists already: give another {name}, or --overwrite to replace it",
                code="already-exists",
                field=str(path),
            )
        if path is not None and not path.parent.is_dir():  # which is not made: its name may be misspelt
            raise InputError(
                f"cannot write {path}: there is no folder {path.parent}",
                code="folder-not-found",
                field=str(path.parent),
            )


def _print(options: ReportOptions, folders: list[Path], path: Path, failed: list[FailedRun]) -> None:
    """Write the report to print."""
    from drfl.experiments.assess.report_evidence import gathered
    from drfl.report.pdf import write_pdf

    write_pdf(gathered(folders, failed=failed), path, title=options.title)
    console.out.print(f"report: {path}", markup=False)
