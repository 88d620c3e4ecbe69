"""Make the tables in docs/results/resilience.md on clients that send false models, from the results of false_models.py.

`make pages` writes them into the page.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.tables import markdown
from evidence.tables import CALLED, Row, rows_of

from drfl.assessment.seeds import SeedDifference, seed_difference

SEEDS = 5
NAMES = {"digits": "digits, α = 1", "mnist": "MNIST, α = 0.1"}
Of = tuple[str, str, str, str, str]
"""Data set, outlier, attack, algorithm, defence."""


def cells() -> dict[Of, list[Row]]:
    """The rows, by seed, of each cell that has all its seeds."""
    found: dict[Of, list[Row]] = {}
    for row in rows_of("false_models/cells.csv"):
        of = (row["dataset"], row["outlier"], row["attack"], row["algorithm"], row["defence"])
        found.setdefault(of, []).append(row)
    return {of: sorted(rows, key=lambda row: row["seed"]) for of, rows in found.items() if len(rows) == SEEDS}


def values(rows: list[Row], column: str) -> list[float]:
    """The values of a column in the order of the seeds."""
    return [float(row[column]) for row in rows]


def shown(seen: SeedDifference, sign: str = "") -> str:
    """Format a mean over seeds with half the width of its 95 % t-interval."""
    half = seen.high - seen.mean
    return f"{seen.mean:{sign}.1f} ± {0 if math.isnan(half) else half:.1f}"  # NaN if all seeds are equal


ATTACKS = ("none", "sign flip", "constant push", "inner product", "adaptive to probe", "labels flipped")
"""The attacks shown on the page; the stored tables have all."""


def attacks(algorithm: str) -> str:
    """Tables of the worst honest client of an algorithm by defence and attack, one per data set."""
    stored, tables = cells(), []
    defences = list(dict.fromkeys(of[4] for of in stored))
    for dataset, name in NAMES.items():
        rows = []
        for defence in defences:
            own = [stored.get((dataset, "no", attack, algorithm, defence)) for attack in ATTACKS]
            if all(own):
                rows.append([defence, *(shown(seed_difference(values(seen, "worst"))) for seen in own if seen)])
        tables.append(markdown([f"{CALLED.get(algorithm, algorithm)}, {name}", *ATTACKS], rows))
    return "\n\n".join(tables)


def outlier() -> str:
    """Tables of the cost of each defence to an honest outlier, in points of accuracy, one per data set and attack."""
    stored, tables = cells(), []
    algorithms = list(dict.fromkeys(of[3] for of in stored))
    defences = [name for name in dict.fromkeys(of[4] for of in stored) if name != "default"]
    for dataset, name in NAMES.items():
        clean = [stored.get((dataset, "yes", "none", algorithm, "default")) for algorithm in algorithms]
        if not all(clean):
            continue
        alone = [shown(seed_difference(values(seen, "other"))) for seen in clean if seen]
        for attack, title in (("none", "no attack"), ("sign flip", "sign flip")):
            rows = [["default, no attack: its accuracy, %", *alone]]
            for defence in defences:
                told = [
                    shown(seed_difference(differences(stored[dataset, "yes", attack, algorithm, defence], before)), "+")
                    if before and (dataset, "yes", attack, algorithm, defence) in stored
                    else "–"
                    for algorithm, before in zip(algorithms, clean, strict=True)
                ]
                rows.append([defence, *told])
            head = [f"{name}, {title}", *(CALLED.get(algorithm, algorithm) for algorithm in algorithms)]
            tables.append(markdown(head, rows))
    return "\n\n".join(tables)


def differences(after: list[Row], before: list[Row]) -> list[float]:
    """The outlier's accuracy with a defence, minus that without defence and attack, for each seed."""
    return [a - b for a, b in zip(values(after, "other"), values(before, "other"), strict=True)]


def costs() -> str:
    """List the cost of sign flips and constant pushes with `probe`, by data set and algorithm."""
    stored, lines = cells(), []
    for dataset, name in NAMES.items():
        for algorithm, defence in itertools.product(("DualDRDM", "ScaffPD"), ("probe", "probe, no set")):
            own = {
                attack: stored.get((dataset, "no", attack, algorithm, defence))
                for attack in ("none", "sign flip", "constant push")
            }
            clean = stored.get((dataset, "no", "none", algorithm, "default"))
            if clean is None or not all(own.values()):
                continue
            told = []
            for attack in ("sign flip", "constant push"):
                pairs = zip(values(own[attack] or [], "worst"), values(clean, "worst"), strict=True)
                seen = seed_difference([a - b for a, b in pairs])
                told.append(f"{attack} {seen.mean:+.1f} ({seen.low:+.1f} to {seen.high:+.1f})")
            lines.append(f"- {name}, {CALLED[algorithm]}, {defence}: {', '.join(told)}")
    return "\n".join(lines)


BLOCKS: dict[str, Callable[[], str]] = {
    "resilience.attacks-dual-drdm": lambda: attacks("DualDRDM"),
    "resilience.attacks-scaff-pd": lambda: attacks("ScaffPD"),
    "resilience.probe-costs": costs,
    "resilience.outlier": outlier,
}
"""Page and block → function that writes it."""
