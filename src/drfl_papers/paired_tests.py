"""Differences between methods over the same seeds.

Two methods have the same partition and initial model at a seed, so both cancel in the difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from drfl.assessment.seeds import FLIPS_FROM, LEVEL, T_FROM, SeedDifference, holm_family, seed_difference, verdict
from drfl.core.csv_cells import csv_text
from drfl.experiments.run.measures import column, signed_text
from drfl.task.measure import NOTHING
from drfl.training.history import DIGITS
from drfl_papers.plan import Plan
from drfl_papers.records import Runs, finals
from drfl_papers.specification import Specification
from drfl_papers.tables import ResultTable, TableEntry

COLUMNS = (
    "setting", "metric", "reference", "method",
    "pairs", "difference", "low", "high", "p_t", "p_sign_flips", "p_holm", "seen",
)  # fmt: skip


class MethodDifference(NamedTuple):
    """The reference method minus another.

    Args:
        setting: Name of the setting, or :data:`OVER`.
        metric: One of the accuracies.
        reference: Name of the method that is subtracted from.
        method: Name of the method that is subtracted.
        difference: The difference over the seeds for which both methods finished, as fractions.
        p_holm: p-value of the paired t-test, corrected for all differences of the specification; NaN with fewer than
            five pairs.
    """

    setting: str
    metric: str
    reference: str
    method: str
    difference: SeedDifference
    p_holm: float

    @property
    def verdict(self) -> str:
        """The verdict on the reference, see :func:`drfl.assessment.seeds.verdict`."""
        return verdict(self.difference, self.p_holm, less_is_better=column(self.metric).small)


Names = tuple[str, str, str, str]
"""Setting, metric, reference and other method."""

OVER = "mean over the settings"
"""The name of the setting in :func:`over_settings`."""


def differences(plan: Plan, found: Runs) -> tuple[MethodDifference, ...]:
    """Subtract each other method from the reference, by accuracy and setting: one family for Holm's correction.

    Accuracies are rounded as in `cells.csv`, so that the differences follow from that file.
    """
    return _family(
        ((setting, metric, reference, method), list(_by_seed(found, setting, metric, reference, method).values()))
        for metric, reference, method in _comparisons(plan.spec)
        for setting in plan.settings
    )


def over_settings(plan: Plan, found: Runs) -> tuple[MethodDifference, ...]:
    """Compute the same differences of the mean over a table's settings, per seed, as a separate family.

    A small difference with the same sign in every setting can be significant here. It is then a statement about all
    settings together. A seed counts if both methods finished in every setting. Settings share seeds, and with them
    random draws, so the pairs are seeds and not settings. The answer is empty if there is only one setting.
    """
    if plan.spec.kind != "table" or len(plan.settings) < 2:
        return ()
    family: list[tuple[Names, list[float]]] = []
    for metric, reference, method in _comparisons(plan.spec):
        each = [_by_seed(found, setting, metric, reference, method) for setting in plan.settings]
        seeds = [seed for seed in each[0] if all(seed in other for other in each)]
        # The mean over settings comes first: pairs that share a seed are not independent.
        values = [fmean(by_seed[seed] for by_seed in each) for seed in seeds]
        family.append(((OVER, metric, reference, method), values))
    return _family(family)


def _comparisons(spec: Specification) -> list[tuple[str, str, str]]:
    reference = spec.reference or spec.methods[0].name
    others = [method.name for method in spec.methods if method.name != reference]
    # Test only accuracies, because tests of the spread and the losses would triple the family and weaken every verdict.
    return [(metric, reference, other) for metric in spec.metrics if metric.endswith("_accuracy") for other in others]


def _by_seed(found: Runs, setting: str, metric: str, reference: str, method: str) -> dict[int, float]:
    first, other = finals(found[setting, reference], metric), finals(found[setting, method], metric)
    # A seed counts only if both methods finished: the difference would otherwise mix partitions.
    return {seed: round(first[seed], DIGITS) - round(other[seed], DIGITS) for seed in first if seed in other}


def _family(compared: Iterable[tuple[Names, list[float]]]) -> tuple[MethodDifference, ...]:
    tested = [(names, seed_difference(values)) for names, values in compared]
    # Correct all as one family, because a reader looks at all differences and picks the striking ones.
    corrected = holm_family([difference for _, difference in tested])
    return tuple(MethodDifference(*names, d, float(p)) for (names, d), p in zip(tested, corrected, strict=True))


def tables(plan: Plan, runs: Runs, stored: bool = True) -> tuple[ResultTable, ...]:
    """Make one table per metric, other methods down and settings across, and one of the means over several settings.

    A note is below the last table of a metric. There is no table if there are no other methods.

    Args:
        plan: The plan of the runs.
        runs: The runs; their last points are compared.
        stored: Whether the p-values are in files, which the notes name.
    """
    compared = differences(plan, runs)
    if not compared:
        return ()
    reference, metrics = compared[0].reference, list(dict.fromkeys(d.metric for d in compared))
    others = list(dict.fromkeys(d.method for d in compared))
    shown = []
    for metric in metrics:
        rows = []
        for method in others:
            cells = {d.setting: TableEntry(_text(d)) for d in compared if (d.metric, d.method) == (metric, method)}
            rows.append((TableEntry(f"{reference} − {method}"), *(cells[setting] for setting in plan.settings)))
        less = " (lower is better)" if column(metric).small else ""
        title = f"Paired differences: {column(metric).name}{less}, points"
        shown.append(ResultTable(title, ("difference", *plan.settings), tuple(rows)))
    # A method with more rounds may be better for this reason alone, which the note has to mention.
    equally_long = len({planned.cell.job.get("rounds") for planned in plan.cells}) == 1
    shown[-1] = replace(shown[-1], notes=(_note(compared, equally_long, stored),))
    together = over_settings(plan, runs)
    if together:
        rows = []
        for method in others:
            cells = {d.metric: TableEntry(_text(d)) for d in together if d.method == method}
            rows.append((TableEntry(f"{reference} − {method}"), *(cells[metric] for metric in metrics)))
        note = (
            "For each seed, the mean over the settings, all of which must have finished. The p-values are corrected "
            f"for the {len(together)} differences of this table alone"
            f"{'; they are in `paired_over_settings.csv`' if stored else ''}."
        )
        header = ("difference", *(column(metric).name for metric in metrics))
        title = "Paired differences: mean over the settings, points"
        shown.append(ResultTable(title, header, tuple(rows), (note,)))
    return tuple(shown)


def to_csv(found: Sequence[MethodDifference]) -> str:
    """Format differences as CSV text, in fractions."""
    rows = []
    for d in found:
        n, *ends, p_t, p_flips = d.difference
        numbers = ["" if math.isnan(value) else f"{value:.{DIGITS}f}" for value in ends]
        chances = ["" if math.isnan(p) else f"{p:.4g}" for p in (p_t, p_flips, d.p_holm)]
        rows.append([*d[:4], n, *numbers, *chances, d.verdict])
    return csv_text(COLUMNS, rows)


def _note(found: Sequence[MethodDifference], equally_long: bool, stored: bool) -> str:
    """Explain the differences, and when a verdict is given."""
    reference, pairs = found[0].reference, sorted({d.difference.n for d in found})
    seeds = f"{pairs[0]}" if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]}"
    text = f"Mean difference over the seeds for which both methods finished ({seeds})"
    if pairs[-1] < 2:
        return f"{text}; one pair has no interval."
    text += ", each with its own 95 % t-interval in brackets."
    tested = sum(d.difference.n >= T_FROM for d in found)
    if tested:
        corrected = "for the only difference here"
        if tested > 1:
            corrected = f"corrected for the {tested} differences here (Holm)"
        flips = f", and the uncorrected p-value of the sign-flip test is at most {LEVEL} too"
        text += (
            f" {reference} counts as better or worse only if the p-value of the paired t-test, {corrected}, "
            f"is at most {LEVEL}{flips if pairs[-1] >= FLIPS_FROM else ''}."
            f"{' `paired.csv` has the p-values.' if stored else ''}"
        )
    if pairs[0] < T_FROM:
        text += f" With fewer than {T_FROM} pairs, no difference is decided."
    if not equally_long:
        text += " The methods did not all run the same number of rounds."
    return text


def _text(d: MethodDifference) -> str:
    n, mean, low, high, *_ = d.difference
    if not n:
        return NOTHING
    scale = column(d.metric).scale
    middle = signed_text(scale * mean, 2)
    # A single difference has no spread, so it gets no interval.
    if n < 2:
        return f"{middle} ({d.verdict})"
    ends = "" if math.isnan(low) else f" [{signed_text(scale * low, 2)}, {signed_text(scale * high, 2)}]"
    return f"{middle}{ends} {d.verdict}"
