"""``drfl tune``."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from drfl.cli import console
from drfl.cli.options import TuneOptions
from drfl.errors import InputError, StoppedError
from drfl.experiments.artifacts import json_text
from drfl.experiments.hyperparameters import canonical
from drfl.papers.tuning_jobs import resolve
from drfl.tuning.job import METRICS, Metric, TuningJob, changes_of, chosen_algorithms
from drfl.tuning.output import check_place, content, make_place, write
from drfl.tuning.search import Search, Trial, best, prepare
from drfl.tuning.study import Ended, run

RESULTS = Path("experiments/results/tuning")

BROKEN = 1
"""The exit code when every run failed."""

WORDS = {"worst_accuracy": "worst", "worst20_accuracy": "worst fifth", "avg_accuracy": "average"}


def tune_command(options: TuneOptions) -> int:
    """Check, search, write, print; gives the exit code."""
    quiet, job = options.as_json, _job(options)
    metrics: dict[str, Metric] = {metric: metric for metric in METRICS}
    folder = options.out or RESULTS / job.name
    check_place(folder, job.name)
    data_dir = options.data_dir or job.data_dir
    search = prepare(
        job,
        chosen_algorithms(options.names, job),
        trials=options.trials,
        repeats=options.seeds,
        metric=metrics[canonical("metric", options.metric, metrics)],
        data_dir=data_dir,
    )
    make_place(folder, job.name)
    jobs = options.jobs or os.cpu_count() or 1
    with _progress(WORDS[search.metric], quiet) as ended:
        try:
            trials = run(search, folder, workers=jobs, data_dir=data_dir, ended=ended)
        except KeyboardInterrupt:
            raise StoppedError(
                "interrupted: what is finished is kept, and the same command goes on from there"
            ) from None
    command = _command(options)
    path = write(search, trials, folder, command)
    if quiet:
        print(json_text({**content(search, trials, command), "file": str(path)}))
    else:
        _print(search, trials, path)
    ends = [how for own in trials.values() for trial in own for how in trial.stopped]
    return 0 if "rounds" in ends else BROKEN


def _job(options: TuneOptions) -> TuningJob:
    changes = changes_of(options.changes or [])
    if options.rounds is not None:
        if "rounds" in changes:
            raise InputError("--rounds and --set rounds say the same thing: leave one out")
        changes["rounds"] = options.rounds
    return resolve(options.job, changes, stand_in=options.stand_in)


def _command(options: TuneOptions) -> str:
    """The command in its shortest form, without where files lie on this machine."""
    words = ["drfl", "tune", Path(options.job).name]
    if options.names is not None:
        words += ["--algorithms", options.names]
    if options.rounds is not None:
        words += ["--rounds", str(options.rounds)]
    words += ["--trials", str(options.trials), "--seeds", str(options.seeds), "--metric", options.metric]
    if options.stand_in:
        words.append("--stand-in")
    for text in options.changes or []:
        words += ["--set", text]
    return shlex.join(words)


def _print(search: Search, trials: Mapping[str, Sequence[Trial]], path: Path) -> None:
    word = WORDS[search.metric]
    table = Table(
        title=f"{search.job.name}, {search.trials} trials each, validation accuracy over {search.repeats} seeds",
        title_justify="left",
    )
    table.add_column("algorithm")
    for heading in (f"{word} %", "default %"):
        table.add_column(heading, justify="right")
    table.add_column("chosen")
    for name, own in trials.items():
        chosen = best(own)
        text = " ".join(f"{key}={value}" for key, value in chosen.table.items())
        table.add_row(name, console.percent(chosen.score), console.percent(own[0].score), text)
    console.out.print(table)
    for name, own in trials.items():
        if not any("rounds" in trial.stopped for trial in own):
            console.err.print(f"every run of {name} failed: its parameters are worth nothing", markup=False)
    console.out.print(f"hyperparameters: {path}", markup=False)


@contextmanager
def _progress(word: str, quiet: bool) -> Iterator[Callable[[Ended], None]]:
    """Shows trials done and time left: a live bar on a terminal, a plain line a trial elsewhere, nothing when quiet."""
    start = time.monotonic()
    if quiet:
        yield lambda end: None
    elif console.err.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        )
        with Progress(*columns, console=console.err, transient=True) as bar:
            task = bar.add_task("trials", total=None, left="")

            def live(end: Ended) -> None:
                left = _left(end, time.monotonic() - start)
                bar.update(task, description=_label(end, word), completed=end.finished, total=end.total, left=left)

            yield live
    else:

        def plain(end: Ended) -> None:
            parts = [f"[{end.finished}/{end.total}] {_label(end, word)}", _left(end, time.monotonic() - start)]
            console.err.print(", ".join(filter(None, parts)), markup=False)

        yield plain


def _label(end: Ended, word: str) -> str:
    broken = sorted({how for how in end.trial.stopped if how != "rounds"})
    fate = f", {' and '.join(broken)} at some seeds" if broken else ""
    score, best_score = console.percent(end.trial.score), console.percent(end.best)
    return f"{end.algorithm} trial {end.trial.number}: {word} {score} % (best {best_score} %){fate}"


def _left(end: Ended, seconds: float) -> str:
    """The time left, by the cost of what was run since the start."""
    if end.finished == end.total:
        return ""
    left = seconds * (1 - end.share) / end.share
    return f"about {left / 60:.0f} min left" if left >= 90 else f"about {left:.0f} s left"
