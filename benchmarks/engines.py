"""Measure a round of each engine, of plain PyTorch and of the floor: 20 of 30 clients, ten steps of 32 samples.

    python benchmarks/engines.py --data-dir DIR [--rounds 20] [--smoke]

The jobs are FedAvg with the linear model on MNIST and the CNN on kmnist-t10k. Plain PyTorch uses a deep copy of the
model and an ``optim.SGD`` per client, one client after another, on the minibatches that drfl draws, with one and with
all intra-op threads. The floor is the number of the round's multiplications and additions divided by this machine's
rate for a float32 matrix product in the same run. Series are interleaved; times are medians after a warm-up. The script
prints a table and writes results/engines.json.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from jobs import COHORT, JOBS, LOCAL, RESULTS, operations, product_rate, script, simulation, store, turns

from drfl import Auto, Key, Loop, Simulation, Stacked, Threads
from drfl.engine.batches import draw

ENGINES = {"loop": Loop(), "stacked": Stacked(), "threads": Threads(), "auto": Auto()}


def round_of(fed: Simulation, engine: Loop | Stacked | Threads | Auto) -> Callable[[int], object]:
    """Return a function that runs a round's training and mean with an engine."""

    def call(r: int) -> torch.Tensor:
        fed.engine = engine
        return fed.train(torch.arange(COHORT), fed.w0, LOCAL, Key(r)).w.mean(0)

    return call


def plain(fed: Simulation, threads: int) -> Callable[[int], object]:
    """Return a function that runs the same round in plain PyTorch."""
    problem, criterion = fed._train, torch.nn.CrossEntropyLoss()

    def client(samples: torch.Tensor) -> torch.Tensor:
        model = copy.deepcopy(problem.task.model)
        optimiser = torch.optim.SGD(model.parameters(), lr=LOCAL.lr)
        for rows in samples:
            optimiser.zero_grad()
            criterion(model(problem.x[rows]), problem.y[rows]).backward()
            optimiser.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    def call(r: int) -> torch.Tensor:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        samples = draw(fed._rows, torch.arange(COHORT), LOCAL.tau, LOCAL.batch, Key(r)).samples
        mean = torch.stack([client(own) for own in samples]).mean(0)
        torch.set_num_threads(before)
        return mean

    return call


def measured(job: str, rounds: int, data_dir: Path | None) -> dict[str, object]:
    """Return the medians, the floor, and the rate from which it is computed."""
    fed, rates = simulation(job, data_dir), []
    calls = {name: round_of(fed, engine) for name, engine in ENGINES.items()}
    calls |= {"plain": plain(fed, torch.get_num_threads()), "plain, one thread": plain(fed, 1)}
    agree = torch.stack([call(0) for call in calls.values()])
    assert float((agree - agree[0]).abs().max()) < 1e-4, "not the same round"
    medians = turns(rounds, {**calls, "rate": lambda r: rates.append(product_rate())})
    del medians["rate"]
    rate = statistics.median(rates)
    floor, best = operations(fed) / rate, min(medians["plain"], medians["plain, one thread"])
    return {
        "median_s": {name: round(found, 5) for name, found in medians.items()},
        "floor_s": round(floor, 5),
        "gigaflops": round(rate / 1e9, 1),
        "plain_over_auto": round(best / medians["auto"], 2),
        "auto_over_floor": round(medians["auto"] / floor, 2),
    }


def main() -> None:
    """Measure both jobs."""
    parser = script.parser(__doc__, RESULTS, data=True)
    parser.add_argument("--rounds", type=int, default=script.sized(20, 1))
    options = parser.parse_args()
    jobs = {job: measured(job, options.rounds, options.data_dir) for job in JOBS}
    for job, found in jobs.items():
        print(job, {name: f"{1e3 * s:.1f} ms" for name, s in found["median_s"].items()}, end=" ")
        print(f"floor {1e3 * found['floor_s']:.1f} ms; plain/auto {found['plain_over_auto']}", end=" ")
        print(f"auto/floor {found['auto_over_floor']}")
    store(options.out, "engines", "python benchmarks/engines.py", {"rounds": options.rounds, "jobs": jobs})


if __name__ == "__main__":
    main()
