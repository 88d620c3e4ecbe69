"""Confirm a search: run the chosen setting and the default one again, at seeds that the search did not use.

The best of many scores is biased upwards, because the search looked at these scores. Scores of new runs are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from drfl.assessment.seeds import T_FROM, SeedDifference, holm_family, seed_difference, verdict
from drfl.core.errors import InputError
from drfl.core.run_end import FAILURES
from drfl.core.user_code import label_of
from drfl.experiments.execution import cells
from drfl.experiments.execution.executor import iterate_completed
from drfl.experiments.execution.records import CELLS, Record
from drfl.experiments.run.measures import MetricColumn, signed_text
from drfl.experiments.run.runner import StopSignal
from drfl.experiments.tuning.criterion import Criterion
from drfl.experiments.tuning.run_searches import MakePool
from drfl.experiments.tuning.search import Search
from drfl.experiments.tuning.suggestion import Trial
from drfl.training.history import DIGITS

SEEDS = 5
"""The number of new seeds: the smallest for which a difference is tested."""

Verdict = Literal["statistically significantly better", "not decided", "worse", "default chosen"]


def check_seeds(count: int) -> None:
    """Check the number of seeds."""
    if count < 0 or 0 < count < T_FROM:
        raise InputError(
            f"`confirm_seeds` must be 0 for no confirmation, or at least {T_FROM} for a paired test, got {count!r}",
            code="out-of-range",
            field="confirm_seeds",
        )


class Confirmation(NamedTuple):
    """A comparison of the chosen setting with the default one at new seeds.

    Args:
        verdict: The verdict on the chosen setting. It is "worse" if the difference is statistically significant, or if
            a run fails at a seed at which the default setting's does not. It is "default chosen", without any run, if
            the search found nothing better than the default setting.
        seeds: The seeds.
        tuned: The criterion at each seed with the chosen setting, on validation rows; NaN for a failed run.
        default: The same with the default setting.
        difference: The paired differences tuned − default with their test. A failed run counts as the worst value.
        p: The p-value of the paired t-test after Holm's correction over the algorithms of the search.
    """

    verdict: Verdict
    seeds: tuple[int, ...] = ()
    tuned: tuple[float, ...] = ()
    default: tuple[float, ...] = ()
    difference: SeedDifference = SeedDifference(0, math.nan, math.nan, math.nan, math.nan, math.nan)
    p: float = math.nan

    @property
    def use(self) -> Literal["tuned", "default"]:
        """The setting to use: the default one unless the chosen one is better."""
        # Without a significant gain the default is the safer setting: it has been tried on many more jobs.
        return "tuned" if self.verdict == "statistically significantly better" else "default"

    @property
    def failed(self) -> tuple[int, int]:
        """The numbers of failed runs of the chosen and of the default setting."""
        return sum(map(math.isnan, self.tuned)), sum(map(math.isnan, self.default))

    def describe(self, column: MetricColumn) -> str:
        """Describe the difference and its test."""
        if not self.seeds:
            return "no trial was better than the default setting"
        d, unit = self.difference, " points" if column.unit == "%" else ""

        def signed(value: float) -> str:
            return signed_text(column.scale * value, column.digits)

        text = f"{column.name} {signed(d.mean)}{unit} at {len(self.seeds)} new seeds"
        if not math.isnan(d.low):
            text += f", 95 % interval {signed(d.low)} to {signed(d.high)}"
        text += f", p = {self.p:.2g}"
        for setting, count in zip(("tuned", "default"), self.failed, strict=True):
            text += f", {count} {setting} run{'s' * (count > 1)} failed" if count else ""
        return text

    def to_plain(self) -> dict[str, object]:
        """Return plain values for files."""
        plain: dict[str, object] = {"verdict": self.verdict, "use": self.use}
        if self.seeds:
            d = self.difference
            numbers = {"difference": d.mean, "low": d.low, "high": d.high, "p": self.p}
            plain |= {name: round(value, DIGITS) for name, value in numbers.items() if not math.isnan(value)}
            plain |= {"seeds": list(self.seeds)}
            for name, values in (("tuned", self.tuned), ("default", self.default)):
                plain[name] = ["failed" if math.isnan(value) else round(value, DIGITS) for value in values]
        return plain


def compare_settings(
    pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]], seeds: Sequence[int], criterion: Criterion
) -> dict[str, Confirmation]:
    """Test the chosen settings of several algorithms against their default settings.

    ``pairs`` has, for each algorithm, the values at the seeds with the chosen and with the default setting; NaN for a
    failed run.
    """
    tests: dict[str, SeedDifference] = {}
    for name, values in pairs.items():
        both = np.array(values, dtype=np.float64)
        finite = both[np.isfinite(both)]
        # A difference needs a finite value: without a worst one, a failed run counts as the worst that occurred.
        worst = criterion.worst
        if not math.isfinite(worst) and finite.size:
            worst = float(finite.max() if criterion.smaller else finite.min())
        both[~np.isfinite(both)] = worst if math.isfinite(worst) else 0.0
        tests[name] = seed_difference(both[0] - both[1])
    found: dict[str, Confirmation] = {}
    for (name, (tuned, default)), p in zip(pairs.items(), holm_family(list(tests.values())).tolist(), strict=True):
        decided = verdict(tests[name], p, less_is_better=criterion.smaller)
        # A setting that fails where the default does not is worse, however good its other runs are.
        fails = any(math.isnan(t) and not math.isnan(d) for t, d in zip(tuned, default, strict=True))
        result: Verdict = "not decided"
        if fails or decided == "worse":
            result = "worse"
        elif decided == "better":
            result = "statistically significantly better"
        found[name] = Confirmation(result, tuple(seeds), tuple(tuned), tuple(default), tests[name], p)
    return found


def confirm(
    search: Search,
    trials: Mapping[str, Sequence[Trial]],
    folder: Path,
    *,
    seeds: int,
    pool: MakePool,
    progress: Callable[[str], None] | None = None,
    watch: StopSignal | None = None,
) -> dict[str, Confirmation]:
    """Run each algorithm's chosen and default setting at new seeds, unless the records of these runs are stored.

    With 0 seeds there is no confirmation. ``pool`` is called only if something is missing.

    Returns:
        The confirmations, by algorithm. Algorithms without defaults and those whose runs all failed have none.

    Raises:
        DrflError: If a worker died, or the folder cannot be written to.
        StoppedError: If a signal asked to stop. Finished runs are stored.
    """
    if not seeds:
        return {}
    # The seeds that follow those of the search have other partitions, validation rows and initial models.
    new = range(search.seeds.stop, search.seeds.stop + seeds)
    criterion = search.criterion
    column = criterion.shown
    found: dict[str, Confirmation] = {}
    wanted: dict[str, tuple[list[cells.Cell], list[cells.Cell]]] = {}
    for name, tried in trials.items():
        subject, best = search.subjects[name], search.best(tried)
        # Without defaults there is nothing to compare with, and without a finished run nothing was chosen.
        if subject.defaults() is None or not any("rounds" in trial.stopped for trial in tried):
            continue
        if best.table == tried[0].table:
            found[name] = Confirmation("default chosen")
        else:
            wanted[name] = subject.cells(best.table, new), subject.cells(tried[0].table, new)
    labels = {
        cell.key: (f"{label_of(name)} {setting}, seed {seed}", cell)
        for name, both in wanted.items()
        for setting, of_setting in zip(("tuned", "default"), both, strict=True)
        for seed, cell in zip(new, of_setting, strict=True)
    }
    place = folder / CELLS
    records = {key: cells.read(place, cell) for key, (_, cell) in labels.items()}
    missing = [key for key, record in records.items() if record is None]
    if missing:
        with pool() as at_work:
            futures = {at_work.submit(labels[key][1], place): key for key in missing}
            for finished, future in enumerate(iterate_completed(futures, watch or StopSignal()), 1):
                key = futures.pop(future)
                records[key] = record = future.result()
                value = f"{column.name} {column.text(criterion.of(record))} {column.unit}".rstrip()
                text = "failed" if criterion.end(record) in FAILURES else value
                if progress is not None:
                    progress(f"[{finished}/{len(missing)}] confirmation: {labels[key][0]}: {text}")

    def value_of(cell: cells.Cell) -> float:
        record: Record = records[cell.key] or {}
        return math.nan if criterion.end(record) in FAILURES else criterion.of(record)

    pairs = {name: (list(map(value_of, a)), list(map(value_of, b))) for name, (a, b) in wanted.items()}
    found |= compare_settings(pairs, new, criterion)
    return {name: found[name] for name in trials if name in found}


def headline(confirmations: Mapping[str, Confirmation], column: MetricColumn) -> str:
    """Say which settings to use, in one line; "" without a confirmation."""
    if len(confirmations) == 1:
        ((name, found),) = confirmations.items()
        decision = {
            "statistically significantly better": "the tuned setting is statistically significantly better than the "
            "default",
            "not decided": "not decided whether the tuned setting is better than the default",
            "worse": "the tuned setting is worse than the default",
            "default chosen": "the search chose the default",
        }[found.verdict]
        return f"{label_of(name)}: {decision} ({found.describe(column)}). Use the {found.use} setting."
    groups: dict[str, list[str]] = {}
    for name, found in confirmations.items():
        groups.setdefault(found.verdict, []).append(label_of(name))
    parts = {
        "statistically significantly better": "Use the tuned setting of {}: statistically significantly better than "
        "the default.",
        "not decided": "Use the default of {}: not decided whether the tuned setting is better.",
        "worse": "Use the default of {}: the tuned setting is worse.",
        "default chosen": "Use the default of {}: the search chose it.",
    }
    return " ".join(text.format(", ".join(groups[name])) for name, text in parts.items() if name in groups)
