"""Measure each algorithm's round relative to FedAvg's: 20 of 30 clients, ten steps of 32 samples, no evaluation.

    python benchmarks/algorithms.py --data-dir DIR [--rounds 20] [--smoke]

The jobs are the linear model on MNIST and the CNN on kmnist-t10k, with a step size at which no algorithm diverges and
the built-in γ and μ. AFL and SCAFF-PD, published with full participation, use 20 clients here like the others. Series
are interleaved; times are medians after a warm-up. The script prints a table and writes results/algorithms.json.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from jobs import COHORT, JOBS, LOCAL, RESULTS, script, simulation, store, turns

from drfl import ALGORITHMS, Algorithm, Key, Simulation, State

SLOW = dataclasses.replace(LOCAL, lr=0.02)
"""The time of a round does not depend on the step size, as long as the model stays finite."""


def rounds_of(algorithm: Algorithm[State], fed: Simulation) -> Callable[[int], object]:
    """Return a function that does the next round."""
    state = algorithm.init(fed)

    def call(r: int) -> None:
        nonlocal state
        state, _ = algorithm.round(state, fed, Key(0).fold("round", r + 1))

    return call


def built(name: str) -> Algorithm[State]:
    """Return the algorithm on the job's cohort and local solver."""
    known = {field.name for field in dataclasses.fields(ALGORITHMS[name])}
    return ALGORITHMS[name](**{key: value for key, value in {"m": COHORT, "local": SLOW}.items() if key in known})


def main() -> None:
    """Measure both jobs."""
    parser = script.parser(__doc__, RESULTS, data=True)
    parser.add_argument("--rounds", type=int, default=script.sized(20, 1))
    options = parser.parse_args()
    jobs: dict[str, dict[str, dict[str, float]]] = {}
    for job in JOBS:
        fed = simulation(job, options.data_dir)
        medians = turns(options.rounds, {name: rounds_of(built(name), fed) for name in ALGORITHMS})
        jobs[job] = {
            name: {"median_s": round(s, 5), "over_fedavg": round(s / medians["FedAvg"], 2)}
            for name, s in medians.items()
        }
    print("| algorithm |" + " | ".join(f"{job}, ms | over FedAvg" for job in jobs) + " |")
    print("|---|" + "---:|---:|" * len(jobs))
    for name in ALGORITHMS:
        cells = [f"{1e3 * found[name]['median_s']:.1f} | {found[name]['over_fedavg']:.2f}" for found in jobs.values()]
        print(f"| {name} | " + " | ".join(cells) + " |")
    store(
        options.out,
        "algorithms",
        f"python benchmarks/algorithms.py --data-dir DIR --rounds {options.rounds}",
        {"rounds": options.rounds, "jobs": jobs},
    )


if __name__ == "__main__":
    main()
