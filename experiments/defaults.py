"""How the default dual step and μ were found, and what they cost: digits, the hospitals, MNIST's tuning partitions.

    python experiments/defaults.py --data-dir DIR [--processes 2]

Sweeps the rate of the dual step's rule and κ in μ = κ/(ητ), one at a time, all else default; five seeds and 100 rounds
a cell. On MNIST the clients are tested on training images that were held out (see tune_mnist.py). Writes
results/defaults/trials.csv as it goes; trials that it holds already are not run again. Then table.md and summary.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import NamedTuple

import kept
import tune_mnist
from drfl.algorithms import ALGORITHMS, drift
from drfl.data import Dataset, load
from drfl.errors import DivergedError
from drfl.experiments.artifacts import versions
from drfl.experiments.build import build
from drfl.experiments.config import load_config
from drfl.loop import run

RESULTS = Path(__file__).parent / "results" / "defaults"
TRIALS = RESULTS / "trials.csv"
COLUMNS = ("job", "algorithm", "rate", "kappa", "seed", "avg_percent", "worst_percent", "std_percent")
JOBS = {
    "digits": ({"dataset": "digits"}, range(5)),
    "hospitals": ({"dataset": "heart-disease"}, range(5)),
    "mnist": (tune_mnist.JOB, tune_mnist.SEEDS),
}
DUAL = ("AFL", "DRFA", "DRFAGA", "ScaffPD", "DRDM", "DualDRDM")
RATES = (0.03, 0.1, 0.3, 1.0)
PENALISED = ("FedDyn", "DRDM", "DualDRDM")
KAPPAS = (0.1, 0.2, 0.5, 1.0)


class Cell(NamedTuple):
    """One run; rate or kappa is None where the algorithm has none."""

    job: str
    algorithm: str
    rate: float | None
    kappa: float | None
    seed: int

    def key(self) -> tuple[str, ...]:
        """The first columns of its row."""
        return tuple("" if x is None else str(x) for x in self)


def settings() -> list[tuple[str, float | None, float | None]]:
    """Algorithm, rate and κ of every cell, the built-in values among them."""

    def own(algorithm: str) -> tuple[float | None, float | None]:
        rate = ALGORITHMS[algorithm].rate if algorithm in DUAL else None
        return rate, drift.KAPPA if algorithm in PENALISED else None

    found = [("FedAvg", None, None)]
    found += [(algorithm, own(algorithm)[0], kappa) for algorithm in PENALISED for kappa in KAPPAS]
    found += [(algorithm, rate, own(algorithm)[1]) for algorithm in DUAL for rate in RATES]
    return list(dict.fromkeys(found))


def cells() -> list[Cell]:
    return [Cell(job, *setting, seed) for job, (_, seeds) in JOBS.items() for setting in settings() for seed in seeds]


_data: dict[str, Dataset] = {}  # one per process


def start(data_dir: Path | None) -> None:
    mnist = tune_mnist.validation(load("mnist", data_dir=data_dir))
    _data.update(digits=load("digits"), hospitals=load("heart-disease"), mnist=mnist)


def scores(cell: Cell) -> tuple[float, float, float]:
    """Average, worst and std of the last model's accuracies over clients in percent; 0, 0, 0 where it diverged."""
    job = {**JOBS[cell.job][0], "algorithm": cell.algorithm, "seed": cell.seed}
    cls, kappa = ALGORITHMS[cell.algorithm], drift.KAPPA
    rate = getattr(cls, "rate", None)
    try:
        if cell.rate is not None:
            cls.rate = cell.rate
        drift.KAPPA = kappa if cell.kappa is None else cell.kappa
        config = load_config(None, job)
        built = build(config, _data[cell.job])
        result = run(built.algorithm, built.fed, rounds=config.rounds, seed=cell.seed, evaluate_every=config.rounds)
    except DivergedError:
        return 0.0, 0.0, 0.0
    finally:
        drift.KAPPA = kappa
        if cell.rate is not None:
            cls.rate = rate
    metrics = result.history.last.metrics
    return 100 * metrics.avg_accuracy, 100 * metrics.worst_accuracy, 100 * metrics.std_accuracy


def percents(cell: Cell) -> list[str]:
    """The columns behind the key."""
    return [f"{x:.2f}" for x in scores(cell)]


def table(trials: kept.Rows) -> str:
    """Means over the seeds."""
    lines = ["| job | algorithm | rate | κ | avg % | worst % | std |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for setting in dict.fromkeys(cell[:4] for cell in cells()):
        found = [trials[Cell(*setting, seed).key()] for seed in JOBS[setting[0]][1]]
        means = [f"{statistics.fmean(map(float, column)):.1f}" for column in zip(*found, strict=True)]
        lines.append("| " + " | ".join([*("" if x is None else str(x) for x in setting), *means]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    todo = {cell.key(): cell for cell in cells()}
    workers = kept.Workers(options.processes, start, (options.data_dir,))
    trials = kept.fill(TRIALS, COLUMNS, todo, percents, workers)
    (RESULTS / "table.md").write_text(table(trials), encoding="utf-8")
    about = {"versions": versions(), "device": "cpu", "dtype": "float32", "rounds": 100}
    (RESULTS / "summary.json").write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
