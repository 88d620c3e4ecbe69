"""A table or figure in one object: what ran, on what, with which parameters, and what came out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from drfl.experiments.reproduce import convergence, reached
from drfl.experiments.reproduce.measures import Interval
from drfl.experiments.reproduce.plan import Collected, Plan
from drfl.experiments.reproduce.runs import Run, finals, runs
from drfl.history import DIGITS, Metrics

OWN = ("algorithm", "algorithms", "parameters", "grid", "seed", "rounds")
"""What a cell's job has of its method, and not of the setting."""


def summary(collected: Collected, command: str) -> dict[str, object]:
    """Everything in one object; the same records give the same.

    Args:
        collected: what ran.
        command: that makes it.
    """
    plan = collected.plan
    spec, scale = plan.spec, plan.scale
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
            m.name: {"algorithm": m.algorithm, "parameters": _parameters(collected, m.name)} for m in spec.methods
        },
        "hyperparameters": (plan.hyperparameters or {}).get("provenance"),
        "results": _distances(collected) if spec.kind == "distance" else _results(collected),
        **_extra(collected),
        "device": scale.device,
        "versions": versions(collected),
        "command": command,
    }


def common(plan: Plan, setting: str) -> dict[str, object]:
    """The job of a setting: what all its methods share."""
    jobs = [planned.cell.job for planned in plan.cells if planned.setting == setting]
    shared = (name for name in jobs[0] if name not in OWN)
    return {n: jobs[0][n] for n in shared if all(n in job and job[n] == jobs[0][n] for job in jobs)}


def versions(collected: Collected) -> dict[str, str]:
    """Of Python and the packages, by the records; several where cells were run with several."""
    found: dict[str, dict[str, None]] = {}
    for group in collected.records.values():
        for record in group:
            known = record["versions"]
            for name, version in known.items() if isinstance(known, Mapping) else ():
                found.setdefault(str(name), {})[str(version)] = None
    return {name: ", ".join(sorted(seen)) for name, seen in found.items()}


def _parameters(collected: Collected, method: str) -> dict[str, object]:
    """By setting, those of the first seed; what a distance cell chose from its grid is among the results."""
    return {s: collected.records[s, method][0].get("parameters") for s in collected.plan.settings}


def _results(collected: Collected) -> dict[str, object]:
    found: dict[str, dict[str, object]] = {}
    for (setting, method), group in runs(collected).items():
        found.setdefault(setting, {})[method] = _place(group)
    return {**found}


def _place(group: Sequence[Run]) -> dict[str, object]:
    """Means over the seeds that came to their end; half_width is that of the 95 % t-interval."""
    ended = [run for run in group if run.ended]
    return {
        "n": len(ended),
        "diverged": sum(run.stopped == "diverged" for run in group),
        "refused": sum(run.stopped == "refused" for run in group),
        "rounds": [run.rounds for run in group],
        **({name: _interval(list(finals(ended, name).values())) for name in Metrics._fields} if ended else {}),
    }


def _interval(values: Sequence[float]) -> dict[str, float | None]:
    interval = Interval.of(values)
    named = {"mean": interval.mean, "half_width": interval.half, "std": interval.std}
    return {name: None if math.isnan(value) else round(value, DIGITS) for name, value in named.items()}


def _distances(collected: Collected) -> dict[str, object]:
    found: dict[str, dict[str, object]] = {}
    for (setting, method), group in convergence.ways(collected).items():
        found.setdefault(setting, {})[method] = convergence.summary(group)
    return {**found}


def _extra(collected: Collected) -> dict[str, object]:
    """Rounds to the targets, and an energy map's constants, where there are any."""
    spec = collected.plan.spec
    if spec.kind == "distance":
        return {}
    extra: dict[str, object] = {}
    if reached.levels(spec):
        extra["targets"] = reached.summary(collected)
    if spec.kind == "energy":
        from drfl.experiments.reproduce import energymap

        extra["energy"] = energymap.summary(collected)
    return extra
