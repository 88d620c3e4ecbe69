"""Repeat stored runs with and without the step bound: do they give the same numbers?

    python evidence/step_bound_unchanged.py --data-dir DIR --adult DIR --shakespeare FILE [--jobs 2] [--only NAMES]
        [--smoke]

The script repeats the first seed of every setting and method in the stored comparisons and in the papers' tables and
figures that train. Runs stored with the bound, which is on by default, are repeated without it. Runs stored before the
bound existed are repeated with it. A run whose result differs from the stored one also runs the other way, because
other changes since (defaults, versions, recomputed features) are not due to the bound. Two runs are equal if every
column is: accuracies and losses to six decimals; bytes, gradients and clients to the last digit. The script writes
results/step_bound_unchanged/ and skips jobs that it already contains.
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
from collections.abc import Callable, Collection, Mapping
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, cast

import kept
import script
from drfl.experiments.execution.training_cells import train
from drfl.experiments.run.artifacts import json_text, versions
from drfl.training.history import ACCURACY_COLUMNS, DIGITS, LEDGER_COLUMNS
from drfl_papers.plan import Scale, plan
from drfl_papers.specification import load_spec

HERE = Path(__file__).parent
STORED, RESULTS = HERE / "results", HERE / "results" / "step_bound_unchanged"
BIN = Path(sys.executable).parent
WITHOUT = (
    "drdm-table-3", "drdm-table-4", "drdm-table-5", "drdm-table-6", "drfa-figure-1", "drfa-figure-2", "drfa-figure-3",
)  # fmt: skip
"""Results stored before the bound existed. Figures that are not listed only have runs of these."""
WITH = (
    "drdm-table-1", "drdm-table-2", "drdm-figure-3", "scaffpd-table-1", "scaffpd-table-2", "scaffpd-table-3",
    "scaffpd-table-4", "scaffpd-figure-3", "scaffpd-figure-4",
)  # fmt: skip
"""Results stored with the bound."""
BOUND = 100.0
"""The default."""
ROUNDS, RUNS, JOBS = script.sized((None, None, None), (1, 1, "drdm-table-3,digits_no_dual"))
"""Number of rounds, number of runs per table or figure, and jobs; None = as stored, or all."""
COLUMNS = ("job", "runs", "the same", "as stored", "seconds")
"""Columns: runs that are the same with and without the bound, and those of them that needed no second run."""
SHOWN = ("avg_accuracy", "worst20_accuracy")
DIFFERENCES = (
    "job", "setting", "method", "algorithm", "seed", "halved",
    *(f"{metric}_{way}" for metric in SHOWN for way in ("without", "with")),
)  # fmt: skip
"""Columns of runs that differ; halved is how often the step size was lowered with the bound."""
TIMELESS = ("seconds", "wall_seconds")
"""Columns with times, which differ between any two runs."""
Key = tuple[str, ...]
"""Setting and method, if there are any, algorithm and seed of a run."""
Rows = dict[Key, dict[str, str]]


class Job(NamedTuple):
    """A stored table, figure or comparison.

    Args:
        stored: the stored runs of the first seed.
        bounds: the bound with which it was not stored, and the one with which it was.
        runs: repeats all runs of the first seed with a bound, or those with some keys.
    """

    stored: Rows
    bounds: tuple[float, float]
    runs: Callable[[float, Collection[Key] | None], Rows]


def jobs(options: argparse.Namespace) -> dict[str, Callable[[], Job]]:
    """All jobs, by the name of their folder of results."""
    found: dict[str, Callable[[], Job]] = {
        name: partial(reproduced, name, cells, (0.0, BOUND) if name in WITH else (BOUND, 0.0), options.jobs)
        for name, cells in planned().items()
    }
    data, adult, shakespeare = (str(path) for path in (options.data_dir, options.adult, options.shakespeare))
    mnist = ("mnist_linear.toml", data, "--evaluate-every", "10")
    comparisons = {
        "digits_demo": ("../examples/one_class.toml",),
        "digits_no_dual": ("", "", "--algorithms", "DRDM", "--param", "gamma=0"),
        "digits_certificate": ("digits_certificate.toml",),
        "mnist_linear": mnist,
        "mnist_linear_no_dual": (*mnist, "--algorithms", "DRDM", "--param", "gamma=0"),
        "mnist_linear_without_replacement": (
            *mnist, "--algorithms", "DRDM,DRFA", "--param", "sampling=without-replacement"
        ),
        "adult": ("adult.toml", adult),
        "adult_training": ("adult.toml", adult),
        "adult_education": ("adult.toml", adult, "--group", "education"),
        "shakespeare": ("shakespeare.toml", shakespeare),
        "promise/mnist_dirichlet/after": ("promise/mnist_dirichlet.toml", data),
        "promise/fashion_one_class/after": ("promise/fashion_one_class.toml", data),
    }  # fmt: skip
    return found | {name: partial(comparison, name, *command) for name, command in comparisons.items()}


def planned() -> dict[str, dict[Key, Mapping[str, object]]]:
    """The runs of each table and figure that no earlier one has, and how to repeat them."""
    found: dict[str, dict[Key, Mapping[str, object]]] = {}
    seen: set[str] = set()
    for name in (*WITHOUT, *WITH)[:RUNS]:
        told = json.loads((STORED / name / "summary.json").read_text(encoding="utf-8"))
        cells = plan(load_spec(name), Scale(repeats=1, rounds=ROUNDS, stand_in=told["stand_in"])).cells[:RUNS]
        texts = {json_text(p.cell.job): p for p in cells}
        found[name] = {
            (p.setting, p.method, str(p.cell.job["algorithm"]), "0"): p.cell.job
            for text, p in texts.items()
            if text not in seen
        }
        seen |= texts.keys()
    return found


def rows(path: Path) -> Rows:
    """The runs of the first seed."""
    with path.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    names = [name for name in ("setting", "method", "algorithm", "seed") if name in found[0]]
    return {tuple(row[name] for name in names): row for row in found if row["seed"] == "0"}


def reproduced(
    name: str, cells: Mapping[Key, Mapping[str, object]], bounds: tuple[float, float], processes: int
) -> Job:
    """A table or figure."""

    def runs(bound: float, only: Collection[Key] | None) -> Rows:
        chosen = [key for key in cells if only is None or key in only]
        with get_context("spawn").Pool(processes) as pool:
            made = pool.map(_run, [{**cells[key], "step_bound": bound} for key in chosen], chunksize=1)
        return dict(zip(chosen, made, strict=True))

    return Job(rows(STORED / name / "cells.csv"), bounds, runs)


def _run(job: Mapping[str, object]) -> dict[str, str]:
    """The final values of a run, from cells.csv."""
    logging.getLogger("drfl").setLevel(logging.ERROR)
    record = train(job, None)
    row = {name: str(record[name]) for name in ("stopped", "halved")}
    points = cast("list[Mapping[str, float]]", record["rows"])
    if points:
        row |= {name: f"{points[-1][name]:.{DIGITS}f}" for name in ACCURACY_COLUMNS}
        row |= {name: str(int(points[-1][name])) for name in LEDGER_COLUMNS}
    return row


def comparison(name: str, file: str, data_dir: str = "", *more: str) -> Job:
    """A comparison from a job file with some options; all were stored before the bound existed."""
    text = (HERE / file).read_text(encoding="utf-8") if file else ""
    text = 'judged_on = "training"\n' * (name == "adult_training") + text

    def runs(bound: float, only: Collection[Key] | None) -> Rows:
        folder = Path(tempfile.mkdtemp(prefix="drfl-again-"))
        (folder / "job.toml").write_text(text, encoding="utf-8")
        place = ("--data-dir", data_dir) if data_dir else ()
        options = ["--seeds", "1", "--threads", "1", "--step-bound", str(bound), *place, *more]
        options += ["--rounds", str(ROUNDS)] if ROUNDS else []
        command = [BIN / "drfl", "compare", folder / "job.toml", *options, "--out", folder / "out"]
        try:
            # All runs of a comparison are repeated, because each takes seconds.
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            found = rows(folder / "out" / "compare.csv")
            for key, row in found.items():
                told = json.loads((folder / "out" / f"{key[0]}-seed0" / "summary.json").read_text(encoding="utf-8"))
                row["halved"] = str((told["step_size"] or {"halved": 0})["halved"])
            return {key: row for key, row in found.items() if only is None or key in only}
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return Job(rows(STORED / name / "compare.csv"), (BOUND, 0.0), runs)


def apart(old: Rows, new: Rows) -> list[Key]:
    """The runs that both have and that differ."""
    # Methods that were removed from a table since, and new ones, have no counterpart.
    return [
        run
        for run in sorted(old.keys() & new.keys())
        if any(old[run][name] != new[run][name] for name in old[run].keys() & new[run].keys() - {*TIMELESS})
    ]


def compared(name: str, job: Job) -> tuple[kept.Rows, kept.Rows]:
    """The job's row, and one for each run that differs."""
    start = time.monotonic()
    other, own = job.bounds
    new = job.runs(other, None)
    again = apart(job.stored, new)
    old = {**job.stored, **(job.runs(own, again) if again else {})}
    differ, runs = apart(old, new), len(old.keys() & new.keys())
    differences: kept.Rows = {}
    for run in differ:
        bounded, free = (new[run], old[run]) if other else (old[run], new[run])
        ends = [row.get(metric, "") for metric in SHOWN for row in (free, bounded)]
        # Comparisons have no settings, and no methods other than algorithms.
        differences[name, *[""] * (4 - len(run)), *run] = [bounded["halved"], *ends]
    counts = (runs, runs - len(differ), runs - len(again), round(time.monotonic() - start))
    return {(name,): [str(count) for count in counts]}, differences


def main() -> None:
    """Run the missing jobs and write the table."""
    parser = script.parser(__doc__, RESULTS, data=True)
    for name in ("adult", "shakespeare.txt"):
        option, place = f"--{Path(name).stem}", script.stand_in(name)
        parser.add_argument(option, type=Path, default=place, required=place is None)
    parser.add_argument("--jobs", type=int, default=script.sized(2, 1))
    parser.add_argument("--only", default=JOBS, help="names of jobs, separated by commas")
    options = parser.parse_args()
    os.environ |= {"DRFL_DATA": str(options.data_dir), "OMP_NUM_THREADS": "1"}
    done, differences = kept.known(options.out / "jobs.csv", 1), kept.known(options.out / "differences.csv", 5)
    for name, job in jobs(options).items():
        if (name,) in done or (options.only and name not in options.only.split(",")):
            continue
        row, apart_there = compared(name, job())
        done |= row
        differences |= apart_there
        print(name, *done[name,], flush=True)
        kept.save(options.out / "differences.csv", DIFFERENCES, differences)
        kept.save(options.out / "jobs.csv", COLUMNS, done)
    about = {
        "command": "python evidence/step_bound_unchanged.py --data-dir DIR --adult DIR --shakespeare FILE",
        "runs": sum(int(row[0]) for row in done.values()), "the same": sum(int(row[1]) for row in done.values()),
        "seed": 0, "device": "cpu", "versions": versions(),
    }  # fmt: skip
    script.store(options.out, {"summary.json": about})


if __name__ == "__main__":
    main()
