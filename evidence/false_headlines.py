"""Measure how often the headline of a comparison claims more than is true.

    python evidence/false_headlines.py [--smoke]

The script simulates federations of ten clients in which all algorithms are equally good for the population. They are
passed to ``drfl.report.compared.rank_algorithms`` like runs read from folders, with scores on each test row. A
prediction is correct if z + u + e + d exceeds the client's threshold, where z belongs to the row, u to an algorithm and
the row at all seeds, e to an algorithm and the row at one seed, and d to a seed's model; all are normal. Because of u,
one algorithm can be better than another on the same test rows but not for the population.

These settings are simulated:

- ``rows``: all seeds have the same test rows and initial model ("shared"), or draw their test rows from a data set of
  three times as many rows ("redrawn"), or from the population ("fresh").
- ``lasting``: the share of the variance due to u. If it is 0, algorithms differ only between seeds.
- ``what``: "null"; "fails", in which one algorithm diverges at the worst 15 % of its seeds; "stops", in which test rows
  stop one algorithm at the first of ten rounds that reaches a target; "gain", in which one algorithm is truly better.

A headline is false if it names a rival and a scope for which the best algorithm is not better. On the same test rows,
and over divisions of one data set, the truth is the mean over 400 more seeds. results/false_headlines/rates.csv has for
each setting the number of headlines of each scope, the number and share of false ones and the exact lower 99 %
confidence bound of the share. It has the same for the earlier rule: a paired t-test over the completed seeds,
interpreted for the population. summary.json has the versions.
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import binomtest, norm

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.tables import markdown

from drfl.assessment.scope import Reach
from drfl.assessment.seeds import seed_difference
from drfl.core.csv_cells import csv_text
from drfl.core.key import Key
from drfl.data.row_scores import RowScores
from drfl.experiments.run.artifacts import versions
from drfl.report.compared import Ranking, rank_algorithms, verdicts_on_best
from drfl.report.groups import group_runs
from drfl.report.read_run import FailedRun, RunRecord
from drfl.task.measure import PLAIN
from evidence import script

RESULTS = Path(__file__).parent / "results" / "false_headlines"
CASES, MORE = script.sized(2_000, 4), script.sized(400, 20)
KEY, CLIENTS, ROWS, POOL = 0, 10, 40, 3
SEED_NOISE, MODEL_NOISE = 0.2, 0.05
"""Variance of e, and standard deviation of d."""
FAILS, ROUNDS, TARGET, GAIN = 0.15, 10, 0.72, 0.8
NAMES = tuple("ABCDEFGH")
COLUMNS = (
    "algorithms", "seeds", "rows", "lasting", "what", "cases", "of_seeds", "of_population", "false", "share", "low_99",
    "false_before", "share_before", "low_99_before",
)  # fmt: skip


class Setting(NamedTuple):
    """The settings of a simulation; see the module.

    Args:
        algorithms: number of algorithms.
        seeds: number of seeds.
        rows: "shared", "redrawn" or "fresh".
        lasting: variance of u.
        what: "null", "fails", "stops" or "gain".
    """

    algorithms: int
    seeds: int
    rows: str
    lasting: float
    what: str = "null"


SETTINGS = (
    *(Setting(k, n, *how) for k, n, how in itertools.product(
        (2, 8), (5, 10), (("shared", 0.0), ("shared", 0.2), ("redrawn", 0.2), ("fresh", 0.2)))),
    *(Setting(k, 10, "redrawn", 0.2, what) for k, what in itertools.product((2, 8), ("fails", "stops", "gain"))),
    Setting(2, 10, "shared", 0.2, "gain"),
)  # fmt: skip


class World:
    """A data set and the algorithms that are trained on it.

    Args:
        setting: the settings of the simulation.
        draw: the random generator.
    """

    def __init__(self, setting: Setting, draw: np.random.Generator) -> None:
        self.setting, self.draw = setting, draw
        self.thresholds = -draw.uniform(0.6, 1.2, CLIENTS)
        many = ROWS * (POOL if setting.rows == "redrawn" else 1)
        self.z = self.normal((CLIENTS, many), 1 - setting.lasting - SEED_NOISE)
        self.u = self.normal((setting.algorithms, CLIENTS, many), setting.lasting)

    def normal(self, shape: tuple[int, ...], variance: float) -> np.ndarray:
        """Draw normal numbers."""
        return self.draw.normal(size=shape) * math.sqrt(variance)

    def rows_of(self, seeds: int) -> np.ndarray:
        """The rows of the data set that each seed tests on, (seeds, N, rows)."""
        many = self.z.shape[1]
        if many == ROWS:
            return np.broadcast_to(np.arange(ROWS), (seeds, CLIENTS, ROWS))
        return self.draw.permuted(np.broadcast_to(np.arange(many), (seeds, CLIENTS, many)), axis=2)[..., :ROWS]

    def right(self, algorithm: int, rows: np.ndarray, quality: np.ndarray) -> np.ndarray:
        """Whether an algorithm's models with these qualities (seeds,) are correct on each row, (seeds, N, rows)."""
        seeds = len(rows)
        if self.setting.rows == "fresh":
            known = self.normal((seeds, CLIENTS, ROWS), 1 - SEED_NOISE)
        else:
            at = np.arange(CLIENTS)[:, None]
            known = (self.z + self.u[algorithm])[at, rows]
        better = GAIN if self.setting.what == "gain" and not algorithm else 0.0
        e = self.normal((seeds, CLIENTS, ROWS), SEED_NOISE)
        return known + e + quality[:, None, None] + better > self.thresholds[:, None]

    def qualities(self, seeds: int) -> np.ndarray:
        """Draw the qualities of the models, (seeds,)."""
        return self.draw.normal(size=seeds) * MODEL_NOISE

    def truth(self) -> np.ndarray:
        """The mean worst accuracy of each algorithm (k,) on these rows, or over divisions of this data set."""
        rows = self.rows_of(MORE)
        qualities = self.qualities(MORE)
        each = (self.right(a, rows, qualities) for a in range(self.setting.algorithms))
        return np.array([right.mean(2).min(1).mean() for right in each])


class Case(NamedTuple):
    """The runs of a comparison.

    Args:
        records: runs that finished.
        failed: runs that failed.
        world: the data set and the algorithms.
    """

    records: list[RunRecord]
    failed: list[FailedRun]
    world: World


NOTHING = pd.DataFrame({"round": [0.0]})
TESTED = pd.DataFrame({"client": [f"client-{i}" for i in range(CLIENTS)], "samples": float(ROWS)})


def case_of(setting: Setting, number: int) -> Case:
    """Run all algorithms at all seeds."""
    world = World(setting, Key(KEY).fold("headlines", *map(str, setting), number).generator())
    records, failed, rows = list[RunRecord](), list[FailedRun](), world.rows_of(setting.seeds)
    for algorithm in range(setting.algorithms):
        qualities = world.qualities(setting.seeds)
        right = world.right(algorithm, rows, qualities)
        ends = ["rounds"] * setting.seeds
        if setting.what == "stops" and not algorithm:
            right, ends = stopped(world, rows, right)
        breaks = setting.what == "fails" and not algorithm
        lost = set(np.flatnonzero(qualities < norm.ppf(FAILS) * MODEL_NOISE).tolist()) if breaks else set()
        for seed in range(setting.seeds):
            if seed in lost:
                failed.append(FailedRun(NAMES[algorithm], str(seed), "diverged"))
            else:
                records.append(record_of(setting, algorithm, seed, right[seed], rows[seed], ends[seed]))
    return Case(records, failed, world)


def stopped(world: World, rows: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Run further rounds until the worst client reaches the target on test rows; return how each seed ends."""
    found, ends = right.copy(), ["rounds"] * len(right)
    for _ in range(ROUNDS - 1):
        reached = found.mean(2).min(1) >= TARGET
        ends = ["target" if own else "rounds" for own in reached]
        again = world.right(0, rows, world.qualities(len(rows)))
        found = np.where(reached[:, None, None], found, again)
    return found, ends


def record_of(setting: Setting, algorithm: int, seed: int, right: np.ndarray, rows: np.ndarray, end: str) -> RunRecord:
    """The record of a run, as reports read it."""
    accuracy = right.mean(1)
    same = setting.rows == "shared"
    data = "shared" if same else str(seed)
    summary: dict[str, object] = {
        "algorithm": NAMES[algorithm], "dataset": "simulated", "clients": CLIENTS, "seed": seed, "stopped": end,
        "stopped_on": "test" if end == "target" else None, "test_rows": data, "initial_model": data,
        "final": {"avg_loss": 0.0, "worst_loss": 0.0, "worst_accuracy": float(accuracy.min())},
    }  # fmt: skip
    scores = RowScores(
        torch.arange(CLIENTS + 1) * ROWS,
        torch.from_numpy(np.where(same, np.arange(CLIENTS * ROWS), rows.reshape(-1))),
        {PLAIN.name: torch.from_numpy(right.reshape(-1).astype(np.uint8))},
        data,
    )
    return RunRecord(
        f"{NAMES[algorithm]}-{seed}", {}, summary, NOTHING, TESTED, NOTHING, (PLAIN,), row_scores=lambda: scores
    )


def is_false(found: Ranking, case: Case) -> bool:
    """Whether the headline claims that the best algorithm is better than a rival although it is not."""
    setting, best = case.world.setting, NAMES.index(found.best.runs[0].algorithm)
    claims = [(NAMES.index(one.rival.runs[0].algorithm), one.reach) for one in found.comparisons if one.reach]
    gained = setting.what == "gain" and not best  # all other algorithms are equal
    if gained or not claims:
        return False
    if setting.rows == "fresh" or not setting.lasting or any(reach is Reach.POPULATION for _, reach in claims):
        return True
    truth = case.world.truth()
    return any(truth[best] <= truth[rival] for rival, _ in claims)


def claims_before(case: Case) -> bool:
    """Whether the earlier rule, which only tests finished runs over seeds, makes a false claim."""
    worst: dict[str, dict[str, float]] = {}
    for run in case.records:
        worst.setdefault(run.algorithm, {})[run.seed] = run.final("worst_score")
    ranked = sorted(worst.values(), key=lambda own: -np.mean(list(own.values())))

    def gain(one: Mapping[str, float], other: Mapping[str, float]) -> list[float]:
        return [one[seed] - other[seed] for seed in one if seed in other]

    best, *rivals = ranked
    own = [seed_difference(gain(best, rival)) for rival in rivals]
    others = [seed_difference(gain(a, b)) for i, a in enumerate(rivals) for b in rivals[i + 1 :]]
    truly = case.world.setting.what == "gain" and best is worst[NAMES[0]]
    return "better" in verdicts_on_best(own, others)[0] and not truly


def rates(setting: Setting) -> list[object]:
    """A row of rates.csv."""
    reached, false, before = dict.fromkeys(Reach, 0), 0, 0
    for number in range(CASES):
        case = case_of(setting, number)
        found = rank_algorithms(group_runs(case.records, case.failed))
        reached[Reach.NOWHERE if found is None else max(one.reach for one in found.comparisons)] += 1
        false += found is not None and is_false(found, case)
        before += claims_before(case)
    counted = (reached[Reach.SEEDS], reached[Reach.POPULATION])
    return [*setting, CASES, *counted, false, *share(false), before, *share(before)]


def share(count: int) -> tuple[str, str]:
    """Format a share of the cases, and its exact lower 99 % confidence bound."""
    low = binomtest(count, CASES, alternative="greater").proportion_ci(0.99).low
    return f"{count / CASES:.4f}", f"{low:.4f}"


def stored_rows() -> list[Mapping[str, str]]:
    """Read the stored rows."""
    return list(csv.DictReader(io.StringIO((RESULTS / "rates.csv").read_text(encoding="utf-8"))))


WORDS = {
    "null": "", "fails": ", one fails at times", "stops": ", test rows stop one", "gain": ", one is better",
}  # fmt: skip


def table() -> str:
    """Write the table of docs/uncertainty.md."""
    lines = []
    for row in stored_rows():
        differ = "" if float(row["lasting"]) else ", differ by seeds alone"
        setting = f"{row['rows']}{differ}{WORDS[row['what']]}"
        claims = (f"{100 * int(row[name]) / int(row['cases']):.1f} %" for name in ("of_seeds", "of_population"))
        wrong = (f"{100 * float(row[name]):.1f} %" for name in ("share", "share_before"))
        lines.append([setting, row["algorithms"], row["seeds"], *claims, *wrong])
    head = [
        "test rows",
        "algorithms",
        "seeds",
        "claims over seeds",
        "for the population",
        "false",
        "false, simpler rule",
    ]
    return markdown(head, lines)


BLOCKS: dict[str, Callable[[], str]] = {"uncertainty.headlines": table}
"""Page and block → function that writes it."""


def all_rates() -> Iterator[list[object]]:
    """Yield the rows of rates.csv and print each one."""
    for setting in SETTINGS:
        row = rates(setting)
        print(*row, flush=True)
        yield row


def main() -> None:
    options = script.parser(__doc__, RESULTS).parse_args()
    torch.set_num_threads(1)
    about = {
        "command": "python evidence/false_headlines.py",
        "cases": CASES,
        "seed": KEY,
        "clients": CLIENTS,
        "test_rows_per_client": ROWS,
        "versions": {**versions(), "scipy": importlib.metadata.version("scipy")},
    }
    script.store(options.out, {"rates.csv": csv_text(COLUMNS, list(all_rates())), "summary.json": about})


if __name__ == "__main__":
    main()
