"""Repeat the runs whose step size is too large for some client, with the earlier and the present safeguard.

    python evidence/oscillating_runs.py --data-dir DIR [--jobs 2] [--only NAMES] [--smoke]

These are the runs of the papers' tables and figures that differ with and without the bound on updates, see
step_bound_unchanged.py. Each runs at the first seed with ``safeguard="start"``, which restarts from the initial model
after the loss has risen far above it, and with ``"best"``, the default. The script writes
results/oscillating_runs/runs.csv and skips the runs that it already contains.
"""

from __future__ import annotations

import csv
import json
import logging
import os
from pathlib import Path
from typing import NamedTuple

import kept
import script
from drfl.experiments.execution.training_cells import train
from drfl.experiments.run.artifacts import versions
from drfl.training.history import ACCURACY_COLUMNS, DIGITS
from drfl_papers.plan import Scale, plan
from drfl_papers.specification import load_spec

HERE = Path(__file__).parent
STORED, RESULTS = HERE / "results", HERE / "results" / "oscillating_runs"
RULES = ("start", "best")
CHANGES, COUNT = script.sized(({}, None), ({"rounds": 1}, 1))
"""Settings that differ from the table, and the number of runs (None = all)."""
COLUMNS = (
    "job", "setting", "method", "seed", "safeguard", "stopped", "halved", "rollbacks", "effective_rounds",
    *ACCURACY_COLUMNS,
)  # fmt: skip


class OscillatingRun(NamedTuple):
    """A run with one of the safeguards; ``cell`` is the job of a training cell."""

    cell: dict[str, object]
    safeguard: str


def chosen(names: list[str]) -> dict[kept.Key, OscillatingRun]:
    """The runs of some tables and figures, by the first columns of their rows."""
    with (STORED / "step_bound_unchanged/differences.csv").open(encoding="utf-8", newline="") as file:
        differ = [row for row in csv.DictReader(file) if row["job"] in names][:COUNT]
    found = {}
    for name in dict.fromkeys(row["job"] for row in differ):
        summary = json.loads((STORED / name / "summary.json").read_text(encoding="utf-8"))
        cells = plan(load_spec(name), Scale(repeats=1, rounds=None, stand_in=summary["stand_in"])).cells
        jobs = {(planned.setting, planned.method): dict(planned.cell.job) for planned in cells}
        for row in differ:
            if row["job"] == name:
                job = {**jobs[row["setting"], row["method"]], **CHANGES}
                for rule in RULES:
                    key = (name, row["setting"], row["method"], "0", rule)
                    found[key] = OscillatingRun({**job, "safeguard": rule}, rule)
    return found


def measured(run: OscillatingRun) -> list[str]:
    """The columns after the key."""
    logging.getLogger("drfl").setLevel(logging.ERROR)
    record = train(run.cell, None)
    rows = record["rows"]
    assert isinstance(rows, list)
    ends = [f"{rows[-1][name]:.{DIGITS}f}" if rows else "" for name in ACCURACY_COLUMNS]
    return [*(str(record.get(name, "")) for name in ("stopped", "halved", "rollbacks", "effective_rounds")), *ends]


def start() -> None:
    """Do nothing, because each run reads its data."""


def main() -> None:
    """Run the missing runs."""
    with (STORED / "step_bound_unchanged/differences.csv").open(encoding="utf-8", newline="") as file:
        names = dict.fromkeys(row["job"] for row in csv.DictReader(file))
    parser = script.parser(__doc__, RESULTS, data=True)
    parser.add_argument("--jobs", type=int, default=script.sized(2, 1))
    parser.add_argument("--only", default=",".join(names), help="tables and figures, with commas between")
    options = parser.parse_args()
    os.environ |= {"DRFL_DATA": str(options.data_dir), "OMP_NUM_THREADS": "1"}
    runs = chosen(options.only.split(","))
    kept.fill(options.out / "runs.csv", COLUMNS, runs, measured, kept.Workers(options.jobs, start, ()))
    about = {"command": "python evidence/oscillating_runs.py --data-dir DIR", "seed": 0, "device": "cpu"}
    script.store(options.out, {"summary.json": {**about, "versions": versions()}})


if __name__ == "__main__":
    main()
