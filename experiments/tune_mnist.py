"""Choose the step sizes of the MNIST table: the same number of trials for every algorithm, never on test data.

    python experiments/tune_mnist.py --data-dir DIR

Each of an algorithm's twelve settings runs on five partitions of 50,000 of MNIST's training images; the clients are
tested on the other 10,000. The setting with the best mean worst-client accuracy goes into mnist_linear.toml, every
trial into results/mnist_linear/tuning.csv.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
from pathlib import Path

import tomli_w

from drfl.algorithm import run
from drfl.data import Dataset, load
from drfl.errors import DivergedError
from drfl.experiments.build import build
from drfl.experiments.config import load_config
from drfl.history import csv_text
from drfl.key import Key

HERE = Path(__file__).parent
SEEDS = range(1000, 1005)  # other partitions than the table's seeds 0 to 4
JOB = {
    "dataset": "mnist",
    "model": "linear",
    "partition": "zipf-dirichlet",
    "clients": 30,
    "alpha": 0.1,
    "sigma": 0.0,
    "cohort": 20,
    "steps": 10,
    "batch": 32,
    "rounds": 100,
}


def grid(**values: list[float]) -> list[dict[str, float]]:
    return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]


GRIDS = {
    "FedAvg": grid(lr=[0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0]),
    "DRFA": grid(lr=[0.1, 0.3, 1.0], gamma=[0.0005, 0.002, 0.008, 0.03]),
    "DRDM": grid(lr=[0.1, 0.3], mu=[0.03, 0.1, 0.3], gamma=[0.0001, 0.0005]),
}


def validation(dataset: Dataset) -> Dataset:
    """The training images alone, 10,000 of them held out to test on."""
    order = Key(0).fold("validation").generator().permutation(len(dataset.targets))
    held, kept = order[:10_000], order[10_000:]
    x, y = dataset.inputs, dataset.targets
    return dataclasses.replace(dataset, inputs=x[kept], targets=y[kept], test_inputs=x[held], test_targets=y[held])


def worst(algorithm: str, values: dict[str, float], seed: int, dataset: Dataset) -> float:
    config = load_config(None, {**JOB, "algorithm": algorithm, "seed": seed, "algorithms": {algorithm: values}})
    job = build(config, dataset)
    try:
        result = run(job.algorithm, job.fed, rounds=config.rounds, seed=seed, evaluate_every=config.rounds)
    except DivergedError:
        return 0.0
    return result.history.last.metrics.worst_accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    dataset = validation(load("mnist", data_dir=parser.parse_args().data_dir))
    trials, chosen = [], {}
    for algorithm, points in GRIDS.items():
        scores = []
        for values in points:
            found = [worst(algorithm, values, seed, dataset) for seed in SEEDS]
            scores.append(statistics.fmean(found))
            trials.append(
                [algorithm, *(values.get(k, "") for k in ("lr", "mu", "gamma")), *(f"{x:.4f}" for x in found)]
            )
            print(algorithm, values, f"{scores[-1]:.4f}", flush=True)
        chosen[algorithm] = points[scores.index(max(scores))]
    results = HERE / "results" / "mnist_linear"
    results.mkdir(parents=True, exist_ok=True)
    header = ("algorithm", "lr", "mu", "gamma", *(f"worst_accuracy_seed{seed}" for seed in SEEDS))
    (results / "tuning.csv").write_text(csv_text(header, trials))
    (HERE / "mnist_linear.toml").write_text(tomli_w.dumps({**JOB, "algorithms": chosen}))


if __name__ == "__main__":
    main()
