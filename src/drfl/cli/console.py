"""Progress, warnings and numbers on the terminal while a command runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from drfl.cli import signals
from drfl.core import screen
from drfl.core.errors import InputError, Notice
from drfl.core.json_toml import read_json
from drfl.core.screen import Screen
from drfl.experiments.run.artifacts import json_text
from drfl.experiments.run.manifest import Kind, failure_of, interruption, missing_files, runs_in
from drfl.experiments.run.run_directory import tidy
from drfl.experiments.run.run_warnings import EndChecks
from drfl.experiments.run.runner import StopSignal
from drfl.report.read_run import FailedRun
from drfl.task.measure import NOTHING
from drfl.training import callbacks
from drfl.training.certificate import Certificate
from drfl.training.loop import Callback
from drfl.training.run_state import RunState

out = Screen()
err = Screen(stderr=True)

BROKEN = 1
"""Exit code if every run failed, or if the model of a single run ended worse than it began."""


@contextmanager
def interruptible(when: str = "after this round") -> Iterator[StopSignal]:
    """Request a stop on the first SIGINT or SIGTERM, and abort on the second, within this context.

    Args:
        when: Description of the moment at which the work stops, for the printed line.
    """
    watch = StopSignal()

    def request_stop(number: int) -> None:
        if watch.stop:
            raise signals.Signalled(number)
        watch.signal = number
        # Do not print through rich: the interrupted frame may hold its lock.
        os.write(2, f"stopping {when} (Ctrl-C again to abort at once)\n".encode())

    with signals.CallOnSignal(request_stop):
        yield watch


@contextmanager
def progress(label: str, quiet: bool = False) -> Iterator[Callback]:
    """Yield a callback that shows the round, worst and average accuracy and the time left, on stderr.

    A terminal gets a live bar, other outputs get a plain line every tenth of the run, and ``quiet`` shows nothing.
    """
    if quiet:
        yield lambda step: None
    elif err.is_terminal:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[metrics]}", markup=False),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=err, transient=True) as bar:
            task = bar.add_task(label, total=None, metrics="")

            def live(progress: RunState) -> None:
                bar.update(task, completed=progress.round, total=progress.rounds)
                row = progress.row
                if row is not None:
                    bar.update(task, metrics=callbacks.describe(row.metrics, progress.score, row.note))

            yield live
    else:
        yield callbacks.Progress(label)


@contextmanager
def progress_of_jobs(quiet: bool) -> Iterator[Callable[[int, int, str, float], None]]:
    """Yield a function that shows a finished job: how many have ended, their total, a line, and the share of the work.

    The time left follows from that share, which counts from the start of this context. A terminal gets a live bar,
    other outputs get the line of each job unless it is empty, and ``quiet`` shows nothing.
    """
    start = time.monotonic()

    def left(share: float) -> str:
        return callbacks.time_left((time.monotonic() - start) * (1 - share) / share) if 0 < share < 1 else ""

    if quiet:
        yield lambda finished, total, line, share: None
    elif err.is_terminal:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}", markup=False),
        )
        with Progress(*columns, console=err, transient=True) as bar:
            task = bar.add_task("", total=None, left="")

            def live(finished: int, total: int, line: str, share: float) -> None:
                bar.update(task, completed=finished, total=total, description=line, left=left(share))

            yield live
    else:

        def plain(finished: int, total: int, line: str, share: float) -> None:
            if line:
                err.print(", ".join(filter(None, (f"[{finished}/{total}] {line}", left(share)))), markup=False)

        yield plain


def lines(quiet: bool) -> Callable[[str], None] | None:
    """Return a function that prints a line on stderr, or None if quiet."""
    return None if quiet else lambda line: err.print(line, markup=False)


def warn(line: str) -> None:
    """Print a line on stderr, also if stdout gets only JSON."""
    screen.warnings.append(screen.with_options(line))
    err.print(line, markup=False)


def warn_of_checks(checks: EndChecks) -> bool:
    """Print the warnings and the failure of a finished run; returns whether it did not fail."""
    for line in checks.warnings:
        warn(line)
    if checks.failure is not None:
        warn(checks.failure)
    return checks.failure is None


def runs_to_read(paths: Sequence[Path]) -> tuple[list[Path], list[FailedRun]]:
    """Return the folders of the finished runs below some folders, and the failed runs, each once; warn if some are
    missing.

    Raises:
        InputError: If a folder has no finished run, or cannot be read.
    """
    from drfl.experiments.compare.stored_runs import failed_in  # imported here because it imports pandas

    # By their resolved paths, because patterns may overlap.
    folders = {folder.resolve(): folder for path in paths for folder in runs_in(path)}
    failed = {run.folder.resolve(): run.failed for path in paths for run in failed_in(path)}
    for notice in dict.fromkeys(filter(None, map(interruption, paths))):
        warn(notice)
    return list(folders.values()), list(failed.values())


def warn_finished(folder: Path, kind: Kind = "run") -> None:
    """Warn that a folder is finished, so that there is nothing to resume.

    Raises:
        InputError: If a file of the results is missing, or the remains of a process that was killed cannot be removed
            from the folder.
    """
    missing = missing_files(folder)
    if missing:
        raise InputError(
            f"the {kind} in {folder} is finished, but {missing[0]} is missing: restore it, or start again with "
            "`overwrite`",
            code="file-not-found",
            field=str(folder / missing[0]),
        )
    tidy(folder, kind)
    warn(Notice(f"{folder} is finished: there is nothing to resume", "nothing-to-resume", str(folder)))


def end_finished(folder: Path, kind: Kind, results: str, as_json: bool) -> int:
    """Warn that the run or fit in a folder is finished, and return the exit code of the command that finished it.

    With ``as_json`` print its ``results``, the name of a file, like that command.

    Raises:
        InputError: If the file cannot be read; see also :func:`warn_finished`.
    """
    warn_finished(folder, kind)
    if as_json:
        content = read_json(folder / results, follow=False)
        print(json_text({**(content if isinstance(content, dict) else {}), "directory": str(folder)}))
    failure = failure_of(folder)
    if failure is None:
        return 0
    warn(failure)
    return BROKEN


def percent(fraction: float) -> str:
    """Format a fraction as percent with one decimal."""
    return f"{100 * fraction:.1f}"


def gap(certificate: Certificate | None) -> str:
    """Format the duality gap with three digits, or a dash without a certificate."""
    return NOTHING if certificate is None else f"{certificate.gap:.3g}"


def certificate(bounds: Certificate | None) -> str:
    """Describe a certificate in a few words."""
    if bounds is None:
        return "no certificate: not every client replied with a finite loss"
    remedy = f"the search ended at a gradient of norm {bounds.gradient_norm:.1g}; set weight_decay above 0 for a proof"
    doubt = "" if bounds.proven else f" (not proven: {remedy})"
    return f"worst-case objective {bounds.primal:.6g}; no model is below {bounds.lower:.6g} at this λ{doubt}"
