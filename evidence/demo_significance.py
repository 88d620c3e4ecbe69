"""Test whether the differences in the demo are significant: over rows at the first seed, and paired over seeds.

    make demo && python evidence/demo_significance.py runs/demo
    python evidence/demo_significance.py --smoke

For each pair of algorithms and the worst client's accuracy in points, the script prints two results. One is the
interval of the gain at seed 0, for two models on the same test rows. The other is the mean gain over seeds with its 95
% t-interval and Holm's correction over the pairs. Test sets of different seeds share rows, so seeds provide no evidence
about other rows, and seed 0 none about other seeds: a difference is significant if both show it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd

import script
from drfl.assessment.seeds import holm_family, seed_difference, verdict
from drfl.core.csv_cells import csv_text
from drfl.experiments.assess.assess_runs import gain_of_folders

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "digits_demo"
PAIRS = (
    ("DualDRDM", "FedAvg"),
    ("DualDRDM", "DRFA"),
    ("DualDRDM", "SCAFFOLD"),
    ("DualDRDM", "DRDM"),
    ("DRFA", "FedAvg"),
)
HEADER = (
    *("algorithm", "against", "seed_0_gain", "seed_0_low", "seed_0_high", "seed_0"),
    *("seeds", "mean_gain", "mean_low", "mean_high", "p_holm", "over_seeds"),
)


def short_demo(folder: Path) -> Path:
    """Run the comparison of ``make demo`` with two seeds and two rounds."""
    job, size = HERE.parent / "examples" / "one_class.toml", ("--seeds", "2", "--rounds", "2")
    names = ",".join({name: None for pair in PAIRS for name in pair})
    subprocess.run(
        [sys.executable, "-m", "drfl", "compare", job, *size, "--algorithms", names, "--out", folder], check=True
    )
    return folder


def main() -> None:
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("runs", type=Path, nargs=script.sized(None, "?"), help="folder of make demo's runs")
    options = parser.parse_args()
    runs = options.runs or short_demo(options.out / "runs")
    worst = pd.read_csv(runs / "compare.csv").pivot(index="seed", columns="algorithm", values="worst_accuracy")
    seeds = [seed_difference(100 * (worst[a] - worst[b]).to_numpy()) for a, b in PAIRS]
    rows = []
    for (a, b), over, p in zip(PAIRS, seeds, holm_family(seeds), strict=True):
        one = gain_of_folders(runs / f"{b}-seed0", runs / f"{a}-seed0").worst
        points = (f"{100 * x:.1f}" for x in (one.value, one.low, one.high))
        mean = (f"{x:.1f}" for x in (over.mean, over.low, over.high))
        rows.append([a, b, *points, one.shown, over.n, *mean, f"{p:.4f}", verdict(over, p)])
    text = csv_text(HEADER, rows)
    script.store(options.out, {"significance.csv": text})
    print(text)


if __name__ == "__main__":
    main()
