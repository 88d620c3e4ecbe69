"""Is what the demo shows more than chance? Paired over seeds, and against the noise of the clients' test sets.

    make demo && python experiments/demo_significance.py runs/demo

For each pair of algorithms: the mean difference of the worst client's accuracy with its 95 % t interval over seeds, and
the interval that redrawn test sets alone would give (each client's accuracy a binomial of its own rate and size). Test
sets of different seeds share rows, so that the second is that of one seed, not narrowed by their number.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from scipy import stats

from drfl.history import csv_text

RESULTS = Path(__file__).parent / "results" / "digits_demo"
PAIRS = (
    ("DualDRDM", "FedAvg"),
    ("DualDRDM", "DRFA"),
    ("DualDRDM", "SCAFFOLD"),
    ("DualDRDM", "DRDM"),
    ("DRFA", "FedAvg"),
)
DRAWS = 20_000


def clients(runs: Path) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """Algorithm → accuracies (N,) and test samples (N,) of each seed, in the order of the seeds."""
    with (runs / "compare.csv").open(newline="") as file:
        cells = [(row["algorithm"], row["seed"]) for row in csv.DictReader(file)]
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for name, seed in cells:
        with (runs / f"{name}-seed{seed}" / "clients.csv").open(newline="") as file:
            rows = [(float(row["accuracy"]), int(row["samples"])) for row in csv.DictReader(file)]
        accuracy, samples = zip(*rows, strict=True)
        found.setdefault(name, []).append((np.array(accuracy), np.array(samples)))
    return found


def redrawn(seed: tuple[np.ndarray, np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """(DRAWS,) the worst client's accuracy on redrawn test sets."""
    accuracy, samples = seed
    return (rng.binomial(samples, accuracy, (DRAWS, len(samples))) / samples).min(1)


def row(found: dict[str, list[tuple[np.ndarray, np.ndarray]]], a: str, b: str) -> list[str]:
    rng = np.random.default_rng(0)
    seeds = list(zip(found[a], found[b], strict=True))
    differences = 100 * np.array([x[0].min() - y[0].min() for x, y in seeds])
    half = stats.t.ppf(0.975, len(seeds) - 1) * differences.std(ddof=1) / len(seeds) ** 0.5
    spread = 100 * np.mean([(redrawn(x, rng) - redrawn(y, rng)).std() for x, y in seeds])
    mean = differences.mean()
    return [a, b, f"{mean:.1f}", f"{mean - half:.1f}", f"{mean + half:.1f}", f"{1.96 * spread:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    found = clients(parser.parse_args().runs)
    header = ("algorithm", "against", "difference_points", "seeds_low", "seeds_high", "test_noise_half_width")
    text = csv_text(header, [row(found, a, b) for a, b in PAIRS])
    (RESULTS / "significance.csv").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
