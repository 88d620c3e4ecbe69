"""``drfl report``."""

from __future__ import annotations

from drfl.cli import console
from drfl.cli.options import ReportOptions
from drfl.errors import InputError
from drfl.experiments.manifest import runs_in


def report_command(options: ReportOptions) -> int:
    """Read the runs, write one report on them; gives the exit code."""
    from drfl.report import load_run, write_report

    if options.out.exists() and not options.overwrite:
        raise InputError(f"{options.out} exists already: give another --out, or --overwrite to replace it")
    folders = [folder for path in options.runs for folder in runs_in(path)]
    write_report([load_run(folder) for folder in folders], options.out, title=options.title)
    console.out.print(f"report: {options.out}", markup=False)
    return 0
