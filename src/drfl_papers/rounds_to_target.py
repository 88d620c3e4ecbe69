"""The number of rounds that the methods take to reach a level."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from drfl.core.csv_cells import csv_text
from drfl.experiments.run.measures import Interval, column
from drfl.task.measure import NOTHING
from drfl_papers.plan import CollectedRuns
from drfl_papers.records import Run, runs
from drfl_papers.specification import Energy, Specification, TargetLevel
from drfl_papers.tables import ResultTable, TableEntry

COLUMNS = ("setting", "method", "seed", "metric", "target", "round", "iterations", "bytes")


class TargetReached(NamedTuple):
    """The first evaluated round at which a run reaches a level, with a client's local steps and all bytes so far."""

    round: int
    iterations: int
    bytes: int


def levels(spec: Specification) -> tuple[TargetLevel, ...]:
    """Return the levels of a specification: its targets, and an energy map's worst accuracy."""
    targets = list(spec.targets)
    if spec.energy is not None and energy_target(spec.energy) not in targets:
        targets.append(energy_target(spec.energy))
    return tuple(targets)


def energy_target(energy: Energy) -> TargetLevel:
    """Return the target whose energy is counted."""
    return TargetLevel(metric="worst_accuracy", value=energy.target)


def first_reached(run: Run, target: TargetLevel) -> TargetReached | None:
    """Find when a run first reaches a level (at most it, if smaller values are better); None if it never does."""
    small = column(target.metric).small
    for point in run.points:
        value = point.values[target.metric]
        if value <= target.value if small else value >= target.value:
            return TargetReached(point.round, point.round * run.steps, int(point.bytes))
    return None


def tables(collected: CollectedRuns) -> tuple[ResultTable, ...]:
    """Make one table per target and setting, with a note below the last; none without a target."""
    spec, run_groups = collected.plan.spec, runs(collected)
    if not levels(spec):
        return ()
    shown = []
    for target, setting in itertools.product(levels(spec), collected.plan.settings):
        # The paper gives rounds only for the first target.
        papers = spec.reached if spec.targets and target == spec.targets[0] else {}
        rows = []
        for method in spec.methods:
            group = run_groups[setting, method.name]
            arrivals = [first_reached(run, target) for run in group]
            each = []
            for run, arrival in zip(group, arrivals, strict=True):
                missing = NOTHING if run.has_ended else run.stopped
                each.append(str(arrival.round) if arrival else missing)
            texts = [method.name, ", ".join(each), _mean([a and a.round for a in arrivals])]
            if papers:
                texts.append(str(papers.get(method.name, NOTHING)))
            rows.append(tuple(map(TableEntry, [*texts, _mean([a and a.iterations for a in arrivals])])))
        column_of = column(target.metric)
        unit = f" {column_of.unit}" if column_of.unit else ""
        sign = "≤" if column_of.small else "≥"
        title = f"Rounds to {column_of.name} {sign} {column_of.scale * target.value:.4g}{unit}"
        if len(collected.plan.settings) > 1:
            title += f", {setting}"
        paper = ["paper's rounds"] if papers else []
        header = ("method", "rounds per seed", "rounds", *paper, "local iterations")
        shown.append(ResultTable(title, header, tuple(rows)))
    every = "after every round" if spec.evaluate_every == 1 else f"every {spec.evaluate_every} rounds"
    note = (
        f"The first evaluated round at the level; models are evaluated {every}. {NOTHING} means: not reached within "
        "the rounds run. Means ± half the width of their 95 % t-intervals, if every seed reached the level."
    )
    *most, last = shown
    return (*most, replace(last, notes=(note,)))


def to_csv(collected: CollectedRuns) -> str:
    """Format every seed's first round at every level as CSV text; empty fields if the level is never reached."""
    run_groups = runs(collected)
    lines = []
    for target in levels(collected.plan.spec):
        for (setting, method), group in run_groups.items():
            for run in group:
                reached = first_reached(run, target)
                lines.append([setting, method, run.seed, target.metric, target.value, *(reached or ("", "", ""))])
    return csv_text(COLUMNS, lines)


def summary(collected: CollectedRuns) -> list[dict[str, object]]:
    """Summarise the rounds to every level, by setting and method, per seed; None if the level is never reached."""
    run_groups = runs(collected)
    return [
        {
            "metric": target.metric,
            "value": target.value,
            "rounds": {
                setting: {
                    method.name: [
                        hit and hit.round
                        for hit in (first_reached(run, target) for run in run_groups[setting, method.name])
                    ]
                    for method in collected.plan.spec.methods
                }
                for setting in collected.plan.settings
            },
        }
        for target in levels(collected.plan.spec)
    ]


def _mean(values: Sequence[int | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return NOTHING
    if len(known) < len(values):
        return f"{len(known)} of {len(values)} seeds"
    return Interval.of(known).text(1 if len(known) > 1 else 0)
