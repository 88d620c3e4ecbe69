"""Differences between methods over the same seeds: the same partition and initial model, so that both cancel."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from drfl.experiments.measures import NONE, column, signed
from drfl.history import DIGITS, csv_text
from drfl.key import Key
from drfl.papers.plan import Collected
from drfl.papers.records import finals, runs
from drfl.papers.tables import ResultTable, TableEntry

RESAMPLES = 10_000
LEVEL = 0.95
FEW = 5
"""Below so many pairs the bootstrap has too few different samples to draw from."""

COLUMNS = ("setting", "metric", "reference", "method", "pairs", "difference", "low", "high", "seen")


class Difference(NamedTuple):
    """The reference method minus another.

    Args:
        setting: its name.
        metric: one of the accuracies.
        reference: name of the method that is subtracted from.
        method: name of the one that is subtracted.
        pairs: seeds that both came to the end of.
        mean: difference, a fraction; NaN without a pair.
        low: lower end of the 95 % interval; NaN with fewer than two pairs.
        high: upper end.
    """

    setting: str
    metric: str
    reference: str
    method: str
    pairs: int
    mean: float
    low: float
    high: float

    @property
    def seen(self) -> str:
        """What it says of the reference: "better" or "worse" only where the interval leaves 0 out."""
        if self.pairs < 2:
            return "one pair only" if self.pairs else "no pair"
        if self.low <= 0 <= self.high:
            return "no difference seen"
        return "better" if (self.mean > 0) != column(self.metric).small else "worse"


def differences(collected: Collected) -> tuple[Difference, ...]:
    """The reference minus each other method, by setting and accuracy."""
    spec, found = collected.plan.spec, runs(collected)
    reference = spec.reference or spec.methods[0].name
    differences = []
    for metric in (m for m in spec.metrics if m.endswith("_accuracy")):
        for method in (m.name for m in spec.methods if m.name != reference):
            for setting in collected.plan.settings:
                first = finals(found[setting, reference], metric)
                other = finals(found[setting, method], metric)
                values = [first[seed] - other[seed] for seed in first if seed in other]
                mean = float(np.mean(values)) if values else float("nan")
                differences.append(
                    Difference(setting, metric, reference, method, len(values), mean, *bootstrap(values))
                )
    return tuple(differences)


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of a mean (Efron 1979), from the same resamples at every call.

    Args:
        values: differences, a value a pair.

    Returns:
        lower and upper end; NaN for fewer than two values.
    """
    if len(values) < 2:
        return float("nan"), float("nan")
    means = np.asarray(values, dtype=np.float64)[_resamples(len(values))].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@functools.lru_cache(maxsize=4)
def _resamples(n: int) -> np.ndarray:
    """(RESAMPLES, n) places drawn with replacement."""
    return Key(0).fold("bootstrap", n).generator().integers(0, n, (RESAMPLES, n))


def tables(collected: Collected) -> tuple[ResultTable, ...]:
    """A table a metric: the other methods down, the settings across, a note below the last; none without others."""
    found = differences(collected)
    if not found:
        return ()
    *most, last = (
        _table(collected, [d for d in found if d.metric == metric], metric)
        for metric in dict.fromkeys(d.metric for d in found)
    )
    return (*most, replace(last, notes=(_note(found, _alike(collected)),)))


def to_csv(collected: Collected) -> str:
    """The differences as CSV text, fractions."""
    return csv_text(
        COLUMNS,
        (
            [d.setting, d.metric, d.reference, d.method, d.pairs, *map(_number, (d.mean, d.low, d.high)), d.seen]
            for d in differences(collected)
        ),
    )


def _table(collected: Collected, found: Sequence[Difference], metric: str) -> ResultTable:
    reference, settings = found[0].reference, collected.plan.settings
    rows = []
    for method in dict.fromkeys(d.method for d in found):
        cells = {d.setting: TableEntry(_text(d)) for d in found if d.method == method}
        rows.append((TableEntry(f"{reference} − {method}"), *(cells[setting] for setting in settings)))
    less = " (less is better)" if column(metric).small else ""
    title = f"Paired differences: {column(metric).name}{less}, points"
    return ResultTable(title, ("difference", *settings), tuple(rows))


def _text(d: Difference) -> str:
    scale = column(d.metric).scale
    if not d.pairs:
        return NONE
    middle = signed(scale * d.mean, 2)
    if d.pairs < 2:
        return f"{middle} ({d.seen})"
    return f"{middle} [{signed(scale * d.low, 2)}, {signed(scale * d.high, 2)}] {d.seen}"


def _note(found: Sequence[Difference], alike: bool) -> str:
    pairs = sorted({d.pairs for d in found})
    seeds = f"{pairs[0]}" if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]}"
    text = f"Mean difference over the seeds that both methods came to the end of, {seeds}"
    if pairs[-1] < 2:
        return f"{text}; one pair has no interval."
    reference = found[0].reference
    text += f" [95 % bootstrap interval, each on its own]: {reference} is better or worse only where it leaves 0 out."
    if pairs[0] < FEW:
        text += f" With fewer than {FEW} pairs the interval is hardly more than the range of the differences."
    if not alike:
        text += " The methods did not all run the same number of rounds."
    return text


def _alike(collected: Collected) -> bool:
    """Whether all methods were to run equally long."""
    return len({planned.cell.job.get("rounds") for planned in collected.plan.cells}) == 1


def _number(value: float) -> str:
    return "" if value != value else f"{value:.{DIGITS}f}"
