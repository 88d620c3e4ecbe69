"""Differences between methods over the same seeds: the same partition and initial model, so that both cancel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from drfl.assessment.seeds import FLIPS_FROM, LEVEL, T_FROM, SeedDifference, holm_family, seed_difference, verdict
from drfl.experiments.measures import NONE, column, signed
from drfl.history import DIGITS, csv_text
from drfl.papers.plan import Plan
from drfl.papers.records import Runs, finals
from drfl.papers.tables import ResultTable, TableEntry

COLUMNS = (
    "setting", "metric", "reference", "method",
    "pairs", "difference", "low", "high", "p_t", "p_sign_flips", "p_holm", "seen",
)  # fmt: skip


class Difference(NamedTuple):
    """The reference method minus another.

    Args:
        setting: its name.
        metric: one of the accuracies.
        reference: name of the method that is subtracted from.
        method: name of the one that is subtracted.
        found: over the seeds that both came to the end of; fractions.
        p_holm: p-value of the paired t-test, corrected for all differences of the specification; NaN below five pairs.
    """

    setting: str
    metric: str
    reference: str
    method: str
    found: SeedDifference
    p_holm: float

    @property
    def seen(self) -> str:
        """What it says of the reference, see :func:`drfl.assessment.seeds.verdict`."""
        return verdict(self.found, self.p_holm, less_is_better=column(self.metric).small)


def differences(plan: Plan, found: Runs) -> tuple[Difference, ...]:
    """The reference minus each other method, by accuracy and setting: one family for Holm's correction.

    Accuracies are taken as `cells.csv` has them, so that the differences follow from that file.

    Args:
        plan: what was run.
        found: the runs; their last points are compared.
    """
    spec = plan.spec
    reference = spec.reference or spec.methods[0].name
    names: list[tuple[str, str, str, str]] = []
    tested: list[SeedDifference] = []
    for metric in (m for m in spec.metrics if m.endswith("_accuracy")):
        for method in (m.name for m in spec.methods if m.name != reference):
            for setting in plan.settings:
                first = finals(found[setting, reference], metric)
                other = finals(found[setting, method], metric)
                pairs = ((first[seed], other[seed]) for seed in first if seed in other)
                names.append((setting, metric, reference, method))
                tested.append(seed_difference([round(a, DIGITS) - round(b, DIGITS) for a, b in pairs]))
    corrected = holm_family(tested)
    return tuple(Difference(*name, d, float(p)) for name, d, p in zip(names, tested, corrected, strict=True))


def tables(plan: Plan, runs: Runs) -> tuple[ResultTable, ...]:
    """A table a metric: the other methods down, the settings across, a note below the last; none without others."""
    found = differences(plan, runs)
    if not found:
        return ()
    *most, last = (
        _table(plan, [d for d in found if d.metric == metric], metric)
        for metric in dict.fromkeys(d.metric for d in found)
    )
    return (*most, replace(last, notes=(_note(found, _alike(plan)),)))


def to_csv(plan: Plan, runs: Runs) -> str:
    """The differences as CSV text, fractions."""
    return csv_text(COLUMNS, (_row(d) for d in differences(plan, runs)))


def _row(d: Difference) -> list[object]:
    n, *ends, p_t, p_flips = d.found
    numbers = ["" if math.isnan(value) else f"{value:.{DIGITS}f}" for value in ends]
    chances = ["" if math.isnan(p) else f"{p:.4g}" for p in (p_t, p_flips, d.p_holm)]
    return [*d[:4], n, *numbers, *chances, d.seen]


def _table(plan: Plan, found: Sequence[Difference], metric: str) -> ResultTable:
    reference, settings = found[0].reference, plan.settings
    rows = []
    for method in dict.fromkeys(d.method for d in found):
        cells = {d.setting: TableEntry(_text(d)) for d in found if d.method == method}
        rows.append((TableEntry(f"{reference} − {method}"), *(cells[setting] for setting in settings)))
    less = " (less is better)" if column(metric).small else ""
    title = f"Paired differences: {column(metric).name}{less}, points"
    return ResultTable(title, ("difference", *settings), tuple(rows))


def _text(d: Difference) -> str:
    n, mean, low, high, *_ = d.found
    if not n:
        return NONE
    scale = column(d.metric).scale
    middle = signed(scale * mean, 2)
    if n < 2:
        return f"{middle} ({d.seen})"
    ends = "" if math.isnan(low) else f" [{signed(scale * low, 2)}, {signed(scale * high, 2)}]"
    return f"{middle}{ends} {d.seen}"


def _note(found: Sequence[Difference], alike: bool) -> str:
    pairs = sorted({d.found.n for d in found})
    seeds = f"{pairs[0]}" if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]}"
    text = f"Mean difference over the seeds that both methods came to the end of, {seeds}"
    if pairs[-1] < 2:
        return f"{text}; one pair has no interval."
    text += " [95 % t-interval, each on its own]."
    tested = sum(d.found.n >= T_FROM for d in found)
    if tested:
        text += f" {_rule(found[0].reference, tested, pairs[-1] >= FLIPS_FROM)}"
    if pairs[0] < T_FROM:
        text += f" With fewer than {T_FROM} pairs nothing is decided, whatever the numbers."
    if not alike:
        text += " The methods did not all run the same number of rounds."
    return text


def _rule(reference: str, tested: int, flipped: bool) -> str:
    """What a verdict takes."""
    corrected = f"corrected for the {tested} differences here (Holm)" if tested > 1 else "of the one difference here"
    flips = f", and that of all sign flips, uncorrected, is at most {LEVEL} too" if flipped else ""
    return (
        f"{reference} is better or worse only where the p-value of the paired t-test, {corrected}, "
        f"is at most {LEVEL}{flips}; `paired.csv` has the p-values."
    )


def _alike(plan: Plan) -> bool:
    """Whether all methods were to run equally long."""
    return len({planned.cell.job.get("rounds") for planned in plan.cells}) == 1
