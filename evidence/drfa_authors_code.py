"""Measure which differences between the DRFA authors' code and the paper's Algorithm 1 matter on their first job.

    python evidence/drfa_authors_code.py --data-dir DIR [--smoke]

The job is logistic regression on Fashion-MNIST with ten clients of one class each, η = 0.1, γ = 0.008, τ = 10, batches
of 50, 100 rounds (Deng et al. 2020, §6) and five seeds. Differences are switched on one at a time from Algorithm 1, and
switched off one at a time from the code. Each variant is compared with its starting point at the same seeds by 95 %
t-intervals. Because (w, λ) circles the saddle point, a single round is not informative: differences are of means over
the last 50 rounds, of which every fifth is tested. The same is measured with drfa_authors_numpy.py, an independent
implementation in NumPy, which also has the code's snapshot. The script writes cells.csv, table.md and summary.json in
results/drfa_authors_code.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

import script
from drfa_authors_numpy import Round, probabilities
from drfa_authors_numpy import run as numpy_run
from drfl.core.csv_cells import csv_text
from drfl.data import Dataset, load
from drfl.experiments.config.build import build
from drfl.experiments.config.config import load_config
from drfl.experiments.run.artifacts import versions
from drfl.experiments.run.measures import Interval
from drfl.training.loop import run
from drfl_papers.specification import load_job

RESULTS = Path(__file__).parent / "results" / "drfa_authors_code"
SEEDS, (ROUNDS, TAIL, EVERY) = range(script.sized(5, 2)), script.sized((100, 50, 5), (2, 1, 1))
HEADER = ("by", "model", "variant", "seed", "avg_percent", "tail_avg_percent", "tail_worst_percent")
Record = tuple[str, str, str, int, float, float, float]

PAPER = {"lr": 0.1, "gamma": 0.008, "dual_batch": 50}
AGGREGATE = {"sampling": "everybody"}
DECAY = {"gamma": 0.0072, "gamma_schedule": "exponential:factor=0.9"}  # the first round already uses 0.9·γ
FLOOR = {"ambiguity": "simplex:floor=0.001"}
SHARES = {"lam0": "shares"}
LAUNCHER = {"lr_schedule": "step:every=12,factor=0.990099", "weight_decay": 1e-4}
FOUR = AGGREGATE | DECAY | FLOOR | SHARES

START, CODE, HERE = "Algorithm 1, everybody weighted by λ", "authors' code", "authors' code, but the paper's snapshot"


def without(*parts: dict) -> dict:
    """All four changes except these, for which Algorithm 1's parameters are used."""
    return {name: value for name, value in FOUR.items() if not any(name in part for part in parts)}


VARIANTS: dict[str, tuple[dict, str | None]] = {
    START: (AGGREGATE, None),
    "+ γ times 0.9 a round": (AGGREGATE | DECAY, START),
    "+ floor of 0.001": (AGGREGATE | FLOOR, START),
    "+ λ⁰ = shares": (AGGREGATE | SHARES, START),
    "Algorithm 1, ten drawn from λ with replacement": ({}, START),
    HERE: (FOUR, START),
    "− γ times 0.9 a round": (without(DECAY), HERE),
    "− floor": (without(FLOOR), HERE),
    "− λ⁰ = shares": (without(SHARES), HERE),
    "− everybody, ten drawn from λ with replacement": (without(AGGREGATE), HERE),
    "+ its launcher's η/1.01 an epoch and weight decay": (FOUR | LAUNCHER, HERE),
}
"""The changes of each variant, and the variant that it is compared with."""

ALL = Round(decay=0.9, floor=True, early=True, uniform=True)
SECOND: dict[str, tuple[Round, str | None]] = {
    START: (Round(), None),
    "+ γ times 0.9 a round": (Round(decay=0.9), START),
    "+ floor of 0.001": (Round(floor=True), START),
    "+ snapshot after 0 to τ − 2 steps": (Round(early=True), START),
    "+ snapshot as the uniform mean": (Round(uniform=True), START),
    "Algorithm 1, ten drawn from λ with replacement": (Round(drawn=True), START),
    HERE: (ALL._replace(early=False, uniform=False), START),
    CODE: (ALL, HERE),
    "− snapshot as the uniform mean": (ALL._replace(uniform=False), CODE),
    "− γ times 0.9 a round": (ALL._replace(decay=1.0), CODE),
}
"""The same for the second implementation."""


def record(by: str, model: str, variant: str, seed: int, rows: Sequence[tuple[int, float, float]]) -> Record:
    """The record of a run, from the number, average and worst accuracy of each tested round."""
    tail = [row for row in rows if row[0] > ROUNDS - TAIL]
    numbers = (rows[-1][1], *(statistics.fmean(row[at] for row in tail) for at in (1, 2)))
    return (by, model, variant, seed, *(round(100 * value, 2) for value in numbers))


def by_drfl(dataset: Dataset) -> Iterator[Record]:
    job = {**load_job("fashion-one-class").chosen(stand_in=False), "rounds": ROUNDS}
    cases = [("DRFA", name, PAPER | changes) for name, (changes, _) in VARIANTS.items()]
    for algorithm, name, values in [*cases, ("FedAvg", "FedAvg", {"lr": 0.1})]:
        for seed in SEEDS:
            overrides = {"algorithm": algorithm, "seed": seed, "algorithms": {algorithm: values}}
            made = build(load_config(None, job | overrides), dataset)
            result = run(made.algorithm, made.fed, rounds=ROUNDS, evaluate_every=EVERY, seed=seed)
            for model in ("last", "average"):
                found = [(row.round, row.last if model == "last" else row.metrics) for row in result.history.rows]
                rows = [(r, metrics.avg_score, metrics.worst_score) for r, metrics in found]
                yield record("drfl", model, name, seed, rows)
        print(name, flush=True)


def by_numpy(dataset: Dataset) -> Iterator[Record]:
    def rows_of(inputs: torch.Tensor) -> np.ndarray:
        x = inputs.reshape(len(inputs), -1).numpy()
        return np.hstack([x, np.ones((len(x), 1), dtype=x.dtype)])

    x, labels, classes = rows_of(dataset.inputs), dataset.targets.numpy(), np.arange(10)
    own = [x[labels == c] for c in classes]
    tests, test_labels = rows_of(dataset.test_inputs), dataset.test_targets.numpy()
    for name, (how, _) in SECOND.items():
        for seed in SEEDS:
            rows = []
            for r, (w, _) in enumerate(numpy_run(own, classes, how, rounds=ROUNDS, seed=seed), start=1):
                if r % EVERY == 0:
                    right = probabilities(w, tests).argmax(axis=1) == test_labels
                    scores = [float(right[test_labels == c].mean()) for c in classes]
                    rows.append((r, statistics.fmean(scores), min(scores)))
            yield record("NumPy", "last", name, seed, rows)
        print("NumPy:", name, flush=True)


def shown(values: Sequence[float], sign: str = "") -> str:
    found = Interval.of(values)
    return f"{found.mean:{sign}.1f} ± {found.half:.1f}"


def table(records: Sequence[Record], by: str, model: str, starts: dict[str, str | None]) -> list[str]:
    def column(name: str, at: int) -> list[float]:
        return [float(row[at]) for row in records if row[:3] == (by, model, name)]

    lines = [
        f"\n## {by}, {'last iterate' if model == 'last' else 'average of the iterates'}\n",
        f"| variant | avg at {ROUNDS} | avg, last {TAIL} | worst, last {TAIL} | avg: change | worst: change | from |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for name, start in starts.items():
        cells = [name, *(shown(column(name, at)) for at in (4, 5, 6)), "", "", start or ""]
        if start is not None:
            for at in (5, 6):
                pairs = zip(column(name, at), column(start, at), strict=True)
                cells[at - 1] = shown([a - b for a, b in pairs], "+")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def write(out: Path, records: Sequence[Record]) -> None:
    first = {**{name: start for name, (_, start) in VARIANTS.items()}, "FedAvg": None}
    lines = [
        "# DRFA's authors' code beside Algorithm 1: Fashion-MNIST, one class per client",
        f"\n{len(SEEDS)} seeds; accuracies in %, mean ± half the width of the 95 % t-interval; differences are paired "
        f"by seed, of means over the last {TAIL} rounds.",
    ]
    for model in ("last", "average"):
        lines += table(records, "drfl", model, first)
    lines += table(records, "NumPy", "last", {name: start for name, (_, start) in SECOND.items()})
    about = {"command": "python evidence/drfa_authors_code.py --data-dir DIR", "device": "cpu", "seeds": list(SEEDS)}
    about |= {"parameters": {name: PAPER | changes for name, (changes, _) in VARIANTS.items()}, "versions": versions()}
    texts = {"table.md": "\n".join(lines) + "\n", "cells.csv": csv_text(HEADER, records)}
    script.store(out, {**texts, "summary.json": about})


def main() -> None:
    options = script.parser(__doc__, RESULTS, data=True).parse_args()
    dataset = load("fashion-mnist", data_dir=options.data_dir)
    torch.set_num_threads(1)
    write(options.out, [*by_drfl(dataset), *by_numpy(dataset)])


if __name__ == "__main__":
    main()
