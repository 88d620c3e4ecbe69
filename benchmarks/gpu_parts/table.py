"""One seed of DRDM's Table 1 on kmnist-t10k at α = 0.1: seconds and accuracies of each method."""

from __future__ import annotations

import time
from pathlib import Path

from jobs import script

from drfl_papers.execute import run_cell
from drfl_papers.plan import Scale, plan
from drfl_papers.specification import load_spec
from gpu_parts.report import Report

RUNS = 4 * 10
"""The whole table has four settings and ten seeds."""


def measure(report: Report, data_dir: Path | None) -> None:
    """Run the methods, one after another."""
    rounds = script.sized(100, 1)
    scale = Scale(rounds=rounds, repeats=1, settings=("α = 0.1",), stand_in=True, device=report.device)
    cells, seconds = plan(load_spec("drdm-table-1"), scale).cells, 0.0
    for planned in cells[: script.sized(None, 2)]:
        if report.is_over:
            break
        start = time.perf_counter()
        record = run_cell(planned.cell, data_dir)
        taken = time.perf_counter() - start
        seconds += taken
        last = record["rows"][-1]
        metrics = {name: last.get(name) for name in ("avg_accuracy", "worst_accuracy", "std_accuracy")}
        report.add(method=planned.method, seconds=round(taken, 2), stopped=record["stopped"], **metrics)
        report.summarise(seconds_so_far=round(seconds, 1), whole_table_minutes=round(RUNS * seconds / 60, 1))
