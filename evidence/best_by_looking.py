"""Measure how often the best algorithm is significantly better than another one although all are equally good.

    python evidence/best_by_looking.py [--smoke]

There are 4,000 cases for each number k of algorithms and for 5 and 10 seeds; all values are normal with mean 0 and
variance 1. The algorithm with the best mean is compared with all others by the paired t-test over seeds (from six seeds
on also by sign flips) with Holm's correction over the k − 1 differences, or by the rule of reports
(drfl.report.compared.verdicts_on_best). results/best_by_looking/errors.csv has the share of cases with a significant
difference, with its exact binomial 95 % interval; summary.json has the versions.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

import script
from drfl.assessment.seeds import LEVEL, holm_family, seed_difference, verdict
from drfl.core.csv_cells import csv_text
from drfl.core.key import Key
from drfl.experiments.run.artifacts import versions
from drfl.report.compared import verdicts_on_best

RESULTS = Path(__file__).parent / "results" / "best_by_looking"
SEEDS, ALGORITHMS = (5, 10), (2, 3, 5, 14)
CASES = script.sized(4_000, 20)
KEY = 0
COLUMNS = ("seeds", "algorithms", "rule", "cases", "shown", "share", "low", "high")


def shown(values: np.ndarray) -> tuple[bool, bool]:
    """Whether each rule finds the best of k algorithms significantly better than another; values (seeds, k)."""
    best, *rivals = values.T[np.argsort(-values.mean(0))]
    own = [seed_difference(best - rival) for rival in rivals]
    others = [seed_difference(a - b) for i, a in enumerate(rivals) for b in rivals[i + 1 :]]
    alone = [verdict(gain, p) for gain, p in zip(own, holm_family(own).tolist(), strict=True)]
    return "better" in alone, "better" in verdicts_on_best(own, others)[0]


def errors() -> list[list[object]]:
    rows: list[list[object]] = []
    for n in SEEDS:
        for k in ALGORITHMS:
            cases = Key(KEY).fold("algorithms", n, k).generator().normal(size=(CASES, n, k))
            counts = np.array([shown(case) for case in cases]).sum(0).tolist()
            for rule, count in zip(("its own differences", "reports"), counts, strict=True):
                ends = binomtest(count, CASES).proportion_ci(0.95)
                rows.append([n, k, rule, CASES, count, f"{count / CASES:.4f}", f"{ends.low:.4f}", f"{ends.high:.4f}"])
    return rows


def main() -> None:
    options = script.parser(__doc__, RESULTS).parse_args()
    about = {
        "command": "python evidence/best_by_looking.py",
        "law": "normal, mean 0, standard deviation 1",
        "seed": KEY,
        "cases": CASES,
        "level": LEVEL,
        "versions": {**versions(), "scipy": importlib.metadata.version("scipy")},
    }
    text = csv_text(COLUMNS, errors())
    script.store(options.out, {"errors.csv": text, "summary.json": about})
    print(text)


if __name__ == "__main__":
    main()
