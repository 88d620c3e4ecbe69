"""Measure which engine is the fastest for which model: the table behind ``engine="auto"``.

    python benchmarks/auto.py [--rounds 10] [--jobs NAMES] [--smoke]

The jobs are FedAvg's local steps on synthetic samples: small models with τ = 10, cohorts of 20 and 5 clients, and
different minibatches; and the models of model_jobs.py at three cohort sizes. The engines take turns; times are medians
after two warm-up rounds. Jobs whose rounds take longer than a second have three rounds. The last column is the time of
the engine that ``Auto`` chooses divided by that of the fastest. The script prints a table and writes results/auto.json.
A call for some of the jobs replaces only these in that file.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable

import model_jobs
import torch
from jobs import RESULTS, script, store
from torch import nn

from drfl import ClientData, Key, LocalSGD, Simulation, Stacked, Task, Threads
from drfl.engine.auto import choice
from drfl.task import models

ENGINES = {"stacked": Stacked(), "threads": Threads()}
IMAGE, PATCH, VECTOR = (1, 28, 28), (1, 8, 8), (30,)
CLIENTS, SAMPLES, TAU = script.sized((30, 200, 10), (5, 20, 1))
SETTINGS = script.sized(((20, 8), (20, 32), (20, 128), (5, 32)), ((2, 8),))
"""Cohorts and batches."""


def lenet(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a small classical network: two 5×5 convolutions with pooling, two hidden layers."""
    body = [nn.Conv2d(shape[0], 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    body += [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*body, nn.LazyLinear(120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes))


class Recurrent(nn.Module):
    """A two-layer LSTM over the rows of an image, with a linear layer on its last output."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(shape[-1], 64, 2, batch_first=True), nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute scores (B, classes) for images (B, 1, H, W)."""
        return self.out(self.lstm(x[:, 0])[0][:, -1])


def mlp(*hidden: int) -> Callable[[tuple[int, ...], int], nn.Module]:
    """Create fully connected layers of these widths."""
    return lambda shape, classes: models.mlp(shape, classes, hidden)


JOBS: dict[str, tuple[Callable[[tuple[int, ...], int], nn.Module], tuple[int, ...]]] = {
    "linear 30": (models.linear, VECTOR),
    "linear 784": (models.linear, IMAGE),
    "mlp 784-128": (mlp(128), IMAGE),
    "mlp 784-512-512": (mlp(512, 512), IMAGE),
    "mlp 784-2000": (mlp(2000), IMAGE),
    "lstm 28x28": (Recurrent, IMAGE),
    "cnn 8x8": (models.cnn, PATCH),
    "lenet 28x28": (lenet, IMAGE),
    "cnn 28x28": (models.cnn, IMAGE),
}


ALL = [*JOBS, *model_jobs.JOBS]


def federation(job: str) -> Simulation:
    """Create clients with synthetic samples."""
    if job in model_jobs.JOBS:
        found = model_jobs.JOBS[job]
        return found.simulation(max(found.cohorts))
    make, shape = JOBS[job]
    rng = Key(0).fold(job).generator()
    pairs = [
        (
            torch.from_numpy(rng.standard_normal((SAMPLES, *shape))).float(),
            torch.from_numpy(rng.integers(0, 10, SAMPLES)),
        )
        for _ in range(CLIENTS)
    ]
    with Key(0).torch_scope():
        model = make(shape, 10)
        model(pairs[0][0][:1])  # so that lazy layers get their sizes
    return Simulation(ClientData.from_arrays(pairs), Task(model))


def settings(job: str) -> list[tuple[int, LocalSGD]]:
    """Return the cohort sizes and local solvers of a job."""
    if job in model_jobs.JOBS:
        return [(m, model_jobs.JOBS[job].local) for m in model_jobs.JOBS[job].cohorts]
    return [(m, LocalSGD(steps=TAU, lr=0.01, batch=batch)) for m, batch in SETTINGS]


def seconds(fed: Simulation, m: int, local: LocalSGD, rounds: int) -> dict[str, float]:
    """Return the median seconds of a round for each engine that can run the model."""
    engines = {name: engine for name, engine in ENGINES.items() if name != "stacked" or model_jobs.is_short(fed)}
    times: dict[str, list[float]] = {name: [] for name in engines}
    r = 0
    while r < 2 + rounds and (r < 5 or max(found[-1] for found in times.values()) < 1):
        for name, engine in engines.items():
            fed.engine = engine
            start = time.perf_counter()
            fed.train(torch.arange(m), fed.w0, local, Key(r))
            times[name].append(time.perf_counter() - start)
        r += 1
    return {name: statistics.median(found[2:]) for name, found in times.items()}


def main() -> None:
    """Measure all jobs."""
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("--rounds", type=int, default=script.sized(10, 1))
    parser.add_argument("--jobs", default=",".join(ALL), help="names, separated by commas")
    options = parser.parse_args()
    rows, names, before = [], options.jobs.split(","), os.getloadavg()[0]
    file = options.out / "auto.json"
    if file.exists() and options.jobs != ",".join(ALL):
        rows = [row for row in json.loads(file.read_text())["rows"] if row["model"] not in names]
    print(
        "| model | m | B | stacked ms | threads ms | auto takes | over the fastest |\n"
        "|---|---:|---:|---:|---:|---|---:|"
    )
    for job in names:
        fed = federation(job)
        for m, local in settings(job):
            batch = int(local.batch or 0)
            chosen = next(name for name, engine in ENGINES.items() if engine == choice(fed._train, m, batch))
            found = seconds(fed, m, local, options.rounds)
            over = found[chosen] / min(found.values())
            row = {"model": job, "m": m, "batch": batch, "steps": local.tau, "stacked": None, **found, "auto": chosen}
            rows.append({**row, "over_fastest": round(over, 3)})
            shown = [f"{1e3 * found[name]:.1f}" if name in found else "" for name in ENGINES]
            print(f"| {job} | {m} | {batch} | {' | '.join(shown)} | {chosen} | {over:.2f} |", flush=True)
    rows.sort(key=lambda row: ALL.index(row["model"]))
    content = {"rounds": options.rounds, "load_average_before": before, "rows": rows}
    store(options.out, "auto", "python benchmarks/auto.py", content)


if __name__ == "__main__":
    main()
