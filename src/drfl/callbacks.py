"""Ready-made callbacks for :func:`drfl.loop.run`."""

from __future__ import annotations

import sys

from drfl.errors import InputError, unknown
from drfl.history import SMALL_IS_GOOD, Metrics
from drfl.loop import Step


class Target:
    """Callback that ends a run once a metric has reached a value, e.g. ``Target("worst_accuracy", 0.5)``.

    Raises:
        InputError: no such metric.
    """

    def __init__(self, metric: str, value: float) -> None:
        if metric not in Metrics._fields:
            raise unknown("metric", metric, Metrics._fields)
        self.metric, self.value = metric, value

    def __call__(self, step: Step) -> bool:
        """Whether the newest evaluation has reached the value (losses and std: from above)."""
        if step.row is None:
            return False
        now = getattr(step.row.metrics, self.metric)
        return now <= self.value if self.metric in SMALL_IS_GOOD else now >= self.value


def target(until: str | None) -> list[Target]:
    """The callback behind an ``until`` such as "worst_accuracy=0.5"; none for None.

    Raises:
        InputError: not of that form, or no such metric.
    """
    if until is None:
        return []
    metric, _, value = until.partition("=")
    try:
        return [Target(metric.strip(), float(value))]
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"until = '{until}' is not of the form metric=value, e.g. worst_accuracy=0.5") from None


class Progress:
    """Callback that prints a plain line on stderr, about ten times in a run, and whenever nobody answered.

    Args:
        label: what each line begins with.
        lines: how many lines at most, apart from those on empty rounds.
    """

    def __init__(self, label: str = "drfl", lines: int = 10) -> None:
        self.label, self.lines = label, lines

    def __call__(self, step: Step) -> None:
        """Print this step's line, if it is due."""
        where = f"{self.label}: round {step.round}/{step.rounds}"
        if step.info is not None and step.info.empty:
            print(f"{where}: nobody answered, the model is as it was", file=sys.stderr, flush=True)
        every = -(-step.rounds // self.lines) or 1
        if step.row is not None and (step.round % every == 0 or step.round == step.rounds):
            print(f"{where}, {describe(step.row.metrics)}", file=sys.stderr, flush=True)


def describe(metrics: Metrics) -> str:
    """Worst and average accuracy in a few words."""
    return f"worst {100 * metrics.worst_accuracy:.1f} %, average {100 * metrics.avg_accuracy:.1f} %"
