"""What a round spends outside the clients' arithmetic.

    python benchmarks/overhead.py --data-dir DIR [--rounds 50]

FedAvg and DRDM, N = 30, m = 20, on both jobs, tested every ten rounds. The engine's calls are timed one by one:
"compute" is local steps and loss reports, "test" is the evaluation of all clients' test data, divided by ten, and
"the rest" is everything else: drawing keys, minibatches and cohorts, the server's arithmetic, the projection, the log.
Prints a table; writes results/overhead.json.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

from jobs import COHORT, JOBS, LOCAL, simulation, store

from drfl import DRDM, Auto, FedAvg, Simulation, run

EVERY = 10
ALGORITHMS = {"FedAvg": FedAvg(m=COHORT, local=LOCAL), "DRDM": DRDM(m=COHORT, local=LOCAL)}


class Timed:
    """An engine that notes how long each of its calls takes."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    def __getattr__(self, name: str) -> Callable[..., object]:
        function = getattr(Auto(), name)

        def call(*arguments: object, **options: object) -> object:
            start = time.perf_counter()
            result = function(*arguments, **options)
            self.seconds[name].append(time.perf_counter() - start)
            return result

        return call


def shares(fed: Simulation, name: str, rounds: int) -> dict[str, float]:
    """Milliseconds of a round, by what they are spent on."""
    run(ALGORITHMS[name], fed, rounds=5, seed=1, evaluate_every=EVERY)
    engine, marks = Timed(), []
    fed.engine = engine  # pyright: ignore[reportAttributeAccessIssue]
    run(
        ALGORITHMS[name],
        fed,
        rounds=rounds,
        seed=2,
        evaluate_every=EVERY,
        callbacks=[lambda step: marks.append((step.row is None, time.perf_counter()))],
    )
    fed.engine = Auto()
    bare = [after - before for (_, before), (untested, after) in itertools.pairwise(marks) if untested]
    compute = sum(median(engine.seconds[call]) for call in ("train", "losses") if engine.seconds[call])
    test = median(engine.seconds["evaluate"]) / EVERY
    rest = median(bare) - compute
    whole = compute + test + rest
    found = {"compute": compute, "test": test, "rest": rest, "round": whole}
    parts = {f"{part}_ms": round(1e3 * seconds, 3) for part, seconds in found.items()}
    return {**parts, "test_share": round(test / whole, 4), "rest_share": round(rest / whole, 4)}


def main() -> None:
    """Measure both algorithms on both jobs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    jobs = {}
    for job in JOBS:
        fed = simulation(job, options.data_dir)
        jobs[job] = {name: shares(fed, name, options.rounds) for name in ALGORITHMS}
        for name, found in jobs[job].items():
            print(job, name, found, flush=True)
    store("overhead", "python benchmarks/overhead.py", {"rounds": options.rounds, "every": EVERY, "jobs": jobs})


if __name__ == "__main__":
    main()
