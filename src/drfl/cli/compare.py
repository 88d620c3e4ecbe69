"""``drfl compare``."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich import box
from rich.text import Text

from drfl.algorithms import ALGORITHMS
from drfl.cli import console, signals
from drfl.cli.options import CompareOptions
from drfl.cli.paper_files import check_paper_files, write_paper_files
from drfl.cli.to_config import named_code, overrides
from drfl.core import checks
from drfl.core.errors import InputError, StoppedError
from drfl.core.screen import ScreenTable
from drfl.core.user_code import label_of
from drfl.experiments.compare.comparison import (
    Design,
    PreparedComparison,
    extended_design,
    from_config,
    is_up_to_date,
    read_cells,
)
from drfl.experiments.compare.comparison_results import (
    Bold,
    Comparison,
    columns_beside,
    score_columns,
    table,
    verdict_lines,
)
from drfl.experiments.compare.costs import parse_target
from drfl.experiments.compare.outcomes import Outcome, Spread, failure_text, first_intervals, spreads
from drfl.experiments.compare.predicted import read_all
from drfl.experiments.compare.run_comparison import check_tracker, run_comparison, stored_comparison
from drfl.experiments.config.config import Config, config_of, read_file
from drfl.experiments.config.hyperparameters import algorithm_name
from drfl.experiments.execution.executor import workers_of_options
from drfl.experiments.run.artifacts import json_text
from drfl.experiments.run.manifest import interruption
from drfl.experiments.run.resume import check_data_settings, check_folder
from drfl.experiments.run.run_warnings import check_strict
from drfl.experiments.run.runner import StopSignal, parse_seeds
from drfl.experiments.sweep.results import Sweep
from drfl.report.formatting import plural
from drfl.task.measure import NOTHING
from drfl.task.metrics import ACCURACY
from drfl.training.callbacks import describe
from drfl.training.loop import Callback

SEEDS = "5"
"""Number of seeds by default."""


def compare_command(options: CompareOptions) -> int:
    """Run every algorithm at every seed, write and print the results, and return the exit code."""
    out, quiet, resume, overwrite = options.out, options.as_json, options.resume, options.overwrite
    with signals.end_at_once():  # there is nothing to clean up yet
        workers = workers_of_options(options.jobs, options.ray, 1)
        check_tracker(options.track, workers)
        check_paper_files(options.latex, options.figure, options.x_axis, overwrite=overwrite)
        config, design, kept = _design(options)
        if out is not None and resume:
            check_data_settings(config, out)
            design = extended_design(out, design)
    # Loading may download, which needs a clean-up: a signal raises an exception here.
    ready = PreparedComparison.of(design, from_config(config, console.lines(quiet)), kept)
    ready = ready._replace(track=options.track)
    check_strict(config.strict, ready.warnings)
    if options.costs_to is not None:
        parse_target(options.costs_to, ready.measures)
    if out is not None and resume and is_up_to_date(out, ready) and not options.predictions:
        console.warn_finished(out, "comparison")
        return _end(stored_comparison(ready, out), options, StopSignal())
    predictions = read_all(options.predictions or ())
    place, total, bars = out or Path("runs") / f"compare-{config.data_label}", len(design.cells), ExitStack()

    def show(algorithm: str, seed: int) -> Sequence[Callback]:
        number = design.order.index((algorithm, seed)) + 1
        return [bars.enter_context(console.progress(f"[{number}/{total}] {label_of(algorithm)}, seed {seed}", quiet))]

    def ended(outcome: Outcome, count: int) -> None:
        bars.close()
        if quiet:
            return
        head = f"{outcome.algorithm}, seed {outcome.seed}"
        if workers != 1 and outcome.metrics is not None:  # a single process has shown the progress of the run
            score = ready.measures[0]
            metrics = describe(outcome.metrics, score, outcome.note(score.name, ready.clients))
            console.err.print(f"[{count}/{total}] {head}: {metrics}", markup=False)
        if outcome.reason:
            console.err.print(f"{head}: {outcome.reason}", markup=False)

    with console.interruptible() as watch, bars:
        comparison = run_comparison(
            ready, place, watch, workers, ended=ended, warn=console.warn, progress=show, resume=resume,
            overwrite=overwrite, numbered=out is None, predictions=predictions,
        )  # fmt: skip
    if not comparison.outcomes:
        remedy = f"continue with 'drfl compare --resume --out {comparison.folder}'"
        raise StoppedError(f"interrupted before any run was finished: {remedy}", watch.code)
    return _end(comparison, options, watch)


def _end(comparison: Comparison, options: CompareOptions, watch: StopSignal) -> int:
    """Print a comparison, write the files for papers, and return the exit code."""
    directory = comparison.folder
    if options.as_json:
        print(json_text({**comparison.summary(), "directory": str(directory)}))
    else:
        others = comparison.measures[1:]
        # Tables have two other measures each, because terminals are narrow.
        console.out.print(comparison_view(comparison))
        for i in range(0, len(others), 2):
            console.out.print(_view(comparison, columns_beside(others[i : i + 2])))
        for legend in comparison.legends:
            console.out.print(legend, markup=False)
        print_headings(comparison)
        notes = [outcome.beside for outcome in comparison.outcomes if outcome.metrics is not None]
        for line in notes[0] if notes else ():
            if all(line in lines for lines in notes):  # omit lines about one model, such as its threshold
                console.out.print(line, markup=False)
        for verdict in verdict_lines(comparison):
            console.out.print(verdict, markup=False)
        if any(outcome.metrics for outcome in comparison.outcomes):
            console.out.print(f"report: {directory / 'report.html'}", markup=False)
        else:
            console.out.print(f"every run failed, so there is no report; see {directory / 'compare.csv'}", markup=False)
    write_paper_files(comparison, options.latex, options.figure, options.x_axis, options.costs_to)
    return exit_code(comparison, directory, watch)


def exit_code(result: Comparison | Sweep, directory: Path, watch: StopSignal) -> int:
    """Print the notices on the runs in a folder and whether some are missing, and return the command's exit code."""
    for notice in result.notices:
        console.warn(notice)
    unfinished = None if result.is_complete else interruption(directory)
    if unfinished is not None:
        console.warn(unfinished)
        return watch.code
    return 0 if any(outcome.metrics and not outcome.reason for outcome in result.outcomes) else console.BROKEN


def _design(options: CompareOptions) -> tuple[Config, Design, Path | None]:
    """Return the configuration, the design, and the stored configuration if a comparison is resumed.

    Options override the configuration file, which replaces the stored configuration.
    """
    # Read it only for the key of the folder. The code that the file names is checked below, but not loaded here.
    values = {**read_file(options.config, trust=True), **options.settings}
    stored = check_folder(
        options.out, "comparison", resume=options.resume, overwrite=options.overwrite, trust=options.trust,
        key=values.get("checkpoint_key"),
        given=any((options.config, options.names, options.seeds, options.settings, options.param)),
    )  # fmt: skip
    requested = dict.fromkeys((options.names or "").split(","))
    references = named_code({**options.settings, "algorithms": requested}, options.param)
    file = read_file(options.config or stored, references, trust=options.trust, resuming=options.resume)
    # Compare the algorithms of --algorithms, else those with a table in the file, else all.
    tables = file.get("algorithms")
    choices = list(tables) if isinstance(tables, dict) else []
    if options.names is not None:
        choices = options.names.split(",")
    names = [algorithm_name(name.strip()) for name in choices or ALGORITHMS]
    checks.distinct("--algorithms", names, field="algorithms")
    labels = [label_of(name) for name in names]
    label = next((label for label in labels if labels.count(label) > 1), None)
    if label is not None:
        raise InputError(
            f"two algorithms are called {label}, and folders are named after them: rename one of the classes",
            code="duplicate-name",
            field=label,
        )
    settings = dict(options.settings)
    if (options.jobs is not None or options.ray is not None) and "threads" not in {**file, **settings}:
        settings["threads"] = 1  # so that the number of processes changes no digit
    config = config_of(file, overrides(settings, options.param, names), names)
    seeds = [] if stored is None or options.out is None else read_cells(options.out)[1]
    if options.seeds is not None or not seeds:
        seeds = parse_seeds(options.seeds or SEEDS)
    return config, Design(config, tuple(names), tuple(seeds)), stored


def print_headings(comparison: Comparison) -> None:
    """Explain the headings of a comparison's table that are not self-explanatory."""
    score, intervals = comparison.measures[0], first_intervals(comparison.rows)
    if intervals is not None:
        seed = "" if len(comparison.seeds) == 1 else f" at seed {intervals[0]}"
        console.out.print(f"95 %: interval of the worst client's true {score.words}{seed}; for details: drfl assess")
    if score.name == ACCURACY.name:
        console.out.print(
            "if equal: worst accuracy expected from sampling noise alone if all clients were equally good"
        )


def comparison_view(comparison: Comparison, name: str = "") -> ScreenTable:
    """Return the table of the score, with the worst fifth of the clients if the terminal is wide enough."""
    settings, score = comparison.settings, comparison.measures[0]
    length = plural(settings.rounds, "round")
    if settings.until is not None:
        length = f"until {settings.until}, at most {length}"
    # Means are over the finished seeds, which an interruption may leave fewer than requested.
    whole = [name for name in comparison.algorithms if not failure_text(comparison.outcomes, name)]
    runs = [sum(outcome.algorithm == name for outcome in comparison.outcomes) for name in whole] or [0]
    few, many = min(runs), max(runs)
    seeds = f"mean ± std over {many if few == many else f'{few} to {many}'} seeds" if many > 1 else "one seed"
    title = ", ".join(filter(None, (comparison.about[0].label, length, seeds, name)))
    view = _view(comparison, score_columns(score, fifth=comparison.clients > FIFTH), title)
    # On a narrow terminal omit the worst fifth, which the report shows.
    if console.out.measure(view, options=console.out.options.update(width=WIDE)).maximum > console.out.width:
        view = _view(comparison, score_columns(score), title)
    return view


FIFTH = 5
"""Up to this many clients the worst fifth is the worst client."""


WIDE = 1000
"""Width in characters that is enough for every table."""

HEADING = 8
"""Characters per line of a column heading."""


def _view(comparison: Comparison, shown: Mapping[str, str], title: str | None = None) -> ScreenTable:
    """Return a table of some columns; the one with a title also has the rounds to the target."""
    head, rows = table(comparison, shown)
    reached = title is not None and comparison.settings.until is not None
    numbers = (*head[1:], *(["rounds to target"] if reached else []))
    wrapped = ("\n".join(textwrap.wrap(text, HEADING, break_long_words=False)) for text in numbers)
    # Vertical lines between seven columns would leave too few of 80 characters for the numbers.
    view = ScreenTable(
        head[0], *wrapped, title=title, text=head[:1], no_wrap=head[:1], box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    names = spreads(comparison.rows, comparison.measures[0].name)  # in the order of the table
    for name, cells in zip(names, rows, strict=True):
        row = [Text(cell.text, "bold") if isinstance(cell, Bold) else cell for cell in cells]
        if reached:
            runs = [outcome for outcome in comparison.outcomes if outcome.algorithm == name]
            rounds = [outcome.rounds for outcome in runs if outcome.stopped == "target"]
            mean = f"{Spread.of(rounds).text('.0f', '.0f')} ({len(rounds)} of {len(runs)})" if rounds else ""
            row.append(mean or (f"none of {len(runs)}" if runs else NOTHING))
        view.add_row(*row)
    return view
