"""Measure the cost of client dropout for each algorithm: MNIST, 30 clients with few classes each, a linear model.

    python evidence/dropout.py --data-dir DIR [--processes 2] [--smoke]

In each round every client drops out with the same probability: it receives nothing, computes nothing and sends nothing.
Each cell has three seeds and 100 rounds. At the same seed all algorithms lose the same clients, and the clients lost at
one probability are also lost at each larger one. Hyperparameters are those that `drfl tune mnist-linear` found without
dropout, and the defaults for algorithms that were not tuned. The script appends to results/dropout/cells.csv and skips
cells that it already contains. It then writes table.md and summary.json.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import NamedTuple

import kept
import script
import tune_mnist
from drfl.algorithms import ALGORITHMS
from drfl.core.errors import DivergedError
from drfl.data import Dataset, load
from drfl.experiments.config.build import build
from drfl.experiments.config.config import load_config
from drfl.experiments.run.artifacts import versions
from drfl.resilience import FailureModel, Faulty
from drfl.training.loop import run

RESULTS = Path(__file__).parent / "results" / "dropout"
TUNED = script.tuned("mnist-linear")
JOB = {**tune_mnist.JOB, **script.sized({}, {"rounds": 1})}
SEEDS = range(script.sized(3, 1))
DROPS = script.sized((0.0, 0.1, 0.3, 0.5), (0.0, 0.5))
COLUMNS = ("algorithm", "drop", "seed", "avg_percent", "worst_percent", "std_percent", "skipped_rounds", "messages")
"""All values of a run that diverged are 0."""


class Cell(NamedTuple):
    """One run."""

    algorithm: str
    drop: float
    seed: int

    def key(self) -> tuple[str, ...]:
        """The first columns of the run's row."""
        return self.algorithm, str(self.drop), str(self.seed)


def cells() -> list[Cell]:
    return [Cell(name, drop, seed) for name in ALGORITHMS for drop in DROPS for seed in SEEDS]


_data: list[Dataset] = []  # one per process


def start(dataset: str, data_dir: Path | None) -> None:
    _data[:] = [load(dataset, data_dir=data_dir)]


def scores(cell: Cell) -> list[str]:
    """The columns after the key."""
    config = load_config(None, {**JOB, "algorithms": TUNED, "algorithm": cell.algorithm, "seed": cell.seed})
    job = build(config, _data[0])
    algorithm = Faulty(job.algorithm, FailureModel(drop=cell.drop))
    try:
        result = run(algorithm, job.fed, rounds=config.rounds, seed=cell.seed, evaluate_every=config.rounds)
    except DivergedError:
        return ["0"] * (len(COLUMNS) - len(cell))
    last = result.history.last
    percent = (last.metrics.avg_score, last.metrics.worst_score, last.metrics.std_score)
    return [*(f"{100 * x:.2f}" for x in percent), str(result.skipped), str(last.ledger["messages"])]


def spread(values: list[float]) -> str:
    """Mean ± standard deviation over the seeds."""
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{deviation}"


def table(found: kept.Rows) -> str:
    """Tables of the average and of the worst client's accuracy, by algorithm and probability."""
    lines = []
    for title, column in (("Average", 0), ("Worst client's", 1)):
        lines += [f"{title} accuracy in % by the probability of dropping out", ""]
        lines += ["| algorithm | " + " | ".join(f"{drop:g}" for drop in DROPS) + " |"]
        lines += ["| --- |" + " ---: |" * len(DROPS)]
        for name in ALGORITHMS:
            rows = ([found[Cell(name, drop, seed).key()] for seed in SEEDS] for drop in DROPS)
            means = [spread([float(row[column]) for row in cell]) for cell in rows]
            lines.append(f"| {name} | " + " | ".join(means) + " |")
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def about() -> dict[str, object]:
    """The settings behind the table."""
    return {
        "command": "python evidence/dropout.py --data-dir DIR",
        "job": JOB,
        "parameters": {name: TUNED.get(name, "default") for name in ALGORITHMS},
        "drop": list(DROPS),
        "seeds": list(SEEDS),
        "device": "cpu",
        "dtype": "float32",
        "versions": versions(),
    }


def main() -> None:
    parser = script.parser(__doc__, RESULTS, data=True)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    todo = {cell.key(): cell for cell in cells()}
    workers = kept.Workers(options.processes, start, (JOB["dataset"], options.data_dir))
    found = kept.fill(options.out / "cells.csv", COLUMNS, todo, scores, workers)
    script.store(options.out, {"table.md": table(found), "summary.json": about()})


if __name__ == "__main__":
    main()
