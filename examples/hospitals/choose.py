"""Choose the algorithms' settings, from eight each, on validation rows: a third of each site's training rows.

    python examples/hospitals/choose.py

The setting with the smallest validation loss at the worst site wins, as the mean over three seeds. The criterion is the
loss, because accuracy changes in steps of a tenth at the smallest site. No test row of the run's seed is used. The
script writes results/choices.csv and prints the settings for linear.toml and mlp.toml.
"""

from __future__ import annotations

import itertools
import logging
import math
import statistics
from pathlib import Path

import torch

from drfl.core.csv_cells import csv_text
from drfl.core.errors import DivergedError
from drfl.data import Dataset, load
from drfl.experiments.config.build import build
from drfl.experiments.config.config import load_config
from drfl.training.loop import run

HERE = Path(__file__).parent
MODELS = ("linear", "mlp")
VALIDATION, SEEDS = 1 / 3, (0, 1, 2)
DECAYS = (0.03, 0.1, 0.3, 1.0)


def grid(name: str, values: tuple[float, ...]) -> list[dict[str, float]]:
    """Combine every weight decay with every value of a second hyperparameter."""
    return [{"weight_decay": decay, name: value} for decay, value in itertools.product(DECAYS, values)]


GRID = {
    "FedAvg": grid("lr", (0.05, 0.1)),
    "DRFA": grid("gamma", (0.001, 0.01)),
    "ScaffPD": grid("sigma", (0.01, 0.1)),  # as large as the others' γ per round: not multiplied by the ten steps
    "DualDRDM": grid("gamma", (0.001, 0.01)),
    "FineTuned": grid("fine_steps", (5, 20)),
    "LocalOnly": grid("lr", (0.05, 0.1)),
    "Pooled": grid("lr", (0.05, 0.1)),
}


def worst_loss(model: str, algorithm: str, setting: dict[str, float], seed: int, dataset: Dataset) -> float:
    """Return the largest validation loss of the sites after the last round; infinity if the run diverged."""
    own = {
        "algorithm": algorithm,
        "seed": seed,
        "validation": VALIDATION,
        "judged_on": "validation",
        "algorithms": {algorithm: setting},
    }
    job = build(load_config(HERE / f"{model}.toml", own), dataset)
    try:
        rounds, returned = job.settings.rounds, job.settings.returned
        result = run(
            job.algorithm, job.fed, rounds=rounds, seed=seed, evaluate_every=rounds, returned=returned, check_data=False
        )  # fmt: skip
    except DivergedError:
        return math.inf
    return float(result.evaluation.loss.max())


def main() -> None:
    """Run every setting, print the best ones and store the losses."""
    torch.set_num_threads(1)
    logging.getLogger("drfl.resilience").setLevel(logging.ERROR)
    dataset, rows = load("heart-disease"), []
    for model, (algorithm, settings) in itertools.product(MODELS, GRID.items()):
        found = []
        for setting in settings:
            losses = [worst_loss(model, algorithm, setting, seed, dataset) for seed in SEEDS]
            text = " ".join(f"{name}={value:g}" for name, value in setting.items())
            rows.append([model, algorithm, text, *(f"{loss:.4f}" for loss in losses)])
            found.append((statistics.fmean(losses), text))
            print(model, algorithm, text, f"{found[-1][0]:.4f}", flush=True)
        print(f"{model}: {algorithm} gets {min(found)[1]}", flush=True)
    header = ("model", "algorithm", "setting", *(f"worst_validation_loss_seed_{seed}" for seed in SEEDS))
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "choices.csv").write_text(csv_text(header, rows), encoding="utf-8")


if __name__ == "__main__":
    main()
