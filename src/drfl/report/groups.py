"""Groups of runs that differ only in their seed; each group has one colour throughout a report."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drfl.core.errors import InputError
from drfl.core.run_end import untrained_runs
from drfl.report.formatting import clean
from drfl.report.read_run import FailedRun, RunRecord, text
from drfl.task.measure import Measure, undefined_note, undefined_share

if TYPE_CHECKING:
    import numpy as np


# Okabe and Ito's palette, which readers with any colour vision can distinguish, on white and on black. An algorithm has
# the same colour in every report; related algorithms share a colour and differ in the dash.
GREY, ORANGE, SKY, GREEN = "#808791", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PINK = "#2A7FC0", "#D55E00", "#CC79A7"  # blue lightened from #0072B2 for dark backgrounds
MARKS = {
    GREY: "circle", ORANGE: "square", SKY: "diamond", GREEN: "up", BLUE: "down", VERMILION: "cross", PINK: "bar",
}  # fmt: skip
"""Shape of the marks of each colour, for readers who cannot see colours."""
STYLES = {
    "FedAvg": (GREY, "solid"),
    "FedProx": (GREY, "dash"),
    "FedNova": (GREY, "dot"),
    "SCAFFOLD": (GREEN, "solid"),
    "FedDyn": (GREEN, "dash"),
    "QFedAvg": (PINK, "solid"),
    "AFL": (PINK, "dash"),
    "DeltaFL": (PINK, "dot"),
    "TERM": (PINK, "dashdot"),
    "PropFair": (GREEN, "dot"),
    "FedMGDAPlus": (GREEN, "dashdot"),
    "AAggFFS": (GREY, "dashdot"),
    "DRFA": (ORANGE, "solid"),
    "DRFAProx": (ORANGE, "dash"),
    "DRFAGA": (ORANGE, "dot"),
    "ScaffPD": (SKY, "solid"),
    "DRDM": (VERMILION, "solid"),
    "DualDRDM": (BLUE, "solid"),
}
SPARE = [
    (colour, dash)
    for dash in ("solid", "dash", "dot", "dashdot", "longdash", "dashdotdot")
    for colour in (BLUE, ORANGE, GREEN, PINK, VERMILION, SKY, GREY)
]

NO_EFFECT = ("data_dir", "table_dir", "strict", "checkpoint_every", "checkpoint_key")
"""Settings that do not affect the results."""

INCIDENTAL = frozenset((*NO_EFFECT, "seed", "device", "engine", "threads", "certificate"))
"""Settings in which runs of one configuration may differ."""


OWN_MODELS = "own models"
"""Part of the label of an algorithm with which each client is tested with its own model."""


@dataclass(frozen=True, eq=False)
class Group:
    """The runs of one algorithm with one configuration, one run per seed.

    Args:
        key: Identifier that is safe in HTML attributes.
        name: The algorithm, with the settings that distinguish it from others of the same name.
        colour: Colour as "#rrggbb".
        dash: Dash of its line, one of :data:`drfl.report.svg.DASHES`.
        runs: At least one run, ordered by seed.
        failed: Runs that left no results. If there are any, statistics over seeds have no value: the algorithm happens
            to work at the other seeds, and their mean would be biased.
    """

    key: str
    name: str
    colour: str
    dash: str
    runs: tuple[RunRecord, ...]
    failed: tuple[FailedRun, ...] = ()

    @property
    def label(self) -> str:
        """Its name, and how many of its runs failed."""
        n = len(self.failed)
        return f"{self.name} ({n} of {n + len(self.runs)} runs failed)" if n else self.name

    @property
    def mark(self) -> str:
        """Shape of its marks, one of :data:`drfl.report.svg.MARKS`."""
        return MARKS[self.colour]

    @property
    def seeds(self) -> str:
        """Number of seeds as text: "14", or "12 of 14" if the others failed."""
        n = len(self.runs)
        return f"{n} of {n + len(self.failed)}" if self.failed else str(n)

    @property
    def stopped_on_test(self) -> bool:
        """Whether test rows stopped any of the runs."""
        return any(run.stopped_on_test for run in self.runs)

    @property
    def untrained(self) -> str:
        """Which runs returned the initial model, see :func:`drfl.core.run_end.untrained_runs`; "" if none did."""
        return untrained_runs((self.label, clean(run.seed, 24), run.marks) for run in self.runs).get(self.label, "")

    @property
    def is_reference(self) -> bool:
        """Whether it is a reference: not federated, to show the costs and gains of federation."""
        return self.runs[0].is_reference

    @property
    def is_personal(self) -> bool:
        """Whether each client is tested with its own model."""
        return self.runs[0].is_personal

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The measures, the score first."""
        return self.runs[0].measures

    @property
    def score(self) -> Measure:
        """The measure of how well a client is served."""
        return self.measures[0]

    @property
    def clients(self) -> int:
        """Largest number of clients in a run."""
        return max(len(run.clients) for run in self.runs)

    def undefined(self, measure: Measure) -> str:
        """Return the share of clients with a measure undefined, see :func:`drfl.task.measure.undefined_share`."""
        return undefined_share(*self._undefined(measure))

    def note(self, measure: Measure) -> str:
        """Return the note on undefined clients after a statistic, see :func:`drfl.task.measure.undefined_note`."""
        return undefined_note(*self._undefined(measure))

    def _undefined(self, measure: Measure) -> tuple[list[int], list[int]]:
        return [run.undefined(measure) for run in self.runs], [len(run.clients) for run in self.runs]

    def finals(self, metric: str) -> list[float]:
        """Return a metric (runs,) of the final models; NaN for runs that failed."""
        return [*(run.final(metric) for run in self.runs), *(math.nan for _ in self.failed)]

    def curve(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a column of the history at the rounds that all runs evaluated.

        Returns:
            (R,) The rounds, and (runs, R) the values, NaN for values that are not finite and for runs that failed.
        """
        import numpy as np

        return self._aligned([(run.history["round"], run.history[column].to_numpy(np.float64)) for run in self.runs])

    @property
    def has_certificate(self) -> bool:
        """Whether every run has a column of duality gaps."""
        return all("gap" in run.history.columns for run in self.runs)

    def effective_clients(self) -> tuple[np.ndarray, np.ndarray]:
        """Compute 1/Σλ² at the rounds that all runs evaluated: N if λ is uniform, 1 if one client has all the weight.

        Returns:
            (R,) The rounds, and (runs, R) the values.
        """
        import numpy as np

        series = []
        for run in self.runs:
            square = (run.lam.iloc[:, 1:].to_numpy(np.float64) ** 2).sum(1)
            effective = 1 / np.where(square > 0, square, np.nan)
            series.append(
                (run.lam.iloc[:, 0], effective if run.effective is None else run.effective.to_numpy(np.float64))
            )
        return self._aligned(series)

    def _aligned(self, series: Sequence[tuple[Iterable[float], np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        import numpy as np

        lookups = [dict(zip(map(int, rounds), values, strict=True)) for rounds, values in series]
        # A mean over a changing set of seeds would jump where a run has no value.
        shared = sorted(set.intersection(*(set(lookup) for lookup in lookups)))
        values = np.array([[lookup[r] for r in shared] for lookup in lookups], dtype=np.float64)
        # Failed seeds make means NaN: a mean over the other seeds would flatter the algorithm.
        values = np.concatenate([values, np.full((len(self.failed), len(shared)), np.nan)])
        return np.array(shared, dtype=np.int64), np.where(np.isfinite(values), values, np.nan)


def group_runs(records: Sequence[RunRecord], failed: Sequence[FailedRun] = ()) -> list[Group]:
    """Group runs by algorithm, data set, clients and configuration, in the order in which they were given.

    Two runs of one algorithm with different settings (DRFA with two step sizes) are two groups, not two seeds of one
    group. Groups with failed runs come last.

    Args:
        records: The runs, at least one.
        failed: Further runs that left no results; they belong to the groups of their configuration.

    Raises:
        InputError: If two runs have the same configuration and seed.
    """
    runs = [configuration for configuration in _configurations(records, failed) if configuration.runs]
    # A known algorithm has its own colour and dash in every report. These are assigned first, so that no spare style
    # duplicates them.
    styles: dict[int, tuple[str, str]] = {}
    for index, configuration in enumerate(runs):
        style = STYLES.get(configuration.settings["algorithm"])
        if style is not None and style not in styles.values():
            styles[index] = style
    for index in range(len(runs)):
        if index not in styles:
            taken = set(styles.values())
            colours = {colour for colour, _ in taken}
            # Prefer an unused colour to a used colour with another dash.
            fresh = [style for style in SPARE if style[0] not in colours]
            free = [style for style in SPARE if style not in taken]
            styles[index] = [*fresh, *free, *SPARE][0]

    groups = []
    for index, configuration in enumerate(runs):
        ordered = tuple(sorted(configuration.runs, key=lambda run: (len(run.seed), run.seed)))  # seed 2 before seed 10
        groups.append(Group(f"g{index}", configuration.name, *styles[index], ordered, tuple(configuration.failed)))
    return sorted(groups, key=lambda group: bool(group.failed))


@dataclass(eq=False)
class _Configuration:
    """The runs with the same settings, some of which may have failed, and their name in reports."""

    settings: dict[str, str]
    runs: list[RunRecord] = field(default_factory=list)
    failed: list[FailedRun] = field(default_factory=list)
    name: str = ""


def _configurations(records: Sequence[RunRecord], failed: Sequence[FailedRun]) -> list[_Configuration]:
    """Return the configurations with runs, then those whose runs all failed; see :func:`group_runs`."""
    found: dict[str, _Configuration] = {}
    firsts: dict[tuple[str, str], RunRecord] = {}
    for record in records:
        settings = {name: text(record.summary, name) for name in ("algorithm", "dataset", "clients")}
        settings["own_models"] = str(record.is_personal)
        settings |= _settings_of(record.config)
        # Sort the keys: the order in which a file lists settings does not matter.
        key = json.dumps(settings, sort_keys=True)
        first = firsts.setdefault((key, record.seed), record)
        if first is not record:
            pair = " and ".join(str(run.directory or run.label) for run in (first, record))
            raise InputError(
                f"{pair} have the same configuration and seed {record.seed}: pass only one",
                code="given-twice",
                field=str(record.directory or record.label),
            )
        found.setdefault(key, _Configuration(settings)).runs.append(record)
    known = list(found.values())
    for run in failed:
        own = _settings_of(run.config)
        same = [c for c in known if c.settings["algorithm"] == run.algorithm and _is_same(own, c.settings)]
        if not same:
            settings = {"algorithm": run.algorithm, **own}
            same = [found.setdefault(json.dumps(settings, sort_keys=True), _Configuration(settings))]
        for configuration in same:
            configuration.failed.append(run)
    labels: set[str] = set()
    for i, mine in enumerate(found.values(), 1):
        # Name configurations of one algorithm by the settings in which they differ. Failed runs may lack some.
        rivals = [other for other in found.values() if other.settings["algorithm"] == mine.settings["algorithm"]]
        names = dict.fromkeys(name for other in rivals for name in other.settings if name != "own_models")
        values = {n: {o.settings.get(n) for o in rivals if o.runs or n in o.settings} for n in names}
        differing = [name for name in names if len(values[name]) > 1 and (mine.runs or name in mine.settings)]
        if "dataset" in differing:  # the configuration repeats the data set under other names
            differing = [name for name in differing if not name.startswith(("config.data", "config.dataset"))]
        parts = [f"{name.rsplit('.', 1)[-1]} {mine.settings.get(name, 'default')}" for name in differing]
        parts = [OWN_MODELS, *parts] if mine.settings.get("own_models") == "True" else parts
        algorithm = mine.settings["algorithm"]
        label = clean(f"{algorithm} ({', '.join(parts)})" if parts else algorithm)
        # Number labels that became equal by cutting, so that two algorithms do not look like one.
        mine.name = f"{label} (no. {i})" if label in labels else label
        labels.add(mine.name)
    return list(found.values())


def _settings_of(config: Mapping[str, object]) -> dict[str, str]:
    flat = flatten(config)
    return {f"config.{name}": str(flat[name]) for name in flat if name.rsplit(".", 1)[-1] not in INCIDENTAL}


def _is_same(failed: Mapping[str, str], settings: Mapping[str, str]) -> bool:
    """Return whether a failed run has the configuration of another run, or its own is unknown."""
    names = [name for name in {*failed, *settings} if name.startswith("config.") and not name.startswith(CODE)]
    # A failed run may lack the default size of the cohort, which depends on the data.
    known = (name for name in names if name in failed or not name.endswith(".m"))
    return not failed or all(failed.get(name) == settings.get(name) for name in known)


CODE = "config.files."
"""Prefix of the digests of the user's code, of which the file of a comparison has those of all algorithms."""


def kinds_of_models(groups: Sequence[Group]) -> list[list[Group]]:
    """Divide the competitors into those with one global model and those with clients' own models, without empty parts.

    Only algorithms of one kind can be ranked: an own model serves one client, a global model all of them.
    """
    competitors = [group for group in groups if not group.is_reference]
    kinds = ([group for group in competitors if group.is_personal is own] for own in (False, True))
    return [kind for kind in kinds if kind]


def runs_at_one_seed(groups: Sequence[Group]) -> list[RunRecord]:
    """Return one run of each algorithm: at the first seed that all have, or each one's first run."""
    # Iterate in reverse, so that the first of two runs at one seed wins.
    seeds = [{run.seed: run for run in reversed(group.runs)} for group in groups]
    shared = next((run.seed for run in groups[0].runs if all(run.seed in by_seed for by_seed in seeds)), None)
    return [group.runs[0] if shared is None else by_seed[shared] for group, by_seed in zip(groups, seeds, strict=True)]


def which_seed(groups: Sequence[Group]) -> str:
    """Name the seed of :func:`runs_at_one_seed`: "" if each algorithm has one run, "seed 0", or "first seed"."""
    if all(len(group.runs) == 1 for group in groups):
        return ""
    seeds = {run.seed for run in runs_at_one_seed(groups)}
    return f"seed {clean(seeds.pop(), 24)}" if len(seeds) == 1 else "first seed"


def lost_algorithms(groups: Sequence[Group], failed: Sequence[FailedRun]) -> list[str]:
    """List the configurations whose runs all failed, such as "DRFA (all 5 runs failed)"."""
    configurations = _configurations([run for group in groups for run in group.runs], failed)
    lost = [(c.name, len(c.failed)) for c in configurations if not c.runs]
    return [f"{name} ({'its run' if n == 1 else f'all {n} runs'} failed)" for name, n in lost]


def flatten(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flatten nested tables: {"local": {"lr": 0.1}} → {"local.lr": 0.1}."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
