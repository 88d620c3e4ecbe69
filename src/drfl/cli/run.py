"""``drfl run``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from rich.markup import escape
from rich.table import Table

from drfl.cli import console
from drfl.cli.to_config import overrides
from drfl.experiments.artifacts import json_text, summary
from drfl.experiments.build import build, load_data
from drfl.experiments.config import Config, config_of, read_file
from drfl.experiments.resume import checkpoint_writer, is_finished, kept_config, key_of, load_resume_point
from drfl.experiments.run_directory import check_free, claimed, tidy
from drfl.experiments.runner import Finished, execute, write_results
from drfl.history import Metrics

PLACE = ("out", "overwrite", "resume", "as_json")
"""Options that say nothing about the run itself."""


def run_command(given: Mapping[str, object]) -> int:
    """Validate, build, run, write, print; gives the exit code."""
    out, quiet = cast("Path | None", given["out"]), bool(given["as_json"])
    config = _config(given)
    default = Path("runs") / f"{config.algorithm}-{config.dataset}-seed{config.seed}".lower()
    key = key_of(config, out or default)
    with console.interruptible() as watch:
        job = build(config, load_data(config, console.lines(quiet)))
        if out is not None and given["resume"] and is_finished(out, job):
            tidy(out)
            console.warn(f"{out} is finished: there is nothing to resume")
            return 0
        resume, overwrite = bool(given["resume"]), bool(given["overwrite"])
        with claimed(out or default, resume=resume, overwrite=overwrite, anew=out is None, tell=console.warn) as claim:
            start = load_resume_point(claim, job, console.warn, key) if resume else None
            with console.progress(config.algorithm, quiet) as show:
                finished = execute(job, [show], watch, start=start, keep=checkpoint_writer(claim, job, key))
            write_results(finished, claim)
    if quiet:
        content = summary(finished.job, finished.result, finished.stopped)
        print(json_text({**content, "directory": str(claim.directory)}))
    else:
        _print(finished, claim.directory)
    return watch.code if finished.stopped == "interrupted" else 0


def _config(given: Mapping[str, object]) -> Config:
    path, out = cast("Path | None", given["config"]), cast("Path | None", given["out"])
    if given["resume"]:
        told = any(value is not None for name, value in given.items() if name not in PLACE)
        path = kept_config(out, overwrite=bool(given["overwrite"]), given=told) if path is None else path
    elif out is not None:
        check_free(out, "run", overwrite=bool(given["overwrite"]))
    # --param without an algorithm's name means the one that runs, which the file may name
    file = read_file(path)
    named = given["algorithm"] or file.get("algorithm", Config.model_fields["algorithm"].default)
    return config_of(file, overrides(given, [str(named)]))


def _print(finished: Finished, directory: Path) -> None:
    config, result = finished.job.config, finished.result
    rows = {"last": (result.history.last.metrics, result.history.last.certificate)}
    if result.averaged is not None:
        rows["averaged"] = (Metrics.of(result.averaged), result.averaged_certificate)
    asked = finished.job.certify is not None
    table = Table(
        title=escape(f"{config.algorithm} on {config.dataset}, {finished.job.data.n} clients, {result.rounds} rounds"),
        title_justify="left",
    )
    table.add_column("iterate")
    headings = ("average %", "worst %", "std", "worst 20 %", "avg loss", "worst loss", *(("gap",) if asked else ()))
    for heading in headings:
        table.add_column(heading, justify="right")
    for name, (m, certificate) in rows.items():
        accuracies = (m.avg_accuracy, m.worst_accuracy, m.std_accuracy, m.worst20_accuracy)
        gap = [console.gap(certificate)] if asked else []
        table.add_row(name, *map(console.percent, accuracies), f"{m.avg_loss:.3f}", f"{m.worst_loss:.3f}", *gap)
    console.out.print(table)
    for name, (_, certificate) in rows.items():
        if asked:
            console.out.print(f"{name}: {console.certificate(certificate)}")
    if finished.stopped == "target":
        console.out.print(f"target {config.until} reached in round {result.rounds}")
    console.out.print(f"report: {directory / 'report.html'}", markup=False)
