"""Measure the time of project, prox and worst_case for every ambiguity set, at N = 10, 1,000 and 100,000.

    python benchmarks/ambiguity.py [--smoke]

There are three kinds of input: random (v normal, losses exponential), and v = λ + a small step as in a converged run,
with λ near the uniform mixture or near the worst case of the losses; the losses then differ by a hundredth. Everything
runs on one thread. For each set, operation and N, the tables show the slowest input's median and minimum, and its
median CPU time, which is more reliable on a busy machine; ``results/ambiguity.json`` has all values. The bound is 50 ms
at N = 100,000.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from jobs import RESULTS, script
from torch import Tensor

from drfl.ambiguity import KL, AmbiguitySet, Box, ChiSquare, ChiSquareBall, CVaR, KLBall, Simplex
from drfl.experiments.run.artifacts import versions

SIZES, SEED, STEP, BOUND = script.sized((10, 1_000, 100_000), (10, 100)), 0, 0.01, 0.050
SECONDS, LEAST, MOST = script.sized((0.3, 7, 100), (0.0, 1, 1))
"""Seconds for which an operation is repeated, and the least and the largest number of repetitions."""
OPERATIONS = ("project", "prox", "worst_case")


def sets(n: int) -> dict[str, AmbiguitySet]:
    """Every set, with parameters that bind."""
    weights = torch.rand(n, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64) + 0.1
    prior = weights / weights.sum()
    return {
        "Simplex(0)": Simplex(),
        "Simplex(0.1/N)": Simplex(0.1 / n),
        "CVaR(0.2)": CVaR(0.2),
        "Box(3/N)": Box(3 / n),
        "ChiSquare(0.1)": ChiSquare(0.1),
        "KL(0.1)": KL(0.1),
        "KL(0.1, prior)": KL(0.1, prior),
        "ChiSquareBall(0.5)": ChiSquareBall(0.5),
        "KLBall(0.01)": KLBall(0.01),
        "KLBall(0.5)": KLBall(0.5),
        "KLBall(0.5, prior)": KLBall(0.5, prior),
    }


def inputs(ambiguity: AmbiguitySet, n: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return inputs by kind: v (N,) for project and prox, and losses (N,) for worst_case."""
    g = torch.Generator().manual_seed(SEED + 1)
    normal = torch.randn(n, generator=g, dtype=torch.float64)
    losses = -torch.rand(n, generator=g, dtype=torch.float64).log()
    near, worst = ambiguity.project((1 + 0.5 * normal) / n), ambiguity.worst_case(losses).lam
    step, close = STEP * losses / n, 1 + 0.01 * losses
    return {"random": (normal, losses), "near uniform": (near + step, close), "near worst": (worst + step, close)}


def timed(call: Callable[[], object]) -> dict[str, float]:
    """Return median and minimum seconds, median CPU seconds, and the number of runs, without a first run."""
    call()
    found: list[float] = []
    spent: list[float] = []
    while len(found) < LEAST or (sum(spent) < SECONDS and len(found) < MOST):
        start, cpu = time.perf_counter(), time.process_time()
        call()
        found.append(time.perf_counter() - start)
        spent.append(time.process_time() - cpu)
    seconds = {"median_s": statistics.median(found), "minimum_s": min(found), "cpu_median_s": statistics.median(spent)}
    return {key: round(value, 7) for key, value in seconds.items()} | {"runs": len(found)}


def measured() -> list[dict[str, object]]:
    """Return a row for each N, set, operation and input."""
    rows = []
    for n in SIZES:
        for name, ambiguity in sets(n).items():
            for kind, (v, losses) in inputs(ambiguity, n).items():
                calls = {
                    "project": lambda a=ambiguity, v=v: a.project(v),
                    "prox": lambda a=ambiguity, v=v: a.prox(v, STEP),
                    "worst_case": lambda a=ambiguity, f=losses: a.worst_case(f),
                }
                for operation, call in calls.items():
                    rows.append({"set": name, "n": n, "operation": operation, "input": kind, **timed(call)})
    return rows


def table(rows: list[dict], figure: str = "median_s") -> str:
    """Return the milliseconds of the slowest input."""
    columns = [(operation, n) for operation in OPERATIONS for n in SIZES]
    lines = ["| set | " + " | ".join(f"{operation}, {n:,}" for operation, n in columns) + " |"]
    lines.append("| --- |" + " ---: |" * len(columns))
    for name in dict.fromkeys(row["set"] for row in rows):
        cells = [
            max(row[figure] for row in rows if (row["set"], row["operation"], row["n"]) == (name, operation, n))
            for operation, n in columns
        ]
        lines.append(f"| `{name}` | " + " | ".join(f"{1e3 * cell:.2f}" for cell in cells) + " |")
    return "\n".join(lines)


def processor() -> str:
    """Return the processor's name, if the system gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    """Measure all operations, print the tables and store them."""
    options = script.parser(__doc__, RESULTS).parse_args()
    torch.set_num_threads(1)
    before = os.getloadavg()
    rows = measured()
    print("Milliseconds, medians, the slowest of three inputs:\n\n" + table(rows))
    print("\nThe same, minima:\n\n" + table(rows, "minimum_s"))
    print("\nThe same, medians of the processor's time:\n\n" + table(rows, "cpu_median_s"))
    slowest = max(rows, key=lambda row: row["median_s"])
    above = [row for row in rows if row["median_s"] > BOUND]
    print(f"\nslowest median: {slowest}\nmedians above {1e3 * BOUND:.0f} ms: {len(above)}")
    about = {
        "command": "python benchmarks/ambiguity.py",
        "seed": SEED,
        "step": STEP,
        "device": f"{processor()}, {os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
        "load_average_before_and_after": [before[0], os.getloadavg()[0]],
        "versions": versions(),
        "slowest_median_s": slowest["median_s"],
        "medians_above_bound": len(above),
        "slowest_cpu_median_s": max(row["cpu_median_s"] for row in rows),
        "rows": rows,
    }
    script.store(options.out, {"ambiguity.json": about})


if __name__ == "__main__":
    main()
