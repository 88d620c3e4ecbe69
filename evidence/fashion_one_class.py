"""Compare DRFA with FedAvg on Fashion-MNIST, one class per client (DRFA, §6): when does the worst class reach 50 %?

    python evidence/fashion_one_class.py --data-dir DIR [--smoke]

The script runs fashion_one_class.toml for 300 rounds at five seeds, once with all clients weighted by λ, and once with
ten clients drawn from λ with replacement, as in DRFA's pseudocode. A single round above 50 % may be due to chance. For
the last iterate and for the averaged one, the script therefore reports the first round at 50 %, the number of such
rounds, and the mean of the last 50 rounds.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import torch

import script
from drfl.core.csv_cells import csv_text
from drfl.data import load
from drfl.experiments.config.build import build
from drfl.experiments.config.config import load_config
from drfl.experiments.run.artifacts import versions
from drfl.training.history import Metrics
from drfl.training.loop import run
from drfl.training.run_state import RunState

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "fashion_one_class"
SEEDS, TARGET, TAIL = range(script.sized(5, 2)), 0.5, 50
ROUNDS = script.sized({}, {"rounds": 2})
"""The seeds of the job file."""
VARIANTS = {
    "DRFA, everybody weighted by λ": ("DRFA", {}),
    "DRFA, ten drawn with replacement": ("DRFA", {"sampling": "with-replacement"}),
    "FedAvg, everybody": ("FedAvg", {}),
}


def worst_by_round(algorithm: str, values: dict, seed: int, dataset) -> tuple[list[float], list[float]]:
    """Worst-class accuracy after each round, of the last and of the averaged iterate."""
    overrides = {"algorithm": algorithm, "seed": seed, "algorithms": {algorithm: values}, **ROUNDS}
    config = load_config(HERE / "fashion_one_class.toml", overrides)
    job = build(config, dataset)
    averaged: list[float] = []

    def watch(progress: RunState) -> None:
        averaged.append(Metrics.of(job.fed.evaluate(progress.average.w)).worst_score)

    result = run(job.algorithm, job.fed, rounds=config.rounds, seed=seed, averaged=True, callbacks=[watch])
    return [row.metrics.worst_score for row in result.history.rows], averaged


def first(worst: list[float]) -> int | None:
    return next((r for r, value in enumerate(worst) if value >= TARGET), None)


def row(name: str, curves: list[list[float]]) -> str:
    reached = [first(worst) for worst in curves]
    rounds = ", ".join("–" if r is None else str(r) for r in reached)
    above = ", ".join(str(sum(value >= TARGET for value in worst)) for worst in curves)
    tails = [100 * statistics.fmean(worst[-TAIL:]) for worst in curves]
    tail = f"{statistics.fmean(tails):.1f} ± {statistics.stdev(tails):.1f}"
    return f"| {name} | {rounds} | {above} | {tail} |"


def main() -> None:
    options = script.parser(__doc__, RESULTS, data=True).parse_args()
    dataset = load("fashion-mnist", data_dir=options.data_dir)
    torch.set_num_threads(1)
    lines = [
        f"| algorithm, iterate | first round at {TARGET:.0%} (seeds 0–4) | rounds at {TARGET:.0%} or above | "
        f"worst class, mean of last {TAIL} rounds, % |",
        "| --- | --- | --- | ---: |",
    ]
    records = []
    for name, (algorithm, values) in VARIANTS.items():
        pairs = [worst_by_round(algorithm, values, seed, dataset) for seed in SEEDS]
        for which, iterate in enumerate(("last", "averaged")):
            curves = [pair[which] for pair in pairs]
            lines.append(row(f"{name}, {iterate}", curves))
            print(lines[-1], flush=True)
            for seed, worst in zip(SEEDS, curves, strict=True):
                records += [[name, iterate, seed, r, f"{value:.4f}"] for r, value in enumerate(worst)]
    curves = csv_text(("algorithm", "iterate", "seed", "round", "worst_accuracy"), records)
    about = {"command": "python evidence/fashion_one_class.py", "device": "cpu", "seeds": list(SEEDS)}
    about |= {"versions": versions()}
    script.store(options.out, {"table.md": "\n".join(lines) + "\n", "worst.csv": curves, "summary.json": about})


if __name__ == "__main__":
    main()
