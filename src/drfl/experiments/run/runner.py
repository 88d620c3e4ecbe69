"""Run a job, and write its results."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

import torch

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.run_name import named_run
from drfl.core.user_code import label_of
from drfl.experiments.config.ready_run import Running
from drfl.experiments.run.artifacts import write_run
from drfl.experiments.run.finished import FinishedRun
from drfl.experiments.run.run_directory import ClaimedFolder, fill_folder
from drfl.training.loop import Callback, run
from drfl.training.run_state import CheckpointWriter, RunState

MOST_SEEDS = 10_000
"""More seeds are probably a typing error."""


class StopSignal:
    """Ends a run after the current round once ``signal`` is set to the number of a signal."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def stop(self) -> bool:
        """Whether to stop."""
        return self.signal is not None

    @property
    def code(self) -> int:
        """The exit code: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + (self.signal or 0)

    def __call__(self, progress: RunState) -> bool:
        """Return whether to stop."""
        return self.stop


@contextmanager
def stop_on_interrupt() -> Iterator[StopSignal]:
    """Let the first Ctrl-C of a Python session request a stop within this context, and the second one interrupt.

    Other handlers than Python's own, and calls outside the main thread, are left alone.
    """
    watch = StopSignal()

    def request_stop(number: int, frame: FrameType | None) -> None:
        if watch.stop:
            raise KeyboardInterrupt
        watch.signal = number
        os.write(2, b"Stopping after this round; press Ctrl-C again to stop at once.\n")

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield watch
        return
    signal.signal(signal.SIGINT, request_stop)
    try:
        yield watch
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def execute(
    job: Running,
    callbacks: Sequence[Callback] = (),
    watch: StopSignal | None = None,
    *,
    start: RunState | None = None,
    keep: CheckpointWriter | None = None,
) -> FinishedRun:
    """Run a job to its end, its target or an interruption.

    Raises:
        DivergedError: See :func:`drfl.training.loop.run`.
    """
    settings, watch = job.settings, watch or StopSignal()
    # The number of threads is global to the process, so it is restored afterwards.
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads or before)
    try:
        with named_run(f"{label_of(job.about.algorithm)}-seed{settings.seed}"):
            result = run(
                job.algorithm,
                job.fed,
                rounds=settings.rounds,
                seed=settings.seed,
                evaluate_every=settings.evaluate_every,
                returned=settings.returned,
                averaged=settings.averaged,
                table_dir=settings.tables,
                select=settings.select,
                patience=settings.patience,
                until=settings.until,
                safeguard=settings.safeguard,
                callbacks=[watch, *callbacks],
                certify=job.certify,
                start=start or job.first,
                keep=keep,
                check_data=False,  # the caller warns once, and knows how the data were divided
            )
    finally:
        torch.set_num_threads(before)
    if result.stopped == "callback":  # only `watch` and a deployment's callbacks stop a run
        result = result._replace(stopped="interrupted")
    return FinishedRun(job, result)


def write_results(finished: FinishedRun, claim: ClaimedFolder, more: Mapping[str, str | bytes] | None = None) -> None:
    """Write the results and the report of a run into its folder."""
    from drfl.report import document, load_run, write_html

    with fill_folder(claim) as folder:
        write_run(folder, finished)
        for name, content in (more or {}).items():
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        # The files are still in a temporary folder, so the final name is given here.
        record = dataclasses.replace(load_run(folder), label=claim.directory.name)
        write_html(document([record]), folder / "report.html")
    # An interrupted run keeps its checkpoint.
    claim.finished = finished.has_ended


def parse_seeds(text: str) -> list[int]:
    """Parse seeds from "5" (that many, from 0), "3,7,9" or "10..14" (both ends included)."""
    try:
        if ".." in text:
            low, high = map(int, text.split(".."))
            seeds = range(low, high + 1)
        elif "," in text:
            seeds = [int(part) for part in text.split(",") if part.strip()]
        else:
            seeds = range(int(text))
    except ValueError:
        seeds = []
    if isinstance(seeds, range) and seeds.stop - seeds.start > MOST_SEEDS:
        raise InputError(
            f"`seeds` must be at most {MOST_SEEDS}, got '{text}': pass fewer", code="out-of-range", field="seeds"
        )
    if not seeds or min(seeds) < 0:
        raise InputError(
            f"`seeds` must be a number of seeds, a list such as 0,1,2 or a range such as 10..14, got '{text}'",
            code="invalid-format",
            field="seeds",
        )
    checks.distinct("seeds", seeds)
    return list(seeds)
