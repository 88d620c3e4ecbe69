"""Compare the intervals of drfl.assessment with fairlearn's bootstrap and scipy's binomial intervals.

    PYTHONPATH=src python evidence/assessment_fairlearn.py [--federations 200] [--smoke]

The script requires fairlearn, which drfl does not install, and uses only modules of drfl that need nothing but numpy
and scipy. With --smoke it also runs without fairlearn, whose cells are then empty. ``MetricFrame(n_boot=…,
ci_quantiles=[0.025, 0.975])`` resamples all rows together (fairlearn's user guide, "Bootstrap confidence intervals").

hospitals.csv has the intervals for the test results in ``examples/hospitals/results/intervals.csv`` (linear model,
FedAvg, seed 0); the stored interval is simultaneous over sites, and `exact` is scipy's at the same level. coverage.csv
has two shares: how often the interval of the smallest accuracy over groups misses the true one, and how often the
interval of any group misses that group's accuracy. Both files are in results/assessment_fairlearn/.
"""

from __future__ import annotations

import csv
import platform
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

import script
from drfl.assessment.scores import BinaryScores
from drfl.assessment.worst import worst_score

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "results" / "assessment_fairlearn"
STORED = ROOT / "examples" / "hospitals" / "results" / "intervals.csv"
ALPHA, SEED = 0.05, 0
RESAMPLES, RESAMPLES_SHOWN = script.sized((200, 2000), (5, 5))
SETTINGS = {
    "4 hospitals": ([101, 87, 15, 43], [0.83, 0.80, 0.80, 0.74]),
    "20 alike, 10 rows each": ([10] * 20, [0.9] * 20),
}
"""Test rows and true accuracies."""


def bootstrap(n: np.ndarray, count: np.ndarray, resamples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """fairlearn's intervals (2, N) of the groups' accuracies and (2,) of the smallest; NaN without fairlearn."""
    if script.SMOKE and find_spec("fairlearn") is None:
        return np.full((2, len(n)), np.nan), np.full(2, np.nan)
    from fairlearn.metrics import MetricFrame
    from sklearn.metrics import accuracy_score

    groups = np.repeat(np.arange(len(n)), n)
    right = np.concatenate([np.arange(rows) < k for rows, k in zip(n, count, strict=True)]).astype(int)
    frame = MetricFrame(
        metrics=accuracy_score,
        y_true=np.ones_like(right),
        y_pred=right,
        sensitive_features=groups,
        n_boot=resamples,
        ci_quantiles=[ALPHA / 2, 1 - ALPHA / 2],
        random_state=seed,
    )
    each = np.stack([own.reindex(range(len(n))).to_numpy(float) for own in frame.by_group_ci])
    return each, np.array(frame.group_min_ci(), float)


def misses(name: str, federations: int) -> list[dict[str, object]]:
    """How often the intervals of the smallest accuracy and of any group miss the true values."""
    sizes, truth = map(np.asarray, SETTINGS[name])
    rng = np.random.default_rng([SEED, len(sizes)])
    each = ALPHA / (2 * len(sizes))
    wrong = {(what, by): 0 for what in ("smallest accuracy", "any group") for by in ("fairlearn", "drfl")}
    for f in range(federations):
        count = rng.binomial(sizes, truth)
        (low, high), ends = bootstrap(sizes, count, RESAMPLES, f)
        scores = BinaryScores(sizes.astype(float), count.astype(float))
        own, worst = (scores.lower(each), scores.upper(each)), worst_score(scores, ALPHA)
        wrong["smallest accuracy", "fairlearn"] += not ends[0] <= truth.min() <= ends[1]
        wrong["smallest accuracy", "drfl"] += not worst.low <= truth.min() <= worst.high
        wrong["any group", "fairlearn"] += not ((low <= truth) & (truth <= high)).all()
        wrong["any group", "drfl"] += not ((own[0] <= truth) & (truth <= own[1])).all()
    rows = []
    for (what, by), count in wrong.items():
        p = binomtest(count, federations, ALPHA, "greater").pvalue
        told = {"setting": name, "interval": what, "by": by, "federations": federations, "misses": count}
        rows.append(told | {"share": round(count / federations, 4), "nominal": ALPHA, "p": f"{p:.2g}"})
    return rows


def hospitals() -> list[dict[str, object]]:
    """All intervals of the sites' accuracies and of the smallest one."""
    with STORED.open(newline="", encoding="utf-8") as file:
        every = list(csv.DictReader(file))
    sites = [row for row in every if (row["model"], row["algorithm"], row["seed"]) == ("linear", "FedAvg", "0")]
    n, count = (np.array([int(row[key]) for row in sites]) for key in ("test_patients", "right"))
    each, ends = bootstrap(n, count, RESAMPLES_SHOWN, SEED)
    worst = worst_score(BinaryScores(n.astype(float), count.astype(float)), ALPHA)
    rows: list[dict[str, object]] = []
    for i, site in enumerate(sites):
        alone, all_sites = (
            binomtest(int(count[i]), int(n[i])).proportion_ci(1 - level, method="exact")
            for level in (ALPHA, ALPHA / len(n))
        )
        rows.append(
            {"site": site["site"], "test_patients": n[i], "right": count[i]}
            | pair("fairlearn", *each[:, i])
            | pair("exact_alone", alone.low, alone.high)
            | pair("exact", all_sites.low, all_sites.high)
            | pair("stored", float(site["low"]), float(site["high"]))
        )
    rows.append({"site": "the worst"} | pair("fairlearn", *ends) | pair("stored", worst.low, worst.high))
    return rows


def pair(name: str, low: float, high: float) -> dict[str, object]:
    """Format both ends of an interval as cells."""
    return {f"{name}_low": f"{low:.6f}", f"{name}_high": f"{high:.6f}"}


def write(path: Path, rows: list[dict[str, object]]) -> None:
    """Write a table of results."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    print(path.read_text(encoding="utf-8"), flush=True)


def main() -> None:
    """Compare the intervals and write both tables."""
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("--federations", type=int, default=script.sized(200, 2))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write(options.out / "hospitals.csv", hospitals())
    write(options.out / "coverage.csv", [row for name in SETTINGS for row in misses(name, options.federations)])
    packages = ["numpy", "pandas", "scikit-learn", "scipy"] + ["fairlearn"] * (find_spec("fairlearn") is not None)
    about = {
        "command": f"PYTHONPATH=src python evidence/assessment_fairlearn.py --federations {options.federations}",
        "seed": SEED,
        "device": "CPU",
        "resamples": {"coverage.csv": RESAMPLES, "hospitals.csv": RESAMPLES_SHOWN},
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
    }
    script.store(options.out, {"summary.json": about})


if __name__ == "__main__":
    main()
