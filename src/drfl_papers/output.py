"""The files of a reproduction: tables, figures, records and a summary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from drfl.core.csv_cells import csv_text
from drfl.core.errors import unknown
from drfl.experiments.run.artifacts import json_text
from drfl.experiments.run.measures import Interval, column
from drfl.training import figure_style
from drfl.training.history import ACCURACY_COLUMNS, DIGITS, LEDGER_COLUMNS
from drfl_papers import (
    convergence,
    cost_tables,
    energy_map,
    equal_gradients,
    equal_tables,
    heading,
    paired_tests,
    plots,
    rounds_to_target,
    tables,
)
from drfl_papers.convergence import error_curves
from drfl_papers.plan import CollectedRuns, Plan
from drfl_papers.records import EQUAL_COLUMNS, finals, runs
from drfl_papers.specification import Specification
from drfl_papers.tables import ResultTable, plain

OWN = ("algorithm", "algorithms", "parameters", "grid", "seed", "rounds")
"""Keys of a cell's job that belong to its method and not to the setting."""


def summary(collected: CollectedRuns, command: str) -> dict[str, object]:
    """Summarise a result in one object; the same records give the same object."""
    plan = collected.plan
    spec, scale = plan.spec, plan.scale
    results: dict[str, dict[str, object]] = {}
    extra: dict[str, object] = {}
    if spec.kind == "distance":
        for (setting, method), group in convergence.error_curves(collected).items():
            results.setdefault(setting, {})[method] = convergence.summary(group)
    else:
        for (setting, method), group in runs(collected).items():
            numbers: dict[str, object] = {
                "n": sum(run.has_ended for run in group),
                "diverged": sum(run.stopped == "diverged" for run in group),
                "refused": sum(run.stopped == "refused" for run in group),
                "rounds": [run.rounds for run in group],
            }
            # A failed run has no values, and means over the other seeds would flatter the method.
            for name in ACCURACY_COLUMNS if all(run.has_ended for run in group) else ():
                interval = Interval.of(list(finals(group, name).values()))
                named = {"mean": interval.mean, "half_width": interval.half, "std": interval.std}
                # The half width (of the 95 % t-interval) of a single run is NaN, which JSON does not have.
                numbers[name] = {key: None if math.isnan(x) else round(x, DIGITS) for key, x in named.items()}
            results.setdefault(setting, {})[method] = numbers
        if rounds_to_target.levels(spec):
            extra["targets"] = rounds_to_target.summary(collected)
    if spec.kind == "energy":
        extra["energy"] = energy_map.summary(collected)
    return {
        "name": spec.name,
        "paper": spec.paper,
        "title": spec.title,
        "kind": spec.kind,
        "note": spec.note,
        "stand_in": scale.stand_in,
        "stand_in_why": spec.stand_in.why if scale.stand_in and spec.stand_in is not None else None,
        "quick": scale.quick,
        "job": spec.job,
        "rounds": plan.rounds,
        "repeats": plan.repeats,
        "seeds": sorted({planned.seed for planned in plan.cells}),
        "settings": list(plan.settings),
        "jobs": {setting: common(plan, setting) for setting in plan.settings},
        "methods": {
            method.name: {
                "algorithm": method.algorithm,
                # Parameters of the first seed; `results` has the values that a distance cell chose from its grid.
                "parameters": {s: collected.records[s, method.name][0].get("parameters") for s in plan.settings},
            }
            for method in spec.methods
        },
        "hyperparameters": {name: file.get("provenance") for name, file in plan.hyperparameters.items()},
        "results": results,
        **extra,
        "device": scale.device,
        "versions": versions(collected),
        "command": command,
    }


def common(plan: Plan, setting: str) -> dict[str, object]:
    """Return the part of a setting's job that all its methods share."""
    jobs = [planned.cell.job for planned in plan.cells if planned.setting == setting]
    shared = (name for name in jobs[0] if name not in OWN)
    return {n: jobs[0][n] for n in shared if all(n in job and job[n] == jobs[0][n] for job in jobs)}


def versions(collected: CollectedRuns) -> dict[str, str]:
    """Collect the versions of Python and the packages; several if the cells ran with several."""
    by_package: dict[str, dict[str, None]] = {}
    for group in collected.records.values():
        for record in group:
            known = record["versions"]
            for name, version in known.items() if isinstance(known, Mapping) else ():
                by_package.setdefault(str(name), {})[str(version)] = None
    return {name: ", ".join(sorted(seen)) for name, seen in by_package.items()}


PLACE = ("setting", "method", "algorithm", "seed", "stopped", "rounds")
COLUMNS = (*PLACE, *ACCURACY_COLUMNS, *EQUAL_COLUMNS, *LEDGER_COLUMNS, "clients_per_round", "halved")
DISTANCE_COLUMNS = (*PLACE, "squared_distance", "chosen")

LEGENDS = {
    "curves": "Curves are means over the repeats; bands are the 95 % t-intervals of the means.",
    "scatter": "Points are means over the repeats; crosses are the 95 % t-intervals of the means.",
    "distance": "Curves are medians over the repeats; bands go from the minimum to the maximum.",
}
"""The meaning of a figure's marks if there are several repeats, by kind."""


def check(spec: Specification) -> None:
    """Make sure, before data are loaded, that the result can be drawn.

    Raises:
        InputError: If matplotlib is missing, or an axis or metric is unknown.
    """
    if spec.kind == "table":
        return
    figure_style.check()
    for panel in spec.panels if spec.kind in ("curves", "scatter") else ():
        column(panel.y)
        if spec.kind == "scatter":
            column(panel.x)
        elif panel.x not in plots.AXES:
            raise unknown("x axis", panel.x, plots.AXES, field="x")


def write(collected: CollectedRuns, folder: Path, command: str) -> None:
    """Fill an existing, empty folder; the same records give the same bytes.

    Raises:
        InputError: If a figure cannot be drawn because matplotlib is missing or an axis is unknown.
        OSError: If the folder cannot be written to.
    """
    spec, drawn, texts = collected.plan.spec, list[str](), dict[str, str]()
    if spec.kind == "distance":
        drawn = convergence.draw(collected, folder)
        algorithms = {method.name: method.algorithm for method in spec.methods}
        rows = []
        for (setting, method), group in error_curves(collected).items():
            for way in group:
                last = f"{way.errors[-1]:.6e}" if way.errors else ""
                chosen = " ".join(f"{name}={value:g}" for name, value in way.chosen.items())
                rounds = len(way.errors) - 1 if way.errors else 0
                rows.append([setting, method, algorithms[method], way.seed, way.stopped, rounds, last, chosen])
        texts |= {"cells.csv": csv_text(DISTANCE_COLUMNS, rows), "curves.csv": convergence.to_csv(collected)}
    else:
        plan, run_groups = collected.plan, runs(collected)
        texts["cells.csv"] = cells_csv(collected)
        if spec.kind == "energy":
            drawn, texts["energy.csv"] = energy_map.draw(collected, folder), energy_map.to_csv(collected)
        else:
            texts["paired.csv"] = paired_tests.to_csv(paired_tests.differences(plan, run_groups))
            together = paired_tests.over_settings(plan, run_groups)
            if together:
                texts["paired_over_settings.csv"] = paired_tests.to_csv(together)
            equal = equal_gradients.to_csv(plan, run_groups)
            if equal is not None:
                texts["equal_gradients.csv"] = equal
        if spec.kind in ("curves", "scatter"):
            drawn = plots.draw(collected, folder)
        if spec.kind == "curves":
            texts["curves.csv"] = plots.to_csv(collected)
        if rounds_to_target.levels(spec):
            texts["reached.csv"] = rounds_to_target.to_csv(collected)
    texts["summary.json"] = json_text(summary(collected, command), indent=2) + "\n"
    texts["table.md"] = markdown(collected, drawn)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


def contents(collected: CollectedRuns) -> tuple[ResultTable, ...]:
    """Make all tables of a result, in order."""
    plan = collected.plan
    if plan.spec.kind == "distance":
        return convergence.tables(collected)
    run_groups = runs(collected)
    last_models = (*tables.final(plan, run_groups), *equal_tables.tables(plan, run_groups))
    if plan.spec.kind == "energy":
        return (*energy_map.tables(collected), *rounds_to_target.tables(collected), *last_models)
    return (
        *rounds_to_target.tables(collected),
        *last_models,
        *paired_tests.tables(plan, run_groups),
        *cost_tables.tables(plan, run_groups),
        *equal_gradients.result_tables(plan, run_groups),
    )


def markdown(collected: CollectedRuns, drawn: list[str]) -> str:
    """Write `table.md`: the title, the data, the figures and the tables."""
    spec = collected.plan.spec
    parts = [f"# {plain(spec.title)} ({plain(spec.paper)})", *heading.sentences(collected.plan)]
    about = collected.plan.settings if len(drawn) > 1 else [spec.title]
    parts += [f"![{plain(what)}]({name}.png)" for what, name in zip(about, drawn, strict=False)]
    if drawn and collected.plan.repeats > 1 and spec.kind in LEGENDS:
        parts.append(LEGENDS[spec.kind] + (" Dashed lines are the targets." if spec.targets else ""))
    return "\n\n".join([*parts, *(table.markdown().rstrip("\n") for table in contents(collected))]) + "\n"


def cells_csv(collected: CollectedRuns) -> str:
    """Write `cells.csv` of a training result, one row per run; accuracies are fractions."""
    algorithms = {method.name: method.algorithm for method in collected.plan.spec.methods}
    rows = []
    for (setting, method), group in runs(collected).items():
        for run in group:
            values: list[object] = [""] * (len(COLUMNS) - len(PLACE))
            if run.has_ended:
                metrics = (f"{run.final[name]:.{DIGITS}f}" for name in ACCURACY_COLUMNS)
                equal = (f"{run.equal[name]:.{DIGITS}f}" if run.equal else "" for name in EQUAL_COLUMNS)
                ledger = (int(run.final[name]) for name in LEDGER_COLUMNS)
                values = [*metrics, *equal, *ledger, f"{run.clients:.3f}", run.halved]
            rows.append([setting, method, algorithms[method], run.seed, run.stopped, run.rounds, *values])
    return csv_text(COLUMNS, rows)
