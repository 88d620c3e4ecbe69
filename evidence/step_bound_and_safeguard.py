"""Measure the step bound without attackers, also with too large a step size, for the methods of SCAFF-PD's Table 3.

    python evidence/step_bound_and_safeguard.py [--data-dir DIR] [--smoke]

Each method runs at seed 0 with one and four times the step size that drfl finds, without and with the bound. Four times
is too large: the local steps of an honest client diverge, and drfl lowers the step size. Without the bound it does so
after the loss has risen, with the bound in the same round. The script writes
results/step_bound_unchanged/with_and_without.csv.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import cast

import script
from drfl.core.csv_cells import csv_text
from drfl.experiments.execution.training_cells import train
from drfl_papers.plan import Scale, plan
from drfl_papers.specification import load_spec

NAME = "scaffpd-table-3"
RESULTS = Path(__file__).parent / "results" / "step_bound_unchanged"
BOUNDS = (0.0, 100.0)
"""No bound, and the default."""
FACTORS = (1, 4)
"""Multiples of 1/L̂."""
SHOWN = ("avg_accuracy", "worst20_accuracy", "bytes_up")
CHANGES, METHODS = script.sized(({}, None), ({"rounds": 1, "feature_count": 20}, 1))
"""Settings that differ from the table, and the number of its methods to run (None = all)."""


def rows(method: str, job: Mapping[str, object], data_dir: Path | None) -> list[list[object]]:
    """Run a method and return a row for each step size and bound."""
    logging.getLogger("drfl").setLevel(logging.ERROR)
    found, algorithm = [], cast("str", job["algorithm"])
    parameters = cast("Mapping[str, Mapping[str, object]]", job["algorithms"])[algorithm]
    for factor, bound in itertools.product(FACTORS, BOUNDS):
        own = {**parameters, "lr_schedule": f"constant:factor={factor}"}
        record = train({**job, "algorithms": {algorithm: own}, "step_bound": bound, **CHANGES}, data_dir)
        last = cast("list[Mapping[str, object]]", record["rows"])[-1]
        found.append([method, factor, f"{bound:g}", record["halved"], *(last[name] for name in SHOWN)])
    return found


def main() -> None:
    """Run all methods, and write the table."""
    options = script.parser(__doc__, RESULTS, data=True).parse_args()
    cells = plan(load_spec(NAME), Scale(repeats=1, stand_in=True)).cells[:METHODS]
    work = [(planned.method, dict(planned.cell.job), options.data_dir) for planned in cells]
    with get_context("spawn").Pool(2) as pool:
        found = pool.starmap(rows, work, chunksize=1)
    text = csv_text(("method", "factor", "step_bound", "halved", *SHOWN), [row for own in found for row in own])
    script.store(options.out, {"with_and_without.csv": text})


if __name__ == "__main__":
    main()
