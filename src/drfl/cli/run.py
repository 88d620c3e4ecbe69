"""``drfl run``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from rich.markup import escape
from rich.table import Table

from drfl.cli import screen
from drfl.cli.interrupt import INTERRUPTED
from drfl.cli.overrides import overrides
from drfl.experiments.build import build, load_data
from drfl.experiments.config import Config, load_config
from drfl.experiments.place import check_free, default_directory
from drfl.experiments.rundir import json_text, summary
from drfl.experiments.runner import Finished, execute, save
from drfl.history import Metrics


def run_command(given: Mapping[str, object]) -> int:
    """Validate, build, run, write, print; gives the exit code."""
    config = _config(given)
    out = cast("Path | None", given["out"])
    name = f"{config.algorithm}-{config.dataset}-seed{config.seed}".lower()
    directory = out or default_directory(Path("runs"), name)
    check_free(directory, bool(given["overwrite"]))
    quiet = bool(given["as_json"])
    with screen.interruptible() as watch:
        job = build(config, load_data(config, screen.lines(quiet)))
        with screen.progress(config.algorithm, quiet) as show:
            finished = execute(job, [show], watch)
        directory = save(finished, directory, overwrite=bool(given["overwrite"]))
    if quiet:
        content = summary(finished.job, finished.result, finished.stopped)
        print(json_text({**content, "directory": str(directory)}))
    else:
        _print(finished, directory)
    return INTERRUPTED if finished.stopped == "interrupted" else 0


def _config(given: Mapping[str, object]) -> Config:
    path = cast("Path | None", given["config"])
    # --param without an algorithm's name means the one that runs, which the file may name
    named = given["algorithm"] or load_config(path, {}).algorithm
    return load_config(path, overrides(given, [str(named)]))


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
        gap = [screen.gap(certificate)] if asked else []
        table.add_row(name, *map(screen.percent, accuracies), f"{m.avg_loss:.3f}", f"{m.worst_loss:.3f}", *gap)
    screen.out.print(table)
    for name, (_, certificate) in rows.items():
        if asked:
            screen.out.print(f"{name}: {screen.certificate(certificate)}")
    if finished.stopped == "target":
        screen.out.print(f"target {config.until} reached in round {result.rounds}")
    screen.out.print(f"report: {directory / 'report.html'}", markup=False)
