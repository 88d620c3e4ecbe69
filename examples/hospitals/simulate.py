"""Compare FedAvg, DRFA, SCAFF-PD, dual DRDM and baselines for four hospitals.

    python examples/hospitals/simulate.py [--seeds 5] [--rounds R] [--out DIR]

The script runs linear.toml and mlp.toml at every seed, and tests the last model on every site's test patients. It
prints the table, and writes table.md, sites.csv (a row per model, algorithm, seed and site), differences.csv (paired
over seeds), intervals.csv (of the accuracies) and summary.json. It takes about a minute on one core.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from scoring import BINS, scores
from site_table import BASELINE, COLUMNS, DIFFERENCES, INTERVALS, Site, cells, differences, intervals, table
from torch import Tensor

from drfl.core.csv_cells import csv_text
from drfl.core.errors import DrflError
from drfl.core.key import Key
from drfl.data import ClientData, Dataset, load
from drfl.experiments.config.build import Job, build
from drfl.experiments.config.config import Config, load_config
from drfl.experiments.run.artifacts import json_text, versions
from drfl.experiments.run.runner import parse_seeds
from drfl.federation.algorithm import personal_models
from drfl.federation.client_table import ClientTable
from drfl.training.loop import run

HERE = Path(__file__).parent
MODELS = ("linear", "mlp")
RUNS: dict[str, tuple[str, dict[str, float]]] = {
    "FedAvg": ("FedAvg", {}),
    "FedAvg, equal weights": ("FedAvg", {"by_samples": False}),  # without robustness
    "DRFA": ("DRFA", {}),
    "DRFA, γ = 0.01": ("DRFA", {"gamma": 0.01}),  # a larger dual step size than the chosen one
    "ScaffPD": ("ScaffPD", {}),
    "DualDRDM": ("DualDRDM", {}),
    "FineTuned": ("FineTuned", {}),
    "LocalOnly": ("LocalOnly", {}),
    "Pooled": ("Pooled", {}),
}
"""Row of the table → algorithm, and its differences from the model's file."""


def config_of(model: str, name: str, seed: int, rounds: int | None = None) -> Config:
    """Return the configuration of one run, with ``rounds`` instead of the file's number."""
    algorithm, changes = RUNS[name]
    length = {} if rounds is None else {"rounds": rounds}
    own = {"algorithm": algorithm, "algorithms": {algorithm: changes}, "seed": seed, **length}
    return load_config(HERE / f"{model}.toml", own)


def tested(data: ClientData) -> Iterator[tuple[str, Tensor, np.ndarray]]:
    """Yield every site's name, test inputs (n_i, 13) and labels (n_i,), 1 for ill."""
    for name, rows in zip(data.names, data.test, strict=True):
        yield name, data.test_inputs[rows], data.test_targets[rows].numpy()


def risks(job: Job, w: Tensor, inputs: Tensor) -> np.ndarray:
    """Compute the probabilities (n,) of being ill by the model w (d,)."""
    with torch.no_grad():
        outputs = job.task.outputs(job.task.layout.views(w), inputs.to(w.dtype))
    return outputs.double().softmax(1)[:, 1].numpy()


def simulate(model: str, name: str, seed: int, dataset: Dataset, rounds: int | None = None) -> list[Site]:
    """Run once, and score the last model at every site."""
    job = build(config_of(model, name, seed, rounds), dataset)
    rounds, returned = job.settings.rounds, job.settings.returned
    result = run(
        job.algorithm,
        job.fed,
        rounds=rounds,
        seed=seed,
        evaluate_every=max(1, rounds),
        returned=returned,
        check_data=False,
    )
    own = personal_models(job.algorithm, result.state, result.model, job.fed, Key(seed))
    return served(job, name, result.model, result.lam, own)


def served(job: Job, name: str, w: Tensor, lam: Tensor, own: ClientTable | None = None) -> list[Site]:
    """Score the model w (d,) of a run, or each site's own model (N, d), at every site with the final λ (N,)."""
    everybody, seed = torch.arange(job.data.n), job.settings.seed
    models = [w if own is None else own[client][0] for client in everybody.split(1)]
    trained = [
        float(job.fed.losses(client, model, Key(seed)).values)
        for client, model in zip(everybody.split(1), models, strict=True)
    ]
    test = job.fed.evaluate(w) if own is None else job.fed.evaluate_each(own)
    measured = zip(models, trained, test.loss.tolist(), lam.tolist(), strict=True)
    kind = str(job.about.settings["model"])
    return [
        Site(kind, name, seed, site, len(ill), int(ill.sum()), scores(risks(job, model, x), ill), *numbers)
        for (site, x, ill), (model, *numbers) in zip(tested(job.data), measured, strict=True)
    ]


def baseline(model: str, seed: int, dataset: Dataset) -> list[Site]:
    """Score the share of ill patients among the site's training patients as the risk of every patient."""
    data = build(config_of(model, "FedAvg", seed), dataset).data
    found = []
    for rows, (site, _, ill) in zip(data.train, tested(data), strict=True):
        share = float(data.targets[rows].double().mean())
        found.append(Site(model, BASELINE, seed, site, len(ill), int(ill.sum()), scores(np.full(len(ill), share), ill)))
    return found


def about(seeds: list[int], rounds: int | None) -> dict[str, object]:
    """Return the settings and versions of the results."""
    configs = {(model, name): config_of(model, name, seeds[0], rounds) for model in MODELS for name in RUNS}
    first = configs[MODELS[0], "FedAvg"]
    return {
        "command": shlex.join(["python", "examples/hospitals/simulate.py", *sys.argv[1:]]),
        "dataset": first.dataset,
        "partition": first.partition,
        "seeds": seeds,
        "rounds": {model: configs[model, "FedAvg"].rounds for model in MODELS},
        "parameters": {m: {name: configs[m, name].parameters(RUNS[name][0]) for name in RUNS} for m in MODELS},
        "calibration_bins": BINS,
        "device": first.device,
        "dtype": first.dtype,
        "versions": versions(),
    }


def main() -> None:
    """Run everything, print the table and store the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="5", help="number of seeds from 0, or a list such as 3,7")
    parser.add_argument("--rounds", type=int, help="rounds (default: 50, from the files)")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # With four clients, more than half of λ on one of them is not a problem; the table shows λ.
    logging.getLogger("drfl.resilience").setLevel(logging.ERROR)
    try:
        seeds, dataset, sites = parse_seeds(options.seeds), load("heart-disease"), []
        for model in MODELS:
            for seed in seeds:
                sites += baseline(model, seed, dataset)
                for name in RUNS:
                    sites += simulate(model, name, seed, dataset, options.rounds)
    except DrflError as error:
        parser.error(str(error))
    text = table(sites)
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "table.md").write_text(text, encoding="utf-8")
    (options.out / "sites.csv").write_text(csv_text(COLUMNS, map(cells, sites)), encoding="utf-8")
    (options.out / "differences.csv").write_text(csv_text(DIFFERENCES, differences(sites)), encoding="utf-8")
    (options.out / "intervals.csv").write_text(csv_text(INTERVALS, intervals(sites)), encoding="utf-8")
    summary = json_text(about(seeds, options.rounds), indent=2) + "\n"
    (options.out / "summary.json").write_text(summary, encoding="utf-8")


if __name__ == "__main__":
    main()
