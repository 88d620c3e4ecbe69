"""Run directories made by hand."""

import csv
import functools
import json
from pathlib import Path

import numpy as np
import pytest

from drfl.report import load_run
from drfl.training.history import CERTIFICATE_COLUMNS, LEDGER_COLUMNS, columns_of

CURVES = {"FedAvg": (0.92, 0.80), "DRFA": (0.91, 0.84), "DualDRDM": (0.93, 0.88)}

MEASURES = [{"name": "accuracy", "more_is_better": True, "percent": True, "rows": "binary"}]

COLUMNS = ("round", *columns_of("accuracy"), *LEDGER_COLUMNS, "flagged_mass")


def write_directory(root, name, algorithm="FedAvg", seed=0, *, clients=6, rounds=10, dataset="digits", **changes):
    """Write a run directory like `drfl run`, and return it.

    `changes`: `names` of the clients, `rows` of the history to use instead, `summary` and `config` to merge in, `gap`
    over the certified rounds, whether they are `proven`, and the final `worst` accuracy.
    """
    rng = np.random.default_rng([seed, sum(map(ord, algorithm))])
    directory = Path(root) / name
    directory.mkdir(parents=True)
    names = changes.get("names") or [f"c{i:03d}" for i in range(clients)]
    average, worst = CURVES.get(algorithm, (0.9, 0.82))
    steps = np.arange(rounds + 1)
    rise = 1 - np.exp(-steps / max(1, rounds / 8))
    noise = rng.normal(0, 0.006, (3, rounds + 1)) + rng.normal(0, 0.004)
    avg = 0.1 + (average - 0.1) * rise + 0.2 * noise[0]
    low = np.maximum(0, worst * rise + noise[1])
    std = (average - worst) * 0.4 + 0.1 * (1 - rise) + 0.2 * noise[2]
    loss = 0.2 + 2 * (1 - rise) + 0.2 * np.abs(noise[0])
    costs = [steps * 4e5, steps * 6e5, steps * 6400, 0 * steps]
    rows = np.column_stack([steps, avg, low, std, low + 0.01, avg + 0.04, loss, 2 * loss, *costs])
    rows, columns = changes.get("rows", rows), COLUMNS
    final = dict(zip(COLUMNS[1:8], map(float, rows[-1, 1:8]), strict=True))
    if "gap" in changes:
        gap = np.asarray(changes["gap"], dtype=float)
        rows, columns = np.column_stack([rows, 0.5 + gap, 0 * gap + 0.5, gap]), (*COLUMNS, *CERTIFICATE_COLUMNS)
        final |= {"primal": 0.5 + gap[-1], "lower": 0.5, "gap": gap[-1], "gradient_norm": 1e-7}
        final |= {"proven": changes.get("proven", True)}
    final |= {"worst_accuracy": changes["worst"]} if "worst" in changes else {}
    samples = np.random.default_rng(seed).integers(20, 400, clients)  # a seed has the same partition for all algorithms
    right = np.round(samples * np.sort(np.clip(rng.normal(rows[-1, 1], 0.03, clients), 0, 1)))
    accuracy = right / samples
    lam = np.full((len(rows), clients), 1 / clients)
    if algorithm != "FedAvg":
        drift = np.cumsum(rng.normal(0.02, 0.02, (len(rows), clients)) * np.linspace(1.5, -1, clients), axis=0)
        weights = np.maximum(0, 1 + drift)
        lam = weights / weights.sum(1, keepdims=True)
    summary = {
        "algorithm": algorithm, "dataset": dataset, "clients": clients, "rounds": rounds, "seed": seed, "device": "cpu",
        "partition": {"partition": "zipf-dirichlet", "clients": clients, "alpha": 0.1, "seed": seed},
        "model": "linear", "stopped": "rounds", "reference": algorithm in ("LocalOnly", "Pooled"),
        "final": final,
        "ledger": {"bytes_down": 60_000_000, "bytes_up": 40_000_000, "messages": 4000, "gradient_evaluations": 640_000,
                   "loss_evaluations": 0},
        "wall_seconds": 12.5, "versions": {"python": "3.11.9", "torch": "2.7.0"}, "measures": MEASURES,
    } | changes.get("summary", {})  # fmt: skip
    (directory / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    config = {"algorithm": algorithm, "dataset": dataset, "rounds": rounds, "seed": seed} | changes.get("config", {})
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in config.items()]
    (directory / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_csv(directory / "history.csv", columns, rows.tolist())
    write_csv(directory / "lambda.csv", ("round", *names), [[int(r[0]), *v] for r, v in zip(rows, lam, strict=True)])
    columns = ["client", "accuracy", "loss", "samples", "train_samples", "lambda", "accuracy_count"]
    cells = zip(names, accuracy, 0.3 / np.maximum(accuracy, 0.1), samples, 4 * samples, lam[-1], right, strict=True)
    write_csv(directory / "clients.csv", columns, cells)
    return directory


def write_csv(path, header, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a run directory: `write(name, algorithm, seed, ...)` returns its path."""
    return functools.partial(write_directory, tmp_path)


@pytest.fixture
def record(write):
    """Return a function that writes a run directory and reads it."""
    return lambda *args, **kwargs: load_run(write(*args, **kwargs))


@pytest.fixture
def comparison(record):
    """Return the runs of two algorithms at three seeds."""
    return [record(f"{name}-seed{seed}", name, seed) for name in ("FedAvg", "DRFA") for seed in range(3)]
