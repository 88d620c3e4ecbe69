"""Stored runs once more, with and without the bound on steps: do they end with the same numbers?

    python experiments/step_bound_unchanged.py --data-dir DIR --adult DIR --shakespeare FILE [--jobs 2] [--only NAMES]

The first seed of the stored tables and figures of the papers that train, of every setting and method, and of the
comparisons whose command is as it was. What was stored with the bound, which is on by default, runs without it; what
was stored before there was one runs with it. Two runs are the same where every stored column is: accuracies and losses
to six decimals, bytes, gradients and clients to the last digit. Writes results/step_bound_unchanged/. Jobs that it has
there already are not run again.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, cast

from drfl.experiments.artifacts import json_text, versions
from drfl.experiments.training_cells import train
from drfl.history import ACCURACY_COLUMNS, DIGITS, LEDGER_COLUMNS, csv_text
from drfl.papers.plan import Scale, plan
from drfl.papers.specification import load_spec

HERE = Path(__file__).parent
STORED, RESULTS = HERE / "results", HERE / "results" / "step_bound_unchanged"
BIN = Path(sys.executable).parent
WITHOUT = (
    "drdm-table-3", "drdm-table-4", "drdm-table-5", "drdm-table-6", "drdm-figure-5", "drdm-figure-6", "drfa-figure-1",
    "drfa-figure-2", "drfa-figure-3",
)  # fmt: skip
"""Stored before there was a bound."""
WITH = (
    "drdm-table-1", "drdm-table-2", "drdm-figure-1", "drdm-figure-2", "scaffpd-table-1", "scaffpd-table-2",
    "scaffpd-table-3", "scaffpd-table-4", "scaffpd-figure-3", "scaffpd-figure-4",
)  # fmt: skip
"""Stored with it."""
COLUMNS = ("job", "runs", "the same", "seconds")
SHOWN = ("avg_accuracy", "worst20_accuracy")
DIFFERENCES = (
    "job", "setting", "method", "algorithm", "seed", "halved",
    *(f"{metric}_{way}" for metric in SHOWN for way in ("without", "with")),
)  # fmt: skip
"""Of the runs that are not the same; halved is how often the step size was lowered with the bound."""
TIMELESS = ("seconds", "wall_seconds")
"""What no two runs have in common, whatever they do."""


class Comparison(NamedTuple):
    """A stored comparison.

    Args:
        name: of its folder of results.
        command: that makes the runs of the first seed, without the folder.
    """

    name: str
    command: tuple[str, ...]


def comparisons(options: argparse.Namespace) -> list[Comparison]:
    """All of them; they were stored before there was a bound."""
    one = ("--seeds", "1", "--threads", "1")
    files = {
        "adult": ("adult.toml", options.adult),
        "shakespeare": ("shakespeare.toml", options.shakespeare),
        "promise/mnist_dirichlet/after": ("promise/mnist_dirichlet.toml", options.data_dir),
        "promise/fashion_one_class/after": ("promise/fashion_one_class.toml", options.data_dir),
    }
    with_files = [
        Comparison(name, ("compare", str(HERE / job), "--data-dir", str(path), *one))
        for name, (job, path) in files.items()
    ]
    return [
        Comparison("digits_demo", ("compare", str(HERE.parent / "examples" / "one_class.toml"), "--seeds", "1")),
        *with_files,
    ]


Rows = dict[tuple[str, ...], dict[str, str]]


def rows(path: Path) -> Rows:
    """A run's row by setting, method and seed, those of the first seed."""
    with path.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    names = [name for name in ("setting", "method", "algorithm", "seed") if name in found[0]]
    return {tuple(row[name] for name in names): row for row in found if row["seed"] == "0"}


def reproduced(name: str, processes: int) -> tuple[Rows, Rows]:
    """The stored runs of a table or figure, and the same once more with the other bound."""
    stored = rows(STORED / name / "cells.csv")
    told = json.loads((STORED / name / "summary.json").read_text(encoding="utf-8"))
    cells = plan(load_spec(name), Scale(repeats=1, stand_in=told["stand_in"])).cells
    work = [(p.setting, p.method, {**p.cell.job, "step_bound": 0.0 if name in WITH else 100.0}) for p in cells]
    with get_context("spawn").Pool(processes) as pool:
        new = pool.starmap(_run, work, chunksize=1)
    return stored, {(place[0], place[1], stored_as, "0"): row for *place, stored_as, row in new}


def _run(setting: str, method: str, job: Mapping[str, object]) -> tuple[str, str, str, dict[str, str]]:
    """Setting, method, algorithm, and what cells.csv says of the run's end."""
    logging.getLogger("drfl").setLevel(logging.ERROR)
    record = train(job, None)
    row = {"stopped": str(record["stopped"])}
    points = cast("list[Mapping[str, float]]", record["rows"])
    if points:
        row |= {name: f"{points[-1][name]:.{DIGITS}f}" for name in ACCURACY_COLUMNS}
        row |= {name: str(int(points[-1][name])) for name in LEDGER_COLUMNS}
    return setting, method, str(job["algorithm"]), row


def compared(comparison: Comparison, data_dir: Path) -> tuple[Rows, Rows]:
    """The stored runs of a comparison, and the same once more with the bound."""
    folder = Path(tempfile.mkdtemp(prefix="drfl-again-"))
    try:
        environment = {**os.environ, "DRFL_DATA": str(data_dir), "OMP_NUM_THREADS": "1"}
        subprocess.run(
            [BIN / "drfl", *comparison.command, "--out", folder / "out"], check=True, env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return rows(STORED / comparison.name / "compare.csv"), rows(folder / "out" / "compare.csv")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def apart(old: Rows, new: Rows) -> list[tuple[str, ...]]:
    """The runs that both have and that are not the same."""
    # Methods that were left out of a table since, and such that are new, have nothing to be compared with.
    return [
        run
        for run in sorted(old.keys() & new.keys())
        if any(old[run][name] != new[run][name] for name in old[run].keys() & new[run].keys() - {*TIMELESS})
    ]


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--adult", type=Path, required=True)
    parser.add_argument("--shakespeare", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", help="some jobs, with commas between")
    options = parser.parse_args()
    os.environ |= {"DRFL_DATA": str(options.data_dir), "OMP_NUM_THREADS": "1"}
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "jobs.csv"
    done: dict[str, list[str]] = {}
    differences: list[Sequence[object]] = []
    if (RESULTS / "differences.csv").exists():
        with (RESULTS / "differences.csv").open(encoding="utf-8", newline="") as file:
            differences = [*list(csv.reader(file))[1:]]
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            done = {row[0]: row for row in list(csv.reader(file))[1:]}
    ways: dict[str, Callable[[], tuple[Rows, Rows]]] = {
        name: partial(reproduced, name, options.jobs) for name in (*WITHOUT, *WITH)
    }
    ways |= {c.name: partial(compared, c, options.data_dir) for c in comparisons(options)}
    for name, way in ways.items():
        if name in done or (options.only and name not in options.only.split(",")):
            continue
        start = time.monotonic()
        old, new = way()
        differ, runs = apart(old, new), len(old.keys() & new.keys())
        for run in differ:
            bounded, free = (old[run], new[run]) if name in WITH else (new[run], old[run])
            ends = [row.get(metric, "") for metric in SHOWN for row in (free, bounded)]
            # Comparisons have no settings, and no methods other than algorithms.
            differences.append([name, *[""] * (4 - len(run)), *run, bounded.get("halved", ""), *ends])
        done[name] = [name, *map(str, (runs, runs - len(differ), round(time.monotonic() - start)))]
        print(*done[name], flush=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *done.values()])
        (RESULTS / "differences.csv").write_text(csv_text(DIFFERENCES, differences), encoding="utf-8")
    about = {
        "command": "python experiments/step_bound_unchanged.py --data-dir DIR --adult DIR --shakespeare FILE",
        "runs": sum(int(row[1]) for row in done.values()), "the same": sum(int(row[2]) for row in done.values()),
        "seed": 0, "device": "cpu", "versions": versions(),
    }  # fmt: skip
    (RESULTS / "summary.json").write_text(json_text(about, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
