"""What a trial is judged by."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

from drfl.experiments.reproduce.cells import Record
from drfl.history import DIGITS

Metric = Literal["worst_accuracy", "worst20_accuracy", "avg_accuracy"]
"""What can be tuned for, each a statistic over clients."""

METRICS: Mapping[str, str] = {
    "worst_accuracy": "the worst client's accuracy",
    "worst20_accuracy": "the mean accuracy of the worst 20 % of the clients",
    "avg_accuracy": "the mean accuracy of the clients",
}

FIRST_SEED = 1000
"""Tuning's seeds begin here, so that its partitions and initial models are others than those of seeds 0, 1, …"""

VALIDATION = 0.2
"""The share of each client's training rows that it is tested on, where the job says nothing else."""

BROKEN = ("diverged", "refused")
"""How a run ends that has no model to judge."""


def sentence(metric: Metric) -> str:
    """The criterion in words, for files."""
    return (
        f"mean over the seeds of {METRICS[metric]} after the last round, on rows held out of the clients' training "
        "rows; a run that breaks off scores 0; test data are not touched"
    )


def score(record: Record, metric: Metric) -> float:
    """One run's: the metric of its last model, 0 where it broke off.

    Args:
        record: of a training cell, see `drfl.experiments.reproduce.training.train`.
        metric: which statistic over clients.

    Returns:
        A fraction.
    """
    rows = record["rows"]
    if record["stopped"] in BROKEN or not isinstance(rows, list) or not rows:
        return 0.0
    return float(rows[-1][metric])


def mean(scores: Sequence[float]) -> float:
    """A trial's score: the mean over its seeds, to as many digits as files have."""
    return round(statistics.fmean(scores), DIGITS)
