"""Measure the time of a round beyond the arithmetic of clients and server.

    python benchmarks/overhead.py --data-dir DIR [--rounds 50] [--smoke]

The jobs run FedAvg, DRFA and DRDM with N = 30 and m = 20, tested every ten rounds. Functions are timed one by one:

* compute: local steps and reported losses in the engine;
* draw: keys, minibatches and cohorts;
* project: the dual step's projection on the simplex;
* log: a row of the history and its metrics, a tenth of it per round;
* test: the evaluation of all clients' test data, a tenth of it per round;
* server: the rest, which is the algorithm's own arithmetic on models.

Shares are of the whole round. The script prints a table and writes results/overhead.json.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from unittest import mock

from jobs import COHORT, JOBS, LOCAL, RESULTS, script, simulation, store

import drfl.engine.simulation
import drfl.training.loop
from drfl import DRDM, DRFA, Auto, FedAvg, RunState, Simplex, Simulation, run
from drfl.federation import sampling

EVERY = script.sized(10, 2)
ALGORITHMS = {kind.__name__: kind(m=COHORT, local=LOCAL) for kind in (FedAvg, DRFA, DRDM)}
TIMED = [
    ("compute", Auto, "train"),
    ("compute", Auto, "losses"),
    ("test", Auto, "evaluate"),
    ("draw", drfl.engine.simulation, "draw"),
    ("draw", sampling, "uniform"),
    ("project", Simplex, "project"),
    ("log", drfl.training.loop.RunLog, "add"),
]
"""Parts of a round, and the functions that compute them."""


class Clock:
    """Seconds of every round, by part and in total."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, float]] = []
        self._now: defaultdict[str, float] = defaultdict(float)
        self._start = time.perf_counter()

    def wrapped(self, part: str, function: Callable[..., object]) -> Callable[..., object]:
        """Wrap a function so that its time counts for this part."""

        def call(*arguments: object, **options: object) -> object:
            start = time.perf_counter()
            result = function(*arguments, **options)
            self._now[part] += time.perf_counter() - start
            return result

        return call

    def close(self, progress: RunState) -> None:
        """End a round."""
        now = time.perf_counter()
        self.rounds.append({**self._now, "all": now - self._start})
        self._now.clear()
        self._start = now

    def median(self, part: str) -> float:
        """Return the median over the rounds without a test, or with a test for parts of a test."""
        tested = part in ("test", "log")
        return median(row.get(part, 0.0) for row in self.rounds[1:] if ("test" in row) == tested)


def parts(fed: Simulation, name: str, rounds: int) -> dict[str, float]:
    """Return the milliseconds of a round by part, and the share of all parts except compute and server."""
    algorithm, clock = ALGORITHMS[name], Clock()
    run(algorithm, fed, rounds=5, seed=1, evaluate_every=EVERY)
    with ExitStack() as stack:
        for part, owner, function in TIMED:
            timed = clock.wrapped(part, getattr(owner, function))
            stack.enter_context(mock.patch.object(owner, function, timed))
        if hasattr(algorithm, "sampling"):
            algorithm = replace(algorithm, sampling=clock.wrapped("draw", sampling.with_replacement))
        run(algorithm, fed, rounds=rounds, seed=2, evaluate_every=EVERY, callbacks=[clock.close])
    found = {part: clock.median(part) for part in ("compute", "draw", "project")}
    found["server"] = clock.median("all") - sum(found.values())
    found["log"] = clock.median("log") / EVERY
    found["test"] = clock.median("test") / EVERY
    whole = sum(found.values())
    share = 1 - (found["compute"] + found["server"]) / whole
    milliseconds = {f"{part}_ms": round(1e3 * s, 3) for part, s in found.items()}
    return {**milliseconds, "round_ms": round(1e3 * whole, 3), "share": round(share, 4)}


def main() -> None:
    """Measure the three algorithms on both jobs."""
    parser = script.parser(__doc__, RESULTS, data=True)
    parser.add_argument("--rounds", type=int, default=2 * EVERY if script.SMOKE else 50)
    options = parser.parse_args()
    jobs = {}
    for job in JOBS:
        fed = simulation(job, options.data_dir)
        jobs[job] = {name: parts(fed, name, options.rounds) for name in ALGORITHMS}
        for name, found in jobs[job].items():
            print(job, name, found, flush=True)
    store(
        options.out,
        "overhead",
        f"python benchmarks/overhead.py --data-dir DIR --rounds {options.rounds}",
        {"rounds": options.rounds, "every": EVERY, "jobs": jobs},
    )


if __name__ == "__main__":
    main()
