"""A specification that runs in a second."""

from __future__ import annotations

from drfl_papers.specification import Specification, parse

SMALL = {
    "name": "small-table-1",
    "paper": "A paper (2020), Table 1",
    "title": "Two algorithms on digits",
    "job": {"dataset": "digits", "clients": 4, "cohort": 3, "steps": 2, "engine": "loop"},
    "rounds": 3,
    "repeats": 2,
    "evaluate_every": 2,
    "quick": {"rounds": 1, "repeats": 1},
    "settings": [{"name": "α = 0.1", "job": {"alpha": 0.1}}, {"name": "α = 0.5", "job": {"alpha": 0.5}}],
    "methods": [
        {"name": "DRDM", "algorithm": "DRDM", "parameters": {"mu": 1.0}},
        {"name": "Fed-Avg", "algorithm": "FedAvg"},
    ],
    "values": {"α = 0.1": {"DRDM": [90.31, 84.81, 2.96], "Fed-Avg": [88.46, 80.7, 3.93]}},
}


def small_spec(**changes: object) -> Specification:
    """Return the specification with changed keys."""
    return parse({**SMALL, **changes})
