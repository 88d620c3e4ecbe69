"""``drfl report``."""

from __future__ import annotations

from pathlib import Path

from drfl.cli import console
from drfl.cli.options import ReportOptions
from drfl.errors import InputError
from drfl.experiments.manifest import read_manifest


def report_command(options: ReportOptions) -> int:
    """Read the runs, write one report on them; gives the exit code."""
    from drfl.report import load_run, write_report

    if options.out.exists() and not options.overwrite:
        raise InputError(f"{options.out} exists already: give another --out, or --overwrite to replace it")
    folders = [folder for path in options.runs for folder in _runs_in(path)]
    write_report([load_run(folder) for folder in folders], options.out, title=options.title)
    console.out.print(f"report: {options.out}", markup=False)
    return 0


def _runs_in(path: Path) -> list[Path]:
    """The finished runs of a comparison's folder; any other folder is a run's own.

    Raises:
        InputError: a comparison has none, or its manifest cannot be read.
    """
    manifest = read_manifest(path) if path.is_dir() else None
    if manifest is None or manifest.kind != "comparison":
        return [path]
    found = [path / cell for cell in manifest.cells if (path / cell / "summary.json").is_file()]
    if not found:
        raise InputError(f"no run of the comparison {path} has ended: 'drfl compare --resume --out {path}' goes on")
    return found
