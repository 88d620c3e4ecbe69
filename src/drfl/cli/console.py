"""What the user sees while a command works."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from drfl.cli import signals
from drfl.core.screen import Screen
from drfl.experiments.run.runner import StopSignal
from drfl.task.measure import NOTHING
from drfl.training import callbacks
from drfl.training.certificate import Certificate
from drfl.training.loop import Callback
from drfl.training.run_state import RunState

out = Screen()
err = Screen(stderr=True)


@contextmanager
def interruptible(when: str = "after this round") -> Iterator[StopSignal]:
    """Within it the first SIGINT or SIGTERM asks the work to stop soon; the second one aborts it.

    Args:
        when: it stops, for the line that is shown.
    """
    watch = StopSignal()

    def ask(number: int) -> None:
        if watch.stop:
            raise signals.Signalled(number)
        watch.signal = number
        # not through rich, which may hold its lock in the frame that the signal interrupted
        os.write(2, f"stopping {when} (Ctrl-C again to abort at once)\n".encode())

    with signals.deferred(ask):
        yield watch


@contextmanager
def progress(label: str, quiet: bool = False) -> Iterator[Callback]:
    """A callback that shows the round, worst and average accuracy and the time left.

    A live bar on a terminal, a plain line every tenth of the run elsewhere, nothing when quiet. On stderr.
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


def lines(quiet: bool) -> Callable[[str], None] | None:
    """Prints a line on stderr; None when quiet."""
    return None if quiet else lambda line: err.print(line, markup=False)


def warn(line: str) -> None:
    """Print a line on stderr that matters even where only JSON is wanted on stdout."""
    err.print(line, markup=False)


def percent(fraction: float) -> str:
    """A fraction as percent with one digit."""
    return f"{100 * fraction:.1f}"


def gap(certificate: Certificate | None) -> str:
    """The duality gap with three digits; a dash where there is none."""
    return NOTHING if certificate is None else f"{certificate.gap:.3g}"


def certificate(found: Certificate | None) -> str:
    """A certificate in a few words."""
    if found is None:
        return "no certificate, as not every client answered with a finite loss"
    remedy = f"the search ended at a gradient of norm {found.gradient_norm:.1g}; set weight_decay above 0 for a proof"
    doubt = "" if found.proven else f" (not proven: {remedy})"
    return f"worst case {found.primal:.6g}, and no model is below {found.lower:.6g} at this λ{doubt}"
