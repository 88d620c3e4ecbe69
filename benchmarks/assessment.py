"""Measure the time and memory of an assessment of 10 to 100,000 clients.

    python benchmarks/assessment.py [--smoke]

Accuracies are on n_i test rows, log-normal between 3 and 100,000 with a median of 300 and all different; true
accuracies have a beta distribution with mean 0.9. ``assess_clients`` computes everything: intervals, the clients that
could be the worst, the worst accuracy expected if all are equal, the tests of equality, and a new client. Scores in [0,
1], from sums of rows, are measured too. Every setting runs in its own process, so that its peak resident memory is its
own; below 100,000 clients the first run is not counted. The bound is 10 s at 100,000; CPU time is more reliable on a
busy machine. The script prints a row per setting and writes results/assessment.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

import numpy as np
from jobs import RESULTS, script, store
from scaling import memory

from drfl.assessment.clients import assess_clients
from drfl.core.key import Key
from drfl.task.measure import Measure, Rows

CLIENTS, BOUND, RUNS = script.sized((10, 1_000, 10_000, 100_000), (10,)), 10.0, script.sized(5, 1)
SIZES, KINDS = ("log-normal", "all different"), ("accuracy", "bounded")


def sums(n: int, sizes: str, kind: str) -> np.ndarray:
    """Return the number of rows of each client, the sum of their scores and of the squares, (N, 3)."""
    rng = Key(0).fold(n, sizes).generator()
    if sizes == "all different":
        rows = rng.permutation(np.arange(3, n + 3))
    else:
        rows = np.clip(np.exp(rng.normal(np.log(300), 1.5, n)), 3, 100_000).astype(np.int64)
    right = rng.binomial(rows, rng.beta(18, 2, n)).astype(float)
    total = right if kind == "accuracy" else 0.75 * right
    squares = right if kind == "accuracy" else 0.75**2 * right
    return np.stack([rows.astype(float), total, squares], 1)


def measure(n: int, sizes: str, kind: str) -> dict[str, float]:
    """Measure one setting in this process."""
    rows = sums(n, sizes, kind)
    names, samples = [f"client-{i}" for i in range(n)], rows[:, 0].astype(np.int64)
    told = Measure(kind, percent=True, rows=Rows.BINARY if kind == "accuracy" else Rows.UNIT)
    before, seconds, spent = memory("VmHWM"), [], []
    for _ in range(1 if n == max(CLIENTS) else 1 + RUNS):
        start, cpu = time.perf_counter(), time.process_time()
        found = assess_clients(told, names, rows, samples)
        seconds.append(time.perf_counter() - start)
        spent.append(time.process_time() - cpu)
    return {
        "seconds": round(statistics.median(seconds[1:] or seconds), 4),
        "cpu_seconds": round(statistics.median(spent[1:] or spent), 4),
        "before_mib": round(before, 1),
        "peak_mib": round(memory("VmHWM"), 1),
        "could_be_worst": int(found.candidates.sum()),
    }


def in_a_process(n: int, sizes: str, kind: str) -> dict[str, float]:
    """Measure one setting in a new process."""
    return json.loads(script.again(__file__, main, ["--one", str(n), sizes, kind]))


def main() -> None:
    """Measure all settings, print the table and store it."""
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(int(options.one[0]), *options.one[1:])))
        return
    rows, before = [], os.getloadavg()[0]
    for kind in KINDS:
        for sizes in SIZES:
            for n in CLIENTS:
                rows.append({"scores": kind, "sizes": sizes, "clients": n, **in_a_process(n, sizes, kind)})
                print(rows[-1], flush=True)
    slowest = max(row["seconds"] for row in rows)
    print(f"slowest: {slowest:.2f} s; the bound is {BOUND:g} s")
    load = {"load_average_before_and_after": [before, os.getloadavg()[0]]}
    about = {"bound_s": BOUND, "slowest_s": slowest, "slowest_cpu_s": max(row["cpu_seconds"] for row in rows)}
    store(options.out, "assessment", "python benchmarks/assessment.py", {**load, **about, "rows": rows})


if __name__ == "__main__":
    main()
