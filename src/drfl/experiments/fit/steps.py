"""The runs of a fit, one after the other, with checkpoints and an estimate of the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from drfl.core.errors import Notice, StoppedError
from drfl.experiments.config.ready_run import Running
from drfl.experiments.run.finished import FinishedRun
from drfl.experiments.run.resume import identity, load_resume_point
from drfl.experiments.run.run_directory import ClaimedFolder
from drfl.experiments.run.runner import StopSignal, execute
from drfl.training.callbacks import time_left
from drfl.training.checkpoint import Checkpoints
from drfl.training.loop import Callback

Show = Callable[[str], AbstractContextManager[Sequence[Callback]]]
"""Shows the progress of a run with this label: a context manager that yields callbacks."""


@dataclass
class Steps:
    """Executes runs, and resumes those that an earlier process left in the folder.

    Args:
        claim: The folder of the fit; None = nothing is stored.
        watch: Indicates whether to stop.
        show: Shows the progress of a run.
        log: Called with a line when a run has ended.
        warn: Called with a line if a checkpoint is damaged.
        total: The number of runs.
        number: The number of runs so far.
        executed: The number of runs that this process has executed; of a resumed run only the rest counts.
        seconds: The time that they took.
        since: The round from which the newest run was resumed; 0 if it was not.
    """

    claim: ClaimedFolder | None
    watch: StopSignal
    show: Show
    log: Callable[[str], None]
    warn: Callable[[Notice], None]
    total: int = 0
    number: int = 0
    executed: float = 0.0
    seconds: float = 0.0
    since: int = 0

    def run(self, name: str, job: Running) -> FinishedRun:
        """Execute the next run, or what is left of it.

        Raises:
            DivergedError: See :func:`drfl.training.loop.run`.
            StoppedError: If a signal asked to stop.
        """
        self.number += 1
        start, keep, rounds = None, None, job.settings.rounds
        if self.claim is not None and job.settings.checkpoint_every != 0:
            folder = self.claim.checkpoints / f"step-{self.number}"

            def warn(notice: Notice) -> None:
                if notice.code != "resumed":  # every run of a resumed fit resumes
                    self.warn(notice.within(name))

            point = load_resume_point(folder, job, warn)
            start = None if point is None else point.progress
            keep = Checkpoints(folder, partial(identity, job), job.settings.checkpoint_every)
        self.since = 0 if start is None else start.round
        began = time.perf_counter()
        try:
            with self.show(f"[{self.number}/{self.total}] {name}") as callbacks:
                finished = execute(job, callbacks, self.watch, start=start, keep=keep)
        finally:
            self.executed += 1 - self.since / rounds
            self.seconds += time.perf_counter() - began
        if not finished.has_ended:
            how = "nothing is stored" if self.claim is None else "continue with `resume`"
            raise StoppedError(f"interrupted: {how}", self.watch.code)
        if keep is not None:
            keep.write(finished.result.end)  # a resumed fit then only tests this model again
        return finished

    def ended(self, text: str) -> None:
        """Report how the newest run ended, and the time left if all runs take equally long."""
        left = time_left(self.seconds / max(self.executed, 0.1) * (self.total - self.number))
        self.log(f"[{self.number}/{self.total}] {text}" + (f"; {left}" if self.number < self.total else ""))
