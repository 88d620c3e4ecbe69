"""Runs that differ only in their seed belong together; every such group has one colour throughout a report."""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drfl.report.formatting import clean
from drfl.report.read_run import FailedRun, RunRecord, text
from drfl.task.measure import Measure, undefined_note, undefined_share

if TYPE_CHECKING:
    import numpy as np


# Okabe and Ito's palette, told apart by readers with any colour vision and visible on white and on black. An algorithm
# keeps its colour from one report to the next; relatives share a colour and differ in the dash.
GREY, ORANGE, SKY, GREEN = "#808791", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PINK = "#2A7FC0", "#D55E00", "#CC79A7"  # blue lightened from #0072B2 for dark backgrounds
MARKS = {
    GREY: "circle", ORANGE: "square", SKY: "diamond", GREEN: "up", BLUE: "down", VERMILION: "cross", PINK: "bar",
}  # fmt: skip
"""Colour → the shape of its marks, for readers without colours."""
STYLES = {
    "FedAvg": (GREY, "solid"),
    "FedProx": (GREY, "dash"),
    "FedNova": (GREY, "dot"),
    "SCAFFOLD": (GREEN, "solid"),
    "FedDyn": (GREEN, "dash"),
    "QFedAvg": (PINK, "solid"),
    "AFL": (PINK, "dash"),
    "DeltaFL": (PINK, "dot"),
    "DRFA": (ORANGE, "solid"),
    "DRFAProx": (ORANGE, "dash"),
    "DRFAGA": (ORANGE, "dot"),
    "ScaffPD": (SKY, "solid"),
    "DRDM": (VERMILION, "solid"),
    "DualDRDM": (BLUE, "solid"),
}
SPARE = [
    (colour, dash)
    for dash in ("solid", "dash", "dot", "dashdot")
    for colour in (BLUE, ORANGE, GREEN, PINK, VERMILION, SKY, GREY)
]

# What a run may change without becoming another experiment.
INCIDENTAL = frozenset(
    [
        "seed",
        "seeds",
        "out",
        "output",
        "directory",
        "data_dir",
        "device",
        "engine",
        "backend",
        "certificate",
        "threads",
        "workers",
        "resume",
        "quiet",
        "checkpoint",
    ]
)


@dataclass(frozen=True, eq=False)
class Group:
    """The runs of one algorithm with one configuration, one run per seed.

    Args:
        key: an identifier that is safe in HTML attributes.
        label: the algorithm, with the settings that tell it from others of the same name.
        colour: as "#rrggbb".
        dash: of its line, one of :data:`drfl.report.svg.DASHES`.
        runs: at least one, ordered by seed.
        failed: those that left no results. Statistics over seeds then have no value: the other seeds are those at which
            the algorithm happens to work.
    """

    key: str
    label: str
    colour: str
    dash: str
    runs: tuple[RunRecord, ...]
    failed: tuple[FailedRun, ...] = ()

    @property
    def mark(self) -> str:
        """The shape of its marks, one of :data:`drfl.report.svg.MARKS`."""
        return MARKS[self.colour]

    @property
    def seeds(self) -> str:
        """How many there are: "14", or "12 of 14" if the others failed."""
        n = len(self.runs)
        return f"{n} of {n + len(self.failed)}" if self.failed else str(n)

    @property
    def stopped_on_test(self) -> bool:
        """Whether test rows have stopped a run."""
        return any(run.stopped_on_test for run in self.runs)

    @property
    def reference(self) -> bool:
        """Whether it is not federated, but shows what federation costs and gains."""
        return self.runs[0].reference

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What was measured, the score first."""
        return self.runs[0].measures

    @property
    def score(self) -> Measure:
        """What says how well a client is served."""
        return self.measures[0]

    @property
    def clients(self) -> int:
        """The largest number of clients in a run."""
        return max(len(run.clients) for run in self.runs)

    def undefined(self, measure: Measure) -> str:
        """The share of clients at which a measure is undefined, see :func:`drfl.task.measure.undefined_share`."""
        return undefined_share(*self._undefined(measure))

    def note(self, measure: Measure) -> str:
        """What follows a statistic of a measure over clients, see :func:`drfl.task.measure.undefined_note`."""
        return undefined_note(*self._undefined(measure))

    def _undefined(self, measure: Measure) -> tuple[list[int], list[int]]:
        return [run.undefined(measure) for run in self.runs], [len(run.clients) for run in self.runs]

    def finals(self, metric: str) -> list[float]:
        """(runs,) a metric of the final models; NaN for runs that failed."""
        return [*(run.final(metric) for run in self.runs), *(math.nan for _ in self.failed)]

    def curve(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """A column of the history at the rounds that all runs evaluated.

        Returns:
            (R,) the rounds, and (runs, R) the values, NaN where they are not finite and for runs that failed.
        """
        import numpy as np

        return self._aligned([(run.history["round"], run.history[column].to_numpy(np.float64)) for run in self.runs])

    @property
    def certified(self) -> bool:
        """Whether every run has a column of duality gaps."""
        return all("gap" in run.history.columns for run in self.runs)

    def effective_clients(self) -> tuple[np.ndarray, np.ndarray]:
        """1/Σλ² at the rounds that all runs evaluated: N if λ is uniform, 1 if it is all on one client.

        Returns:
            (R,) the rounds, and (runs, R) the values.
        """
        import numpy as np

        series = []
        for run in self.runs:
            square = (run.lam.iloc[:, 1:].to_numpy(np.float64) ** 2).sum(1)
            found = 1 / np.where(square > 0, square, np.nan)
            series.append((run.lam.iloc[:, 0], found if run.effective is None else run.effective.to_numpy(np.float64)))
        return self._aligned(series)

    def _aligned(self, series: Sequence[tuple[Iterable[float], np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        import numpy as np

        lookups = [dict(zip(map(int, rounds), values, strict=True)) for rounds, values in series]
        shared = sorted(set.intersection(*(set(lookup) for lookup in lookups)))
        values = np.array([[lookup[r] for r in shared] for lookup in lookups], dtype=np.float64)
        # A mean over the seeds that worked would flatter the algorithm: failed seeds make it NaN.
        values = np.concatenate([values, np.full((len(self.failed), len(shared)), np.nan)])
        return np.array(shared, dtype=np.int64), np.where(np.isfinite(values), values, np.nan)


def group_runs(records: Sequence[RunRecord], failed: Sequence[FailedRun] = ()) -> list[Group]:
    """Group runs by algorithm, dataset, clients and configuration, in the order they were given.

    Two runs of one algorithm with other settings (DRFA with two step sizes) are two groups, not two seeds of one.
    Groups with failed runs come last.

    Args:
        records: the runs, at least one.
        failed: those beside them that left no results; they belong to the groups of their algorithm.
    """
    runs: dict[str, list[RunRecord]] = {}
    for record in records:
        settings = {name: text(record.summary, name) for name in ("algorithm", "dataset", "clients")}
        flat = flatten(record.config)
        settings |= {f"config.{name}": flat[name] for name in flat if name.rsplit(".", 1)[-1] not in INCIDENTAL}
        runs.setdefault(json.dumps(settings, sort_keys=True), []).append(record)

    # Name groups of one algorithm by the settings in which they differ.
    labels, every = [], [json.loads(key) for key in runs]
    for mine in every:
        rivals = [other for other in every if other["algorithm"] == mine["algorithm"]]
        names = dict.fromkeys(name for other in rivals for name in other)
        differing = [name for name in names if len({other.get(name) for other in rivals}) > 1]
        if "dataset" in differing:  # the configuration repeats it in other words
            differing = [name for name in differing if not name.startswith(("config.data", "config.dataset"))]
        parts = [f"{name.rsplit('.', 1)[-1]} {mine.get(name, 'default')}" for name in differing]
        label = clean(f"{mine['algorithm']} ({', '.join(parts)})" if parts else mine["algorithm"])
        # Labels that were cut at the same place would make one algorithm of two.
        labels.append(f"{label} (no. {len(labels) + 1})" if label in labels else label)

    styles = _styles([members[0].algorithm for members in runs.values()])
    groups = []
    for index, (label, (colour, dash), members) in enumerate(zip(labels, styles, runs.values(), strict=True)):
        ordered = tuple(sorted(members, key=lambda run: (len(run.seed), run.seed)))  # 2 before 10
        broken = tuple(run for run in failed if run.algorithm == ordered[0].algorithm)
        if broken:
            label = f"{label} ({len(broken)} of {len(broken) + len(ordered)} runs failed)"
        groups.append(Group(f"g{index}", label, colour, dash, ordered, broken))
    return sorted(groups, key=lambda group: bool(group.failed))


def at_one_seed(groups: Sequence[Group]) -> list[RunRecord]:
    """A run of each algorithm: at the first seed that all have, or each one's first."""
    # Reversed: of two runs at one seed the first one wins.
    seeds = [{run.seed: run for run in reversed(group.runs)} for group in groups]
    shared = next((run.seed for run in groups[0].runs if all(run.seed in own for own in seeds)), None)
    return [group.runs[0] if shared is None else own[shared] for group, own in zip(groups, seeds, strict=True)]


def which_seed(groups: Sequence[Group]) -> str:
    """Of which runs those of :func:`at_one_seed` are: "" where each algorithm has one, "seed 0", or "first seed"."""
    if all(len(group.runs) == 1 for group in groups):
        return ""
    seeds = {run.seed for run in at_one_seed(groups)}
    return f"seed {clean(seeds.pop(), 24)}" if len(seeds) == 1 else "first seed"


def lost_algorithms(groups: Sequence[Group], failed: Sequence[FailedRun]) -> list[str]:
    """The algorithms of which every run failed: "DRFA (all 5 runs failed)"."""
    known = {run.algorithm for group in groups for run in group.runs}
    lost = collections.Counter(run.algorithm for run in failed if run.algorithm not in known)
    return [f"{clean(name)} ({'its run' if n == 1 else f'all {n} runs'} failed)" for name, n in lost.items()]


def flatten(values: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Nested tables as one: {"local": {"lr": 0.1}} → {"local.lr": "0.1"}."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def _styles(algorithms: Sequence[str]) -> list[tuple[str, str]]:
    """A colour and dash each: its own for a known algorithm, spare ones for others and for second configurations."""
    styles: dict[int, tuple[str, str]] = {}
    # Known algorithms first, so that no spare style duplicates theirs.
    for index, algorithm in enumerate(algorithms):
        if algorithm in STYLES and STYLES[algorithm] not in styles.values():
            styles[index] = STYLES[algorithm]
    for index in range(len(algorithms)):
        if index not in styles:
            taken = set(styles.values())
            colours = {colour for colour, _ in taken}
            # Prefer an unused colour to one that only the dash distinguishes.
            fresh = [style for style in SPARE if style[0] not in colours]
            free = [style for style in SPARE if style not in taken]
            styles[index] = [*fresh, *free, *SPARE][0]
    return [styles[index] for index in range(len(algorithms))]
