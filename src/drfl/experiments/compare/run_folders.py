"""The runs of comparisons and sweeps: each in its own sub-folder, with a record of how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

from pydantic import TypeAdapter, ValidationError

from drfl.core.user_code import label_of
from drfl.experiments.compare.outcomes import Outcome, run_to_outcome
from drfl.experiments.config.about_run import run_toml
from drfl.experiments.config.ready_run import Job
from drfl.experiments.execution import records
from drfl.experiments.execution.executor import POLL_INTERVAL, Executor
from drfl.experiments.run.artifacts import run_files, write_run
from drfl.experiments.run.manifest import is_readable
from drfl.experiments.run.resume import checkpoint_writer, key_of, load_resume_point
from drfl.experiments.run.run_directory import ClaimedFolder, claim_folder, fill_folder, tidy
from drfl.experiments.run.runner import StopSignal, execute
from drfl.training.loop import Callback
from drfl.training.trackers import tracking

OUTCOME = TypeAdapter(Outcome)

Answer = tuple[Outcome | None, Mapping[str, bytes] | None, list[str]]
"""A run's outcome (None if interrupted), the files of its folder if another machine computed it, and warnings."""


def run_in_folder(
    claim: ClaimedFolder,
    name: str,
    make: Callable[[], Job],
    watch: StopSignal,
    callbacks: Sequence[Callback] = (),
    warn: Callable[[str], None] = lambda line: None,
    track: str | None = None,
) -> Outcome | None:
    """Run a job, or the rest of it, in a sub-folder; return None after an interruption.

    A run that fails, because it diverges or its algorithm cannot continue, has an outcome, too.
    """
    job = make()
    key = key_of(job.settings, claim.directory)
    with claim_folder(claim.directory / name, resume=True, config=run_toml(job.about), key=key) as cell:
        before = load_resume_point(cell.checkpoints, job, lambda notice: warn(notice.within(name)), key)
        start, keep = None if before is None else before.progress, checkpoint_writer(cell, job, key)
        with tracking(track, name) as trackers:
            outcome, finished = run_to_outcome(
                job.about.algorithm,
                job.settings.seed,
                lambda: execute(job, [*callbacks, *trackers], watch, start=start, keep=keep),
            )
        if finished is not None and not finished.has_ended:
            return None
        keep_outcome(claim, name, outcome)  # before the results, so that results always have a record
        if finished is not None:
            with fill_folder(cell) as folder:
                write_run(folder, finished)
        cell.finished = True  # even if it failed, because it would fail again
    return outcome


def recall_outcome(claim: ClaimedFolder, name: str, algorithm: str, seed: int) -> Outcome | None:
    """Return the stored outcome of the run in a sub-folder; None if there is none."""
    folder = claim.directory / name
    record = records.read(claim.checkpoints, name, claim.key)
    if record is None:
        return None
    try:
        outcome = OUTCOME.validate_python({part: value for part, value in record.items() if part != "key"})
    except ValidationError:
        return None
    # A failed run has a record but no folder of results.
    whole = outcome.metrics is None or is_readable(folder)
    if not whole or (outcome.algorithm, outcome.seed) != (label_of(algorithm), seed):
        return None
    tidy(folder)
    return outcome


def store_run(claim: ClaimedFolder, name: str, outcome: Outcome, files: Mapping[str, bytes] | None) -> None:
    """Store a run that another machine has computed.

    ``files`` are those of its folder by name; None if it failed.
    """
    with claim_folder(claim.directory / name, resume=True, key=claim.key) as cell:
        keep_outcome(claim, name, outcome)
        if files is not None:
            with fill_folder(cell) as folder:
                for file, content in files.items():
                    (folder / file).write_bytes(content)
        cell.finished = True


def run_elsewhere(algorithm: str, seed: int, make: Callable[[], Job]) -> Answer:
    """Run a job on another machine, and return the files of its folder."""
    outcome, finished = run_to_outcome(algorithm, seed, lambda: execute(make()))
    return outcome, None if finished is None else dict(run_files(finished)), []


def collect(
    claim: ClaimedFolder,
    executor: Executor,
    futures: dict[Future[Answer], str],
    watch: StopSignal,
    warn: Callable[[str], None],
    *,
    is_local: bool,
) -> Iterator[tuple[str, Outcome | None]]:
    """Yield the names of sub-folders as their runs end in workers, with the outcomes; None after an interruption.

    Workers on this machine write their runs themselves, with checkpoints, and stop after the current round if they are
    asked to. Runs that end on a cluster are written here. One that is interrupted there starts from the beginning next
    time.
    """
    while futures and (is_local or not watch.stop):
        # Wake up regularly, because a signal only sets a flag.
        done = wait(futures, POLL_INTERVAL, FIRST_COMPLETED).done
        # Results first: they are stored before an error is raised.
        for future in sorted(done, key=lambda future: future.exception() is not None):
            outcome, files, lines = future.result()
            name = futures.pop(future)
            if outcome is not None and not is_local:
                store_run(claim, name, outcome, files)
            for line in lines:
                warn(line)
            yield name, outcome
        if watch.stop:
            executor.ask_to_stop()


def keep_outcome(claim: ClaimedFolder, name: str, outcome: Outcome) -> None:
    """Write the record of a run's outcome."""
    records.write(claim.checkpoints, name, outcome._asdict(), claim.key)
