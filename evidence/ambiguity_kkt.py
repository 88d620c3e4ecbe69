"""Measure how far the results of the ambiguity sets are from optimal: KKT residuals, and distances from a solver.

    python evidence/ambiguity_kkt.py [--smoke]

For each set of ``tests/ambiguity/cases.py``, the script computes the largest residual of the Karush-Kuhn-Tucker
conditions of project, prox and worst_case (``tests/ambiguity/kkt.py``) over 10,000 vectors of up to 100 entries. It
also computes the largest distance from CVXPY with Clarabel over 200 vectors of six entries, in λ and in the objective.
It writes ``table.md`` and ``summary.json`` in ``results/ambiguity``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import time
from pathlib import Path

import numpy as np
import torch

import script

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "results" / "ambiguity"
SEED = 0
DRAWS = script.sized({1: 100, 2: 2000, 3: 2000, 5: 2000, 10: 2000, 30: 1400, 100: 500}, {1: 2, 5: 10, 30: 2})
"""Number of vectors by length; 10,000 in all."""
SOLVED, LENGTH = script.sized(200, 2), 6
"""Number and length of the vectors that are compared with the solver."""
BOUND, OBJECTIVE = 1e-9, 1e-6


def tried(name: str) -> dict[str, float]:
    """The largest residuals and differences of one set."""
    answers, cases = (importlib.import_module(f"tests.ambiguity.{part}") for part in ("answers", "cases"))
    worst = dict.fromkeys(answers.Residuals._fields, 0.0)
    for n, draws in DRAWS.items():
        g = np.random.default_rng([SEED, n])
        found = answers.residuals(cases.CASES[name](n), cases.drawn(g, draws, n), cases.steps(g, draws))
        worst = {key: max(worst[key], float(values.max())) for key, values in found._asdict().items()}
    return worst


def compared(name: str) -> dict[str, float] | None:
    """The largest distances from the solver; None if a prior of 1e-9 makes it inaccurate."""
    if "steep" in name:
        return None
    cases, solver = (importlib.import_module(f"tests.ambiguity.{part}") for part in ("cases", "solver"))
    g = np.random.default_rng([SEED, 1000])
    v = g.normal(size=(SOLVED, LENGTH)) * 10 ** g.uniform(-1, 0.5, (SOLVED, 1))
    return solver.differences(cases.CASES[name](LENGTH), v, 10 ** g.uniform(-1, 1, SOLVED))._asdict()


def table(records: list[dict]) -> str:
    """A row for each set: four residuals, and four distances from the solver."""
    heads = ("project", "prox", "worst_case", "value", "λ: project", "λ: prox", "λ: worst_case", "objective")
    lines = ["| set | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
    for record in records:
        numbers = [*record["residuals"].values(), *(record["solver"] or dict.fromkeys(range(4))).values()]
        cells = " | ".join("–" if x is None else f"{x:.0e}" if x else "0" for x in numbers)
        lines.append(f"| `{record['set']}` | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    options = script.parser(__doc__, RESULTS).parse_args()
    sys.path.insert(0, str(ROOT))
    from drfl.experiments.run.artifacts import versions

    torch.set_num_threads(1)
    records = []
    for name in importlib.import_module("tests.ambiguity.cases").CASES:
        start = time.process_time()
        record = {"set": name, "residuals": tried(name), "solver": compared(name)}
        records.append({**record, "cpu_seconds": round(time.process_time() - start, 1)})
        print(records[-1], flush=True)
    largest = max(max(record["residuals"].values()) for record in records)
    objective = max(record["solver"]["objective"] for record in records if record["solver"])
    print(f"largest residual {largest:.1e}, largest difference in an objective {objective:.1e}")
    packages = {name: importlib.metadata.version(name) for name in ("cvxpy", "clarabel")}
    about = {
        "command": "python evidence/ambiguity_kkt.py",
        "seed": SEED,
        "draws_by_length": DRAWS,
        "solver_draws": SOLVED,
        "versions": {**versions(), **packages},
        "largest_residual": largest,
        "largest_objective_difference": objective,
        "within_bounds": largest <= BOUND and objective <= OBJECTIVE,
        "sets": records,
    }
    script.store(options.out, {"table.md": table(records), "summary.json": about})


if __name__ == "__main__":
    main()
