"""Run one job, or several algorithms and seeds side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from drfl.core.errors import InputError
from drfl.experiments.config.ready_run import Running
from drfl.experiments.run.artifacts import write_run
from drfl.experiments.run.finished import Finished
from drfl.experiments.run.run_directory import ClaimedFolder, filled
from drfl.training.loop import Callback, run
from drfl.training.run_state import CheckpointWriter, RunState

MOST_SEEDS = 10_000
"""More are taken for a slip of the finger."""


class StopSignal:
    """Ends a run after the present round once ``signal`` is set: the number of the signal that asked for it."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def stop(self) -> bool:
        """Whether somebody asked."""
        return self.signal is not None

    @property
    def code(self) -> int:
        """The exit code that tells: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.signal or 0)

    def __call__(self, progress: RunState) -> bool:
        """Whether to stop."""
        return self.stop


def execute(
    job: Running,
    callbacks: Sequence[Callback] = (),
    watch: StopSignal | None = None,
    *,
    start: RunState | None = None,
    keep: CheckpointWriter | None = None,
) -> Finished:
    """Run a job to its end, its target or an interruption.

    Args:
        job: what to run.
        callbacks: called after every round.
        watch: interrupts it.
        start: where an earlier run of the same job was.
        keep: is given the progress.

    Raises:
        DivergedError: see :func:`drfl.training.loop.run`.
    """
    settings, watch = job.settings, watch or StopSignal()
    select = settings.selection(job.fed.measures)
    # The number of threads is global to the process: restore it afterwards.
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads or before)
    try:
        result = run(
            job.algorithm,
            job.fed,
            rounds=settings.rounds,
            seed=settings.seed,
            evaluate_every=settings.evaluate_every,
            returned=settings.returned,
            averaged=settings.averaged,
            table_dir=settings.tables,
            best=select.best,
            patience=select.patience,
            until=select.until,
            callbacks=[watch, *callbacks],
            certify=job.certify,
            start=start or job.first,
            keep=keep,
            check_data=False,  # whoever makes jobs tells of them once, and knows how they were divided
        )
    finally:
        torch.set_num_threads(before)
    return Finished(job, result)


def write_results(finished: Finished, claim: ClaimedFolder, more: Mapping[str, str] | None = None) -> None:
    """Write the results and the report of a run into the folder that it holds.

    Args:
        finished: the run.
        claim: its folder.
        more: other files to write there, text by name.

    Raises:
        InputError: the place cannot be written to.
    """
    from drfl.report import document, load_run, write_html

    with filled(claim) as folder:
        write_run(folder, finished)
        for name, text in (more or {}).items():
            (folder / name).write_text(text, encoding="utf-8")
        # The files are still in a temporary folder: label the report with the final name.
        record = dataclasses.replace(load_run(folder), label=claim.directory.name)
        write_html(document([record]), folder / "report.html")
    # An interrupted run keeps its checkpoint.
    claim.finished = finished.ended


def parse_seeds(text: str) -> list[int]:
    """Seeds from "5" (that many, from 0), "3,7,9" or "10..14" (both ends included).

    Raises:
        InputError: none of these, or too many.
    """
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
        raise InputError(f"seeds '{text}' are more than {MOST_SEEDS}: take fewer", code="out-of-range", field="seeds")
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise InputError(
            f"seeds '{text}' are neither a number of seeds, a list like 0,1,2 nor a range like 10..14",
            code="invalid-format",
            field="seeds",
        )
    return list(seeds)
