"""Run a suite, and rank algorithms by their paired differences to FedAvg over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from drfl.assessment.seeds import FAILED, UNTRAINED, SeedDifference, holm_family, seed_difference, verdict
from drfl.core.errors import StoppedError
from drfl.core.run_end import FAILURES
from drfl.experiments.api import compare
from drfl.experiments.run.manifest import read_manifest
from drfl.experiments.run.measures import signed_text
from drfl.federation.algorithm import Algorithm
from drfl.training.history import DIGITS
from drfl_papers.bench.suite import BenchJob, task

if TYPE_CHECKING:
    import pandas as pd

BASELINE = "FedAvg"
"""The algorithm with which the others are compared."""

METRICS = {"worst_accuracy": False, "worst_loss": True}
"""The columns that are compared, and whether less is better."""

ALL = "all jobs"
"""The name of the mean over the jobs."""


class JobDifference(NamedTuple):
    """A difference from FedAvg on one job, or on the mean over all jobs.

    Args:
        job: The job's name, or :data:`ALL`.
        algorithm: The algorithm.
        metric: The column.
        test: Mean, interval and tests over the seeds.
        p: The p-value after Holm's correction over all algorithms, jobs and both metrics.
        verdict: "better", "worse", "not significant", "not decided", or why there is none.
    """

    job: str
    algorithm: str
    metric: str
    test: SeedDifference
    p: float
    verdict: str

    def to_plain(self) -> dict[str, object]:
        """Return plain values for files; NaN becomes None."""
        numbers = {"difference": self.test.mean, "low": self.test.low, "high": self.test.high, "p": self.p}
        rounded = {name: None if math.isnan(value) else round(value, DIGITS) for name, value in numbers.items()}
        return {"job": self.job, "algorithm": self.algorithm, "metric": self.metric, "seeds": self.test.n} | {
            **rounded,
            "verdict": self.verdict,
        }

    @property
    def text(self) -> str:
        """Mean and interval for a table, accuracies in points."""
        scale, digits = (1.0, 3) if METRICS[self.metric] else (100.0, 1)
        if math.isnan(self.test.mean):
            return self.verdict
        mean, low, high = (signed_text(scale * x, digits) for x in (self.test.mean, self.test.low, self.test.high))
        return mean if math.isnan(self.test.low) else f"{mean} ({low} to {high})"


def run_suite(
    jobs: Sequence[BenchJob],
    algorithms: Callable[[int], Mapping[str, Algorithm]],
    out: Path,
    *,
    rounds: int,
    seeds: int,
    workers: int | Literal["ray"],
    progress: Callable[[str], None] | None,
) -> pd.DataFrame:
    """Run all algorithms on all jobs at all seeds, with the same number of rounds, and return a row per run.

    Each job is a comparison in ``out/JOB``, which the same call resumes. ``algorithms`` returns the algorithms for a
    number of clients.

    Raises:
        InputError: If a folder holds another comparison, or an algorithm cannot start.
        StoppedError: If a signal asked to stop. Finished runs are stored.
    """
    import pandas as pd

    frames: list[pd.DataFrame] = []
    for job in jobs:
        first, folder = job.clients(0), out / job.name
        if progress is not None:
            progress(f"{job.name}: {job.kind}, {first.n} clients")
        found = compare(
            algorithms(first.n), job.clients, partial(task, first), rounds=rounds, seeds=seeds, out=folder,
            jobs=workers, evaluate_every=rounds, progress=progress,
            resume=folder.is_dir() and read_manifest(folder) is not None,
        )  # fmt: skip
        # An interrupted comparison returns its finished runs, which would make an incomplete ranking.
        if not found.is_complete:
            raise StoppedError("interrupted: finished runs are stored, and the same command continues")
        frames.append(found.to_frame().assign(job=job.name))
    return pd.concat(frames, ignore_index=True)


def rank(runs: pd.DataFrame) -> list[JobDifference]:
    """Return the differences of all algorithms to FedAvg: by job, and on the mean over the jobs at each seed.

    An algorithm with a run on a job that failed or returned the initial model has no difference there, and none on the
    mean.

    Args:
        runs: A row per run: job, algorithm, seed, rounds, effective_rounds, stopped and the metrics.
    """
    names = [name for name in runs["algorithm"].drop_duplicates() if name != BASELINE]
    jobs = list(runs["job"].drop_duplicates())
    cells = list(zip(runs.job, runs.algorithm, strict=True))
    untrained = (runs.rounds > 0) & (runs.effective_rounds == 0)
    # If a job has both reasons, name the failed run.
    reasons = {cell: UNTRAINED for cell, is_untrained in zip(cells, untrained, strict=True) if is_untrained}
    reasons |= {cell: FAILED for cell, how in zip(cells, runs.stopped, strict=True) if how in FAILURES}
    rows: list[tuple[str, str, str, SeedDifference, str]] = []
    for metric in METRICS:
        table = runs.pivot(index="seed", columns=["job", "algorithm"], values=metric)
        for name in names:
            by_job = {job: table[job][name] - table[job][BASELINE] for job in jobs}
            broken = {job: reasons.get((job, name), "") or reasons.get((job, BASELINE), "") for job in jobs}
            broken[ALL] = FAILED if FAILED in broken.values() else next(filter(None, broken.values()), "")
            # The mean over one job would repeat its differences and count each test twice in Holm's correction.
            pairs = {**by_job, ALL: sum(by_job.values()) / len(jobs)} if len(jobs) > 1 else by_job
            for job, differences in pairs.items():
                why = broken[job]
                values = [] if why else differences.dropna().to_numpy(float)
                rows.append((job, name, metric, seed_difference(values), why))
    corrected = holm_family([test for *_, test, _ in rows]).tolist()
    return [
        JobDifference(job, name, metric, test, p, why or verdict(test, p, less_is_better=METRICS[metric]))
        for (job, name, metric, test, why), p in zip(rows, corrected, strict=True)
    ]


def ranking(differences: Sequence[JobDifference]) -> list[tuple[str, JobDifference, JobDifference]]:
    """Return (algorithm, accuracy, loss) on the mean over the jobs, or on the only job, the largest gain first.

    The gain is that in worst-client accuracy. FedAvg, the zero of the scale, is not in the list. Algorithms with runs
    that failed or returned the initial model come last.
    """
    jobs = {d.job for d in differences}
    whole = {(d.algorithm, d.metric): d for d in differences if d.job == ALL or len(jobs) == 1}
    found = [(name, whole[name, "worst_accuracy"], whole[name, "worst_loss"]) for name, m in whole if m == "worst_loss"]
    return sorted(found, key=lambda row: math.inf if math.isnan(row[1].test.mean) else -row[1].test.mean)
