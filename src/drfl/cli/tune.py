"""``drfl tune``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from drfl.cli import console, signals
from drfl.cli.options import TuneOptions, flag
from drfl.core.errors import InputError
from drfl.core.run_end import DOUBLE_DAGGER, RESET
from drfl.core.screen import ScreenTable
from drfl.core.user_code import label_of
from drfl.experiments.compare.comparison_results import UNDEFINED
from drfl.experiments.execution.executor import workers_of_options
from drfl.experiments.execution.run_cells import CellPool, make_pool
from drfl.experiments.execution.training_cells import run_cell
from drfl.experiments.run.artifacts import json_text
from drfl.experiments.tuning.configured import prepare
from drfl.experiments.tuning.confirmation import SEEDS, Confirmation, check_seeds, confirm, headline
from drfl.experiments.tuning.job import changes_of, chosen_methods, resolve
from drfl.experiments.tuning.output import check_place, content, make_place, write
from drfl.experiments.tuning.own_spaces import spaces_of
from drfl.experiments.tuning.run_searches import run
from drfl.experiments.tuning.search import Search
from drfl.experiments.tuning.suggestion import Trial
from drfl.task.measure import undefined_share

RESULTS = Path("runs/tuning")


def tune_command(options: TuneOptions) -> int:
    """Search hyperparameters, write and print them, and return the exit code."""
    with signals.end_at_once():  # there is nothing to clean up yet
        workers = workers_of_options(options.jobs, options.ray, os.cpu_count() or 1)
        quiet, changes = options.as_json, changes_of(options.changes or [])
        given = {} if options.rounds is None else {"rounds": options.rounds}
        for key, value in {**given, **options.settings}.items():
            if key in changes:
                raise InputError(
                    f"{flag(key)} and --set {key} set the same value: remove one of them", code="given-twice", field=key
                )
            changes[key] = str(value) if isinstance(value, Path) else value
        check_seeds(options.confirm_seeds)
        own = [name.strip() for name in (options.names or "").split(",")]
        job = resolve(options.job, changes, stand_in=options.stand_in, trust=options.trust, algorithms=own)
        folder = options.out or RESULTS / job.name
        check_place(folder, job.name)
        data_dir, names = options.data_dir or job.data_dir, chosen_methods(options.names, job)
        spaces = spaces_of(options.space or [], names)
    # Loading may download, which needs a clean-up: a signal raises an exception here.
    search = prepare(
        job,
        names,
        trials=options.trials,
        repeats=options.seeds,
        criterion=options.criterion.strip().lower(),
        data_dir=data_dir,
        relative=not options.absolute_step_size,
        own=spaces,
        log=console.lines(quiet),
    )
    make_place(folder, job.name)
    # The file records the command in its shortest form, without the paths of this machine.
    words = ["drfl", "tune", Path(options.job).name]
    if options.names is not None:
        words += ["--algorithms", options.names]
    if options.rounds is not None:
        words += ["--rounds", str(options.rounds)]
    words += ["--trials", str(options.trials), "--seeds", str(options.seeds), "--criterion", options.criterion]
    if options.confirm_seeds != SEEDS:
        words += ["--confirm-seeds", str(options.confirm_seeds)]
    if options.absolute_step_size:
        words.append("--absolute-step-size")
    if options.stand_in:
        words.append("--stand-in")
    settings = [(flag(name), value if isinstance(value, list) else [value]) for name, value in options.settings.items()]
    for option, values in (*settings, ("--space", options.space), ("--set", options.changes)):
        for value in values or []:
            words += [option, value.name if isinstance(value, Path) else str(value)]
    command = shlex.join(words)
    with console.interruptible("now; finished runs are stored") as watch:

        def pool() -> CellPool:
            return make_pool(workers, run_cell, data_dir, shared=True)

        with console.progress_of_jobs(quiet) as show:
            trials = run(
                search,
                folder,
                pool=pool,
                ended=lambda end: show(end.finished, end.total, end.line(search.criterion.shown), end.share),
                watch=watch,
            )
        confirmations = confirm(
            search,
            trials,
            folder,
            seeds=options.confirm_seeds,
            pool=pool,
            progress=console.lines(quiet),
            watch=watch,
        )
        path = write(search, trials, folder, command, confirmations)
    if quiet:
        print(json_text({**content(search, trials, command, confirmations), "file": str(path)}))
    else:
        _print(search, trials, confirmations, path)
    ends = [end for searched in trials.values() for trial in searched for end in trial.stopped]
    return 0 if "rounds" in ends else console.BROKEN


def _print(
    search: Search, trials: Mapping[str, Sequence[Trial]], confirmations: Mapping[str, Confirmation], path: Path
) -> None:
    column = search.criterion.shown
    seeds = "one seed" if search.repeats == 1 else f"{search.repeats} seeds"
    has_undefined = any(search.best(tried).note for tried in trials.values())
    table = ScreenTable(
        "algorithm", column.label, "default", *([UNDEFINED] if has_undefined else []), "chosen",
        title=f"{search.name}, {search.trials} trials each, validation rows, {seeds}", text=("algorithm", "chosen"),
    )  # fmt: skip
    for name, tried in trials.items():
        chosen = search.best(tried)
        text = " ".join(f"{key}={value}" for key, value in chosen.table.items()) or "the defaults"
        undefined = [undefined_share(chosen.undefined, chosen.clients)] if has_undefined else []
        label = f"{label_of(name)} {DOUBLE_DAGGER}" if chosen.set_back else label_of(name)
        table.add_row(label, column.text(chosen.score), column.text(tried[0].score), *undefined, text)
    console.out.print(table)
    for name, tried in trials.items():
        if back := search.best(tried).set_back:
            console.out.print(f"{DOUBLE_DAGGER} {RESET}: {label_of(name)} {', '.join(back)}", markup=False)
        if not any("rounds" in trial.stopped for trial in tried):
            console.err.print(f"every run of {label_of(name)} failed: do not use its parameters", markup=False)
    if len(confirmations) > 1:  # a single one is all in the headline
        for name, found in confirmations.items():
            text = f"{label_of(name)}: {found.verdict} ({found.describe(column)})"
            console.out.print(text, markup=False, highlight=False)
    if words := headline(confirmations, column):
        console.out.print(words, markup=False, highlight=False)
    console.out.print(f"hyperparameters: {path}", markup=False)
