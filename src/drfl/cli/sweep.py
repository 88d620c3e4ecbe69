"""``drfl sweep``."""

from __future__ import annotations

import os
from pathlib import Path

from drfl.cli import console, signals
from drfl.cli.compare import comparison_view, exit_code, print_headings
from drfl.cli.options import SweepOptions
from drfl.cli.paper_files import check_paper_files
from drfl.core.errors import StoppedError
from drfl.core.output_files import write_bytes
from drfl.experiments.compare.outcomes import Outcome
from drfl.experiments.execution.executor import workers_of_options
from drfl.experiments.run.artifacts import json_text
from drfl.experiments.run.resume import check_folder
from drfl.experiments.sweep.run_sweep import describe_end, run_sweep
from drfl.experiments.sweep.study import SweepRun, read_study


def sweep_command(options: SweepOptions) -> int:
    """Run a study, write and print its results, and return the exit code."""
    out, quiet = options.out, options.as_json
    with signals.end_at_once():  # there is nothing to clean up yet
        workers = workers_of_options(options.jobs, options.ray, os.cpu_count() or 1)
        check_paper_files(options.latex, overwrite=options.overwrite)
        stored = check_folder(
            out, "sweep", resume=options.resume, overwrite=options.overwrite, trust=options.trust,
            key=options.settings.get("checkpoint_key"), given=options.study is not None,
        )  # fmt: skip
        study = read_study(options.study or stored or {}, options.settings, trust=options.trust)
    name = "sweep" if options.study is None else options.study.stem
    with console.interruptible() as watch, console.progress_of_jobs(quiet) as show:
        total, stored_runs = len(study.runs), None

        def ended(run: SweepRun, outcome: Outcome, count: int) -> None:
            nonlocal stored_runs
            stored_runs = count - 1 if stored_runs is None else stored_runs  # those before the first one that ends now
            show(count, total, describe_end(run, outcome), (count - stored_runs) / (total - stored_runs))

        sweep = run_sweep(
            study, out or Path("runs") / name, watch, workers, ended=ended, warn=console.warn, resume=options.resume,
            overwrite=options.overwrite, numbered=out is None, track=options.track,
        )  # fmt: skip
    if not sweep.runs:
        remedy = f"continue with 'drfl sweep --resume --out {sweep.directory}'"
        raise StoppedError(f"interrupted before any run was finished: {remedy}", watch.code)
    if quiet:
        print(json_text({**sweep.summary(), "directory": str(sweep.directory)}))
    else:
        for setting, comparison in sweep.comparisons.items():
            console.out.print(comparison_view(comparison, setting))
            for legend in comparison.legends:
                console.out.print(legend, markup=False)
        failed = sum(outcome.failed for outcome in sweep.outcomes)
        if failed:
            console.out.print(f"{failed} of {len(sweep.outcomes)} runs failed; see {sweep.directory / 'sweep.csv'}")
        if sweep.comparisons:
            print_headings(next(iter(sweep.comparisons.values())))
            console.out.print(f"report: {sweep.directory / 'report.html'}", markup=False)
            console.out.print(f"all runs: {sweep.directory / 'sweep.csv'}", markup=False)
    if options.latex is not None:
        write_bytes(sweep.to_latex().encode(), options.latex)
    return exit_code(sweep, sweep.directory, watch)
