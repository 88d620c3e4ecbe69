"""Measure how often tests over few seeds find a difference that does not exist, and apply them to the stored tables.

    python evidence/bootstrap_null.py [--smoke]

There are 10,000 cases each of 3, 5, 6 and 10 pairs, whose differences are normal with mean 0. A case counts as
significant if the 95 % percentile bootstrap interval of the mean (Efron 1979; 10,000 resamples, the same for every
case) excludes 0, if the paired t-test has p ≤ 0.05, if the sign flips have it, or if both tests have it.
results/bootstrap_null/errors.csv has each share with its exact binomial 95 % interval (Clopper and Pearson 1934).

results/bootstrap_null/tables.csv has the number of significant differences in the stored reproductions according to the
bootstrap alone, the paired t-test alone (both uncorrected) and the rule of drfl.assessment.seeds. summary.json has the
versions.
"""

from __future__ import annotations

import csv
import functools
import importlib.metadata
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

import script
from drfl.assessment.seeds import FLIPS_FROM, LEVEL, seed_difference
from drfl.core.csv_cells import csv_text
from drfl.core.key import Key
from drfl.experiments.run.artifacts import versions

STORED = Path(__file__).parent / "results"
RESULTS = STORED / "bootstrap_null"
PAIRS = (3, 5, 6, 10)
CASES = RESAMPLES = script.sized(10_000, 100)
BLOCK = 500
SEED = 0
COLUMNS = ("pairs", "test", "cases", "shown", "share", "low", "high")
TABLE_COLUMNS = ("result", "pairs", "differences", "bootstrap_alone", "paired_t_alone", "decided")


@functools.cache
def weights(n: int) -> np.ndarray:
    """The share of each value in each resample, (n, RESAMPLES)."""
    places = Key(SEED).fold("bootstrap", n).generator().integers(0, n, (RESAMPLES, n))
    return np.stack([(places == k).mean(1) for k in range(n)])


def bootstrap_shows(cases: np.ndarray) -> int:
    """The number of cases (CASES, n) in which the percentile interval of the resampled means excludes 0."""
    shown = 0
    for start in range(0, len(cases), BLOCK):
        means = cases[start : start + BLOCK] @ weights(cases.shape[1])
        low, high = np.quantile(means, [LEVEL / 2, 1 - LEVEL / 2], axis=1)
        shown += int(((low > 0) | (high < 0)).sum())
    return shown


def shown(n: int) -> dict[str, int]:
    """The number of cases of n pairs in which each test finds a difference."""
    cases = Key(SEED).fold("differences", n).generator().normal(size=(CASES, n))
    found = [seed_difference(case) for case in cases]
    t = np.array([d.p_t <= LEVEL for d in found])
    counts = {"percentile bootstrap": bootstrap_shows(cases), "paired t": int(t.sum())}
    if n >= FLIPS_FROM:
        flips = np.array([d.p_flips <= LEVEL for d in found])
        counts |= {"sign flips": int(flips.sum()), "paired t and sign flips": int((t & flips).sum())}
    return counts


def errors() -> list[list[object]]:
    rows: list[list[object]] = []
    for n in PAIRS:
        for test, count in shown(n).items():
            ends = binomtest(count, CASES).proportion_ci(0.95)
            rows.append([n, test, CASES, count, f"{count / CASES:.4f}", f"{ends.low:.4f}", f"{ends.high:.4f}"])
    return rows


def table(folder: Path) -> list[object]:
    """The number of a result's paired differences that each rule finds significant."""
    with (folder / "cells.csv").open(newline="", encoding="utf-8") as file:
        cells = {(row["setting"], row["method"], row["seed"]): row for row in csv.DictReader(file)}
    with (folder / "paired.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    bootstrap = 0
    for row in rows:
        ended = [seed for s, m, seed in cells if (s, m) == (row["setting"], row["reference"])]
        both = [
            [cells[row["setting"], row[of], seed][row["metric"]] for of in ("reference", "method")] for seed in ended
        ]
        values = np.array([[float(a) - float(b) for a, b in both if a and b]])
        bootstrap += bootstrap_shows(values) if values.shape[1] > 1 else 0
    pairs = sorted({int(row["pairs"]) for row in rows})
    t = sum(row["p_t"] != "" and float(row["p_t"]) <= LEVEL for row in rows)
    decided = sum(row["seen"] in ("better", "worse") for row in rows)
    return [folder.name, "–".join(map(str, dict.fromkeys((pairs[0], pairs[-1])))), len(rows), bootstrap, t, decided]


def main() -> None:
    options = script.parser(__doc__, RESULTS).parse_args()
    about = {
        "command": "python evidence/bootstrap_null.py",
        "law": "normal, mean 0, standard deviation 1",
        "seed": SEED,
        "cases": CASES,
        "resamples": RESAMPLES,
        "level": LEVEL,
        "versions": {**versions(), "scipy": importlib.metadata.version("scipy")},
    }
    texts = {
        "errors.csv": csv_text(COLUMNS, errors()),
        "tables.csv": csv_text(TABLE_COLUMNS, [table(path.parent) for path in sorted(STORED.glob("*/paired.csv"))]),
    }
    script.store(options.out, {**texts, "summary.json": about})
    print(*texts.values(), sep="\n")


if __name__ == "__main__":
    main()
