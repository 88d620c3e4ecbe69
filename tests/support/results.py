"""Make records by hand, and the results that they give."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from drfl.experiments.execution.records import Record
from drfl.training.history import Metrics
from drfl_papers.plan import CollectedRuns, Plan, Scale, collect, plan
from drfl_papers.records import Runs, runs
from drfl_papers.specification import Specification

VERSIONS = {"python": "3.11", "drfl": "0.1.0"}
KILO = 1000
"""Bytes sent up, and bytes sent down, in a round."""


def metrics(worst: float) -> Metrics:
    """Return metrics that follow from the worst accuracy."""
    return Metrics(worst + 0.1, worst, 0.05 - worst / 50, worst + 0.02, worst + 0.2, 1 - worst, 2 - worst)


def trained(*worst: float, every: int = 1, steps: int = 2, stopped: str = "rounds") -> Record:
    """Return a training record with these worst accuracies at rounds 0, `every`, 2·`every`, …"""
    rows = [
        {
            "round": k * every,
            **metrics(value).as_dict("accuracy"),
            "bytes_up": k * every * KILO,
            "bytes_down": k * every * KILO,
            "gradient_evaluations": k * every * steps * 10,
        }
        for k, value in enumerate(worst)
    ]
    parameters = {"lr": 0.1, "steps": steps}
    rounds = (len(worst) - 1) * every if worst else 0
    return {"stopped": stopped, "rounds": rounds, "rows": rows, "parameters": parameters, "versions": VERSIONS}


def broken(how: str = "diverged", steps: int = 2) -> Record:
    """Return the record of a failed run."""
    return trained(stopped=how, steps=steps)


def approached(errors: Sequence[float], stopped: str = "rounds") -> Record:
    """Return a distance record with these squared distances at rounds 0, 1, 2, …"""
    return {
        "stopped": stopped,
        "rounds": len(errors) - 1,
        "errors": list(errors),
        "chosen": {"reach": 0.5},
        "parameters": {"lr": 0.1},
        "versions": VERSIONS,
    }


def of(collected: CollectedRuns) -> tuple[Plan, Runs]:
    """Return the input of the tables of last models."""
    return collected.plan, runs(collected)


def results(
    spec: Specification, record: Callable[[str, str, int], Record], scale: Scale | None = None
) -> CollectedRuns:
    """Return the runs of a specification whose cells have the records of (setting, method, seed)."""
    planned = plan(spec, scale or Scale())
    return collect(planned, {c.cell.key: record(c.setting, c.method, c.seed) for c in planned.cells})
