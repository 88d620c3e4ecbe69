"""``drfl compare``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

from rich.table import Table

from drfl.algorithm import Callback
from drfl.algorithms import ALGORITHMS
from drfl.cli import screen
from drfl.cli.overrides import overrides
from drfl.errors import StoppedError
from drfl.experiments.compared import Comparison, write_comparison
from drfl.experiments.config import Config, load_config
from drfl.experiments.parameters import canonical
from drfl.experiments.place import check_free, default_directory, staged
from drfl.experiments.rundir import json_text
from drfl.experiments.runner import Outcome, Spread, best, compare, fate, gaps, parse_seeds, prepare, spreads

BROKEN = 1
"""The exit code when every run broke off, as that of a single run that diverges."""

COLUMNS = {
    "avg_accuracy": "average %",
    "worst_accuracy": "worst %",
    "std_accuracy": "std",
    "worst20_accuracy": "worst 20 %",
}


def compare_command(given: Mapping[str, object]) -> int:
    """Validate, run every algorithm at every seed, write, print; gives the exit code."""
    path, out = cast("Path | None", given["config"]), cast("Path | None", given["out"])
    names = _names(cast("str | None", given["names"]), load_config(path, {}))
    config = load_config(path, overrides(given, names))
    seeds, quiet = parse_seeds(str(given["seeds"])), bool(given["as_json"])
    directory = out or default_directory(Path("runs"), f"compare-{config.dataset}")
    overwrite = bool(given["overwrite"])
    check_free(directory, overwrite)
    dataset = prepare(config, names, seeds, screen.lines(quiet))

    outcomes: list[Outcome] = []
    with screen.interruptible() as watch, staged(directory, overwrite) as stage:
        cells = len(names) * len(seeds)
        with ExitStack() as bars:

            def show(algorithm: str, seed: int) -> Sequence[Callback]:
                bars.close()
                label = f"[{len(outcomes) + 1}/{cells}] {algorithm}, seed {seed}"
                return [bars.enter_context(screen.progress(label, quiet))]

            for outcome in compare(dataset, config, names, seeds, stage.folder, watch, show):
                outcomes.append(outcome)
                if outcome.metrics is None and not quiet:
                    screen.err.print(f"seed {outcome.seed}: {outcome.reason}", markup=False)
        if not outcomes:
            raise StoppedError("interrupted before one run was finished: nothing is kept")
        comparison = Comparison(config, tuple(names), tuple(seeds), tuple(outcomes))
        write_comparison(comparison, stage.folder, directory.name)
    if quiet:
        print(json_text({**comparison.summary(), "directory": str(stage.final)}))
    else:
        _print(comparison, stage.final)
    if watch.stop:
        return watch.code
    return 0 if any(outcome.metrics for outcome in outcomes) else BROKEN


def _names(text: str | None, config: Config) -> list[str]:
    if text is None:
        return list(config.algorithms or ALGORITHMS)
    return list(dict.fromkeys(canonical("algorithm", part.strip(), ALGORITHMS) for part in text.split(",")))


def _print(comparison: Comparison, directory: Path) -> None:
    table = spreads(comparison.outcomes)
    config = comparison.config
    view = Table(
        title=f"{config.dataset}, {_length(config)}, {_seeds(comparison)}",
        title_justify="left",
    )
    view.add_column("algorithm")
    for heading in COLUMNS.values():
        view.add_column(heading, justify="right")
    winners = {metric: best(table, metric) for metric in COLUMNS}
    if config.certificate:
        view.add_column("gap", justify="right")
    if config.until:
        view.add_column("rounds to target", justify="right")
    for name, row in table.items():
        cells = _cells(name, row, winners, fate(comparison.outcomes, name))
        view.add_row(name, *cells, *_gap(comparison, name), *_reached(comparison, name))
    screen.out.print(view)
    if any(outcome.metrics for outcome in comparison.outcomes):
        screen.out.print(f"report: {directory / 'report.html'}", markup=False)
    else:
        screen.out.print(f"no run came to its end, so there is no report: {directory / 'compare.csv'}", markup=False)


def _seeds(comparison: Comparison) -> str:
    """What the table shows: means over how many seeds, fewer than asked for after an interruption or a divergence."""
    runs = [sum(o.algorithm == n and o.metrics is not None for o in comparison.outcomes) for n in comparison.algorithms]
    few, many = min(runs), max(runs)
    if many <= 1:
        return "one seed"
    return f"mean ± std over {many if few == many else f'{few} to {many}'} seeds"


def _length(config: Config) -> str:
    return (
        f"{config.rounds} rounds" if config.until is None else f"until {config.until}, at most {config.rounds} rounds"
    )


def _gap(comparison: Comparison, name: str) -> list[str]:
    """The duality gap, in a list of one cell; an empty list where it was not asked for."""
    if comparison.config.certificate is None:
        return []
    gap = gaps([outcome for outcome in comparison.outcomes if outcome.algorithm == name])
    return [gap[name].text(".3g", ".2g") if name in gap else "–"]


def _reached(comparison: Comparison, name: str) -> list[str]:
    """How many rounds the target took, in a list of one cell; an empty list without a target."""
    if comparison.config.until is None:
        return []
    rounds = [o.rounds for o in comparison.outcomes if o.algorithm == name and o.stopped == "target"]
    runs = sum(o.algorithm == name for o in comparison.outcomes)
    if not rounds:
        return [f"none of {runs}"]
    return [f"{Spread.of(rounds).text('.0f', '.0f')} ({len(rounds)} of {runs})"]


def _cells(name: str, row: Mapping[str, Spread], winners: Mapping[str, set[str]], missing: str) -> Iterator[str]:
    for metric in COLUMNS:
        if metric not in row:
            yield missing
            continue
        text = row[metric].text(".1f", ".1f", scale=100)
        yield f"[bold]{text}[/bold]" if name in winners[metric] else text
