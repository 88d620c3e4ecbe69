"""Measure the coverage of a client's interval if several test rows belong to one patient.

    python evidence/cluster_coverage.py [--smoke]

A client has 2 to 100 patients with 1 to 20 test rows each, drawn uniformly. The rows of a patient have the intraclass
correlation ICC, from 0 (independent rows) to 1 (all rows of a patient are equal). There are three kinds of scores:

- binary: right and wrong answers with mean p. Each patient has a share of right answers from a beta distribution.
- normal: unbounded scores with mean 0 and variance 1, the sum of a normal value of the patient and one of the row.
- skewed: the same with exponential values, shifted to mean 0.

Each end of the 95 % interval may miss the true mean in 2.5 % of cases. The interval of drfl, which counts patients, is
compared with one that treats all rows as independent. Unbounded scores have Student's t in both cases, which is
approximate.

results/cluster_coverage/misses.csv has a row per kind of scores, ICC, number of patients and p: the misses of both ends
in all cases, their shares, the lower ends of their one-sided exact 99 % intervals (Clopper and Pearson 1934), the same
shares for independent rows, and the median widths of both intervals. summary.json counts the settings in which an end
misses more often than in 2.5 % of cases, judged by these 99 % intervals, and has the versions.
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.tables import markdown, paragraph

from drfl.assessment.clients import interval, scores_of
from drfl.assessment.seeds import LEVEL
from drfl.core.csv_cells import csv_text
from drfl.core.key import Key
from drfl.experiments.run.artifacts import versions
from drfl.task.metrics import ACCURACY, METRICS
from evidence import script

RESULTS = Path(__file__).parent / "results" / "cluster_coverage"
CASES = script.sized(2000, 20)
ICC = (0.0, 0.1, 0.5, 0.9, 1.0)
PATIENTS = script.sized((2, 5, 10, 20, 50, 100), (2, 10))
P = script.sized((0.02, 0.1, 0.5, 0.9, 0.98), (0.1, 0.5))
MOST_ROWS = 20
MEASURES = {"binary": ACCURACY, "normal": METRICS["mae"], "skewed": METRICS["mae"]}
COLUMNS = (
    "scores", "icc", "patients", "p", "cases", "low_misses", "low_share", "low_share_at_least", "high_misses",
    "high_share", "high_share_at_least", "width", "rows_low_share", "rows_high_share", "rows_width",
)  # fmt: skip


def binary_sums(sizes: np.ndarray, icc: float, p: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw right answers, and return their sums and sums of squares (cases,) for patients of ``sizes`` (cases, G)."""
    if icc == 0:
        shares = np.full(sizes.shape, p)
    elif icc == 1:
        shares = (rng.random(sizes.shape) < p).astype(float)
    else:
        # Two rows of a patient have the correlation 1/(a + b + 1) if its share is from Beta(a, b).
        rest = (1 - icc) / icc
        shares = rng.beta(p * rest, (1 - p) * rest, sizes.shape)
    total = rng.binomial(sizes, shares).sum(1).astype(float)
    return total, total


def real_sums(kind: str, sizes: np.ndarray, icc: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw unbounded scores, and return their sums and sums of squares (cases,)."""

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        return rng.standard_normal(shape) if kind == "normal" else rng.standard_exponential(shape) - 1

    values = math.sqrt(icc) * draw((*sizes.shape, 1)) + math.sqrt(1 - icc) * draw((*sizes.shape, MOST_ROWS))
    values[np.arange(MOST_ROWS) >= sizes[..., None]] = 0
    return values.sum((1, 2)), (values**2).sum((1, 2))


def row(kind: str, icc: float, patients: int, p: float | None) -> list[object]:
    """Simulate one setting and return its row of the table."""
    rng = Key(0).fold(kind, str(icc), patients, str(p)).generator()
    sizes = rng.integers(1, MOST_ROWS + 1, (CASES, patients))
    if p is None:
        total, squares = real_sums(kind, sizes, icc, rng)
    else:
        total, squares = binary_sums(sizes, icc, p, rng)
    true, measure, found = p or 0.0, MEASURES[kind], []
    zeros = np.zeros(CASES)
    for largest in (sizes.max(1).astype(float), zeros):
        scores = scores_of(measure, np.stack([sizes.sum(1).astype(float), total, squares, largest, zeros], 1))
        low, high = interval(scores.lower(LEVEL / 2), scores.upper(LEVEL / 2), measure)
        found.append((int((low > true).sum()), int((high < true).sum()), f"{np.median(high - low):.4f}"))
    (below, above, width), (rows_below, rows_above, rows_width) = found
    ends = [
        cell
        for count in (below, above)
        for cell in (
            count,
            share(count),
            f"{binomtest(count, CASES, alternative='greater').proportion_ci(0.99).low:.4f}",
        )
    ]
    return [
        kind, icc, patients, "" if p is None else p, CASES, *ends, width, share(rows_below), share(rows_above),
        rows_width,
    ]  # fmt: skip


def share(count: int) -> str:
    return f"{count / CASES:.4f}"


def settings() -> Iterator[tuple[str, float, int, float | None]]:
    """All settings, in the order of the table."""
    for kind in MEASURES:
        for icc in ICC:
            for patients in PATIENTS:
                for p in P if kind == "binary" else (None,):
                    yield kind, icc, patients, p


def most(rows: list[Mapping[str, str]], kind: str, icc: float, *columns: str) -> float:
    """The largest value in some columns over all settings of a kind of scores and an ICC."""
    return max(
        float(row[name]) for row in rows for name in columns if (row["scores"], float(row["icc"])) == (kind, icc)
    )


def table() -> str:
    """Write the block of docs/uncertainty.md: a row per ICC."""
    stored = list(csv.DictReader(io.StringIO((RESULTS / "misses.csv").read_text(encoding="utf-8"))))
    ends, naive = ("low_share", "high_share"), ("rows_low_share", "rows_high_share")
    lines = [
        [f"{icc:g}"]
        + [f"{100 * most(stored, kind, icc, *names):.1f} %" for kind in MEASURES for names in (ends, naive)]
        for icc in ICC
    ]
    head = ["correlation"] + [f"{kind}, {way}" for kind in MEASURES for way in ("by patient", "by row")]
    text = f"""
    The table shows the largest share of misses of one end, over {len(PATIENTS)} numbers of patients, and for binary
    scores over {len(P)} true means. The settings have {int(stored[0]["cases"]):,} cases each.
    """
    return f"{markdown(head, lines)}\n\n{paragraph(text)}"


BLOCKS: dict[str, Callable[[], str]] = {"uncertainty.patients": table}
"""The function that writes each block of a page."""


def main() -> None:
    options = script.parser(__doc__, RESULTS).parse_args()
    found = []
    for setting in settings():
        found.append(row(*setting))
        print(*found[-1], flush=True)
    texts = [dict(zip(COLUMNS, map(str, cells), strict=True)) for cells in found]
    about: dict[str, object] = {
        "command": "python evidence/cluster_coverage.py",
        "seed": 0,
        "allowed_share_of_each_end": LEVEL / 2,
        "settings": {kind: sum(cells[0] == kind for cells in found) for kind in MEASURES},
        "settings_that_miss_more_often": {
            kind: sum(
                max(float(cells["low_share_at_least"]), float(cells["high_share_at_least"])) > LEVEL / 2
                for cells in texts
                if cells["scores"] == kind
            )
            for kind in MEASURES
        },
        "versions": {**versions(), "scipy": importlib.metadata.version("scipy")},
    }
    script.store(options.out, {"misses.csv": csv_text(COLUMNS, found), "summary.json": about})


if __name__ == "__main__":
    main()
