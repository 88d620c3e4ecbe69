"""Seconds per round of the engines, side by side: FedAvg's job, 20 of 30 clients, ten steps of 32 samples.

    python benchmarks/engines.py --data-dir DIR [--rounds 10]

The linear model on MNIST and the CNN on kmnist-t10k. The engines take turns, so that a busy moment hits all of them;
medians after a round of warm-up, with the floor beside them: the round's multiplications and additions over this
machine's rate for a float32 matrix product, taken in the same run. Prints a table; writes results/engines.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch

from drfl import Key, LocalSGD, Loop, Simulation, Stacked, Task, Threads, ZipfDirichlet, load, models
from drfl.data import ClientData, divide
from drfl.experiments.rundir import versions

RESULTS = Path(__file__).parent / "results" / "engines.json"
JOBS = {"linear": ("mnist", models.linear), "cnn": ("kmnist-t10k", models.cnn)}
ENGINES = {"loop": Loop(), "stacked": Stacked(), "threads": Threads()}
CLIENTS, COHORT, LOCAL = 30, 20, LocalSGD(steps=10, lr=0.1, batch=32)


def simulation(job: str, engine: str, data_dir: Path | None) -> Simulation:
    """The job's clients behind this engine."""
    name, model = JOBS[job]
    dataset = load(name, data_dir=data_dir)
    data = ClientData.from_dataset(dataset, divide(dataset, ZipfDirichlet(clients=CLIENTS), Key(0)))
    with Key(0).fold("model").torch_scope():
        module = model(tuple(dataset.inputs.shape[1:]), dataset.classes)
    return Simulation(data, Task(module), engine=ENGINES[engine])


def seconds(fed: Simulation, r: int) -> float:
    """One round's training."""
    start = time.perf_counter()
    fed.train(torch.arange(COHORT), fed.w0, LOCAL, Key(r))
    return time.perf_counter() - start


def operations(fed: Simulation) -> float:
    """Floating-point operations of a round: forward and backward, products of matrices and convolutions alone."""
    from torch.utils.flop_counter import FlopCounterMode

    problem, task = fed._train, fed._train.task
    parameters = {name: value.requires_grad_() for name, value in task.layout.views(fed.w0).items()}
    with FlopCounterMode(display=False) as counter:
        loss = task.sample_losses(task.outputs(parameters, problem.x[:32]), problem.y[:32]).mean()
        torch.autograd.grad(loss, list(parameters.values()))
    return float(counter.get_total_flops()) * LOCAL.steps * COHORT


def product_rate() -> float:
    """Floating-point operations per second of a large float32 matrix product, the best of five."""
    a, times = torch.randn(2048, 2048), []
    for _ in range(5):
        start = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - start)
    return 2 * 2048**3 / min(times)


def measured(job: str, rounds: int, data_dir: Path | None) -> dict[str, object]:
    """Medians of the engines, the floor, and the rate behind it."""
    feds = {name: simulation(job, name, data_dir) for name in ENGINES}
    for fed in feds.values():
        seconds(fed, 0)
    times: dict[str, list[float]] = {name: [] for name in feds}
    rates = []
    for r in range(1, rounds + 1):
        rates.append(product_rate())
        for name, fed in feds.items():
            times[name].append(seconds(fed, r))
    floor = operations(feds["loop"]) / statistics.median(rates)
    medians = {name: round(statistics.median(found), 5) for name, found in times.items()}
    return {"median_s": medians, "floor_s": round(floor, 5), "gigaflops": round(statistics.median(rates) / 1e9, 1)}


def main() -> None:
    """Measure both jobs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    jobs = {job: measured(job, options.rounds, options.data_dir) for job in JOBS}
    print("| job | " + " | ".join(ENGINES) + " | floor |\n| --- |" + " ---: |" * (len(ENGINES) + 1))
    for job, found in jobs.items():
        cells = [f"{1e3 * s:.1f}" for s in (*found["median_s"].values(), found["floor_s"])]
        print(f"| {job}, ms a round | " + " | ".join(cells) + " |")
    about = {
        "command": "python benchmarks/engines.py",
        "rounds": options.rounds,
        "seed": 0,
        "threads": torch.get_num_threads(),
    }
    about |= {"device": f"{os.cpu_count()} cores", "versions": versions()}
    RESULTS.write_text(json.dumps({**about, "jobs": jobs}, indent=2) + "\n")


if __name__ == "__main__":
    main()
