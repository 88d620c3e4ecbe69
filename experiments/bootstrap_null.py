"""How often do the tests over few seeds show a difference that is not there?

    python experiments/bootstrap_null.py

Normal differences with mean 0: 10,000 cases each of 3, 5, 6 and 10 pairs. A case counts as shown where the 95 %
percentile bootstrap interval of the mean (Efron 1979; 10,000 resamples, the same for every case) leaves 0 out, where
the paired t-test has p ≤ 0.05, where the sign flips have it, and where both do. Each share with its exact binomial 95 %
interval (Clopper, Pearson 1934). Writes results/bootstrap_null/errors.csv and summary.json.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from drfl.assessment.seeds import FLIPS_FROM, LEVEL, seed_difference
from drfl.experiments.artifacts import json_text, versions
from drfl.history import csv_text
from drfl.key import Key

RESULTS = Path(__file__).parent / "results" / "bootstrap_null"
PAIRS = (3, 5, 6, 10)
CASES = RESAMPLES = 10_000
BLOCK = 500
SEED = 0
COLUMNS = ("pairs", "test", "cases", "shown", "share", "low", "high")


def bootstrap_shows(cases: np.ndarray) -> int:
    """Of how many cases (CASES, n) the percentile interval of the resampled means leaves 0 out."""
    n = cases.shape[1]
    places = Key(SEED).fold("resamples", n).generator().integers(0, n, (RESAMPLES, n))
    counts = np.stack([(places == k).sum(1) for k in range(n)])  # (n, RESAMPLES): how often each value is drawn
    shown = 0
    for start in range(0, len(cases), BLOCK):
        means = cases[start : start + BLOCK] @ counts / n
        low, high = np.quantile(means, [LEVEL / 2, 1 - LEVEL / 2], axis=1)
        shown += int(((low > 0) | (high < 0)).sum())
    return shown


def shown(n: int) -> dict[str, int]:
    """Cases of n pairs in which each test shows a difference."""
    cases = Key(SEED).fold("differences", n).generator().normal(size=(CASES, n))
    found = [seed_difference(case) for case in cases]
    t = np.array([d.p_t <= LEVEL for d in found])
    counts = {"percentile bootstrap": bootstrap_shows(cases), "paired t": int(t.sum())}
    if n >= FLIPS_FROM:
        flips = np.array([d.p_flips <= LEVEL for d in found])
        counts |= {"sign flips": int(flips.sum()), "paired t and sign flips": int((t & flips).sum())}
    return counts


def main() -> None:
    rows = []
    for n in PAIRS:
        for test, count in shown(n).items():
            ends = binomtest(count, CASES).proportion_ci(0.95)
            rows.append([n, test, CASES, count, f"{count / CASES:.4f}", f"{ends.low:.4f}", f"{ends.high:.4f}"])
    about = {
        "command": "python experiments/bootstrap_null.py",
        "law": "normal, mean 0, standard deviation 1",
        "seed": SEED,
        "cases": CASES,
        "resamples": RESAMPLES,
        "level": LEVEL,
        "versions": {**versions(), "scipy": importlib.metadata.version("scipy")},
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "errors.csv").write_text(csv_text(COLUMNS, rows), encoding="utf-8")
    (RESULTS / "summary.json").write_text(json_text(about, indent=2) + "\n", encoding="utf-8")
    print(csv_text(COLUMNS, rows))


if __name__ == "__main__":
    main()
