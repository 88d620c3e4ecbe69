"""Compare losses and excess losses as the signal of the dual update: MNIST, label noise at one client.

    python evidence/excess_loss.py --data-dir DIR [--processes 2] [--smoke]

Ten clients have the same number of MNIST images, drawn at random. At the first client, 40 % of the training labels are
drawn again, uniformly; all test labels are right. The other job, without noise, has an outlier instead: the first
client's images are upside down. The model is linear, with weight decay 0 or 0.01. Dual DRDM and DRFA run with
``reference`` "none" and "own", and FedAvg for comparison, all with drfl's defaults and five seeds. The script appends
to results/excess_loss/runs.csv, skips runs that it already contains, and writes table.md with paired differences.
"""

from __future__ import annotations

import dataclasses
import statistics
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

import kept
import script
from drfl import ClientData, Key, LocalSGD, Simulation, Task, run
from drfl.algorithms import ALGORITHMS
from drfl.assessment.seeds import holm_family, seed_difference, verdict
from drfl.core.errors import DivergedError
from drfl.data import load, make_partition
from drfl.data.partition.partitioners import IID
from drfl.experiments.run.artifacts import versions
from drfl.task.models import MODELS
from drfl.training.history import Metrics

RESULTS = Path(__file__).parent / "results" / "excess_loss"
DATASET, CLIENTS, ROUNDS = "mnist", 10, script.sized(100, 1)
SEEDS = range(script.sized(5, 2))
JOBS = ("label noise", "upside down")
DECAYS = script.sized((0.0, 0.01), (0.0,))
METHODS = {
    "FedAvg": ("FedAvg", "none"),
    "DRFA": ("DRFA", "none"),
    "DRFA, excess loss": ("DRFA", "own"),
    "dual DRDM": ("DualDRDM", "none"),
    "dual DRDM, excess loss": ("DualDRDM", "own"),
}
PAIRS = tuple((name, name.removesuffix(", excess loss")) for name in METHODS if name.endswith("excess loss"))
COLUMNS = ("job", "weight_decay", "method", "seed", "worst_percent", "avg_percent", "lambda_of_client_0")


class Cell(NamedTuple):
    """One run."""

    job: str
    decay: float
    method: str
    seed: int

    def key(self) -> tuple[str, ...]:
        """The first columns of the run's row."""
        return self.job, f"{self.decay:g}", self.method, str(self.seed)


@cache
def clients(job: str, data_dir: Path | None) -> ClientData:
    """The clients, with a partition and a changed first client that are the same for all seeds."""
    key, dataset = Key(0).fold("excess loss"), load(DATASET, data_dir=data_dir)
    data = ClientData.from_dataset(dataset, make_partition(dataset, IID(CLIENTS), key.fold("partition")))
    x, y, test = data.inputs.clone(), data.targets.clone(), data.test_inputs.clone()
    if job == "upside down":
        x[data.train[0]], test[data.test[0]] = x[data.train[0]].flip(-1, -2), test[data.test[0]].flip(-1, -2)
    else:
        rng, rows = key.fold("noise").generator(), data.train[0]
        drawn = torch.from_numpy(rng.integers(0, 10, len(rows)))
        y[rows] = torch.where(torch.from_numpy(rng.random(len(rows)) < 0.4), drawn, y[rows])
    return dataclasses.replace(data, inputs=x, targets=y, test_inputs=test)


_data_dir: list[Path | None] = []  # one per process


def start(data_dir: Path | None) -> None:
    _data_dir[:] = [data_dir]


def measured(cell: Cell) -> list[str]:
    """The columns after the key; empty if the run diverged."""
    name, reference = METHODS[cell.method]
    data = clients(cell.job, _data_dir[0])
    with Key(cell.seed).fold("model").torch_scope():
        task = Task(MODELS["linear"](tuple(data.inputs.shape[1:]), 10))
    options = {} if reference == "none" else {"reference": reference}
    algorithm = ALGORITHMS[name](local=LocalSGD(batch=50, weight_decay=cell.decay), **options)
    try:
        result = run(algorithm, Simulation(data, task), rounds=ROUNDS, seed=cell.seed, evaluate_every=ROUNDS)
    except DivergedError:
        return [""] * (len(COLUMNS) - len(cell))
    last = Metrics.of(result.evaluation)
    lam = "" if result.lam is None else f"{float(result.lam[0]):.3f}"
    return [f"{100 * last.worst_score:.2f}", f"{100 * last.avg_score:.2f}", lam]


def table(rows: kept.Rows) -> str:
    """Means over the seeds, and the paired difference in worst-client accuracy with its interval and verdict."""
    lines = [
        "| job | weight decay | method | worst client, % | λ of client 0 | excess − loss, points | verdict |",
        "| --- | ---: | --- | ---: | ---: | ---: | --- |",
    ]
    groups = [(job, f"{decay:g}") for job in JOBS for decay in DECAYS]

    def column(group: tuple[str, str], method: str, k: int) -> list[float]:
        return [float(rows[*group, method, str(seed)][k]) for seed in SEEDS if rows[*group, method, str(seed)][k]]

    tests = {
        (group, ours): seed_difference(
            [a - b for a, b in zip(column(group, ours, 0), column(group, theirs, 0), strict=True)]
        )
        for group in groups
        for ours, theirs in PAIRS
    }
    corrected = dict(zip(tests, holm_family(list(tests.values())).tolist(), strict=True))
    for group in groups:
        for method in METHODS:
            means = [
                f"{statistics.fmean(v):.{digits}f}" if (v := column(group, method, k)) else "–"
                for k, digits in ((0, 1), (2, 2))
            ]
            difference = ["", ""]
            if (d := tests.get((group, method))) is not None:
                difference = [f"{d.mean:+.1f} ({d.low:+.1f} to {d.high:+.1f})", verdict(d, corrected[group, method])]
            lines.append(f"| {' | '.join([*group, method, *means, *difference])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = script.parser(__doc__, RESULTS, data=True)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    cells = [Cell(job, decay, method, seed) for job in JOBS for decay in DECAYS for method in METHODS for seed in SEEDS]
    workers = kept.Workers(options.processes, start, (options.data_dir,))
    rows = kept.fill(options.out / "runs.csv", COLUMNS, {c.key(): c for c in cells}, measured, workers)
    about = {"versions": versions(), "device": "cpu", "command": "python evidence/excess_loss.py", "seeds": len(SEEDS)}
    script.store(options.out, {"table.md": table(rows), "summary.json": about})


if __name__ == "__main__":
    main()
