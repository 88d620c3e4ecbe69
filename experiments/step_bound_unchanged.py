"""Stored runs once more, with the bound on steps that is on by default now: do they end with the same numbers?

    python experiments/step_bound_unchanged.py --data-dir DIR --adult DIR --shakespeare FILE [--jobs 2]

The first seed of every stored table and figure of the papers, of every setting and method, and of the comparisons whose
command is as it was; the stored runs were made before there was a bound. Two runs are the same where every stored
column is: accuracies and losses to six decimals, bytes, gradients and clients to the last digit. Writes
results/step_bound_unchanged/. Jobs that it has there already are not run again.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from drfl.experiments.artifacts import json_text, versions

HERE = Path(__file__).parent
STORED, RESULTS = HERE / "results", HERE / "results" / "step_bound_unchanged"
BIN = Path(sys.executable).parent
REPRODUCED = (
    "drdm-table-3", "drdm-table-4", "drdm-table-5", "drdm-table-6", "drdm-figure-5", "drdm-figure-6", "drfa-figure-1",
    "drfa-figure-2", "drfa-figure-3", "scaffpd-table-1", "scaffpd-table-2", "scaffpd-table-3", "scaffpd-table-4",
    "scaffpd-figure-2", "scaffpd-figure-3", "scaffpd-figure-4", "scaffpd-figure-5",
)  # fmt: skip
COLUMNS = ("job", "runs", "the same", "seconds")
TIMELESS = ("seconds", "wall_seconds")
"""What no two runs have in common, whatever they do."""


class Job(NamedTuple):
    """A stored job.

    Args:
        name: of its folder of results.
        table: its file with a row a run.
        command: that makes the runs of the first seed, without the folder.
    """

    name: str
    table: str
    command: tuple[str, ...]


def jobs(options: argparse.Namespace) -> list[Job]:
    """All of them."""
    papers = [
        Job(name, "cells.csv", ("reproduce", name, "--repeats", "1", "--jobs", str(options.jobs), *kind(name)))
        for name in REPRODUCED
    ]
    one = ("--seeds", "1", "--threads", "1")
    compare = "compare"
    return [
        *papers,
        Job("digits_demo", "compare.csv", (compare, "--seeds", "1")),
        Job("adult", "compare.csv", (compare, str(HERE / "adult.toml"), "--data-dir", str(options.adult), *one)),
        Job(
            "shakespeare",
            "compare.csv",
            (compare, str(HERE / "shakespeare.toml"), "--data-dir", str(options.shakespeare), *one),
        ),
        *(
            Job(
                f"promise/{name}/after",
                "compare.csv",
                (compare, str(HERE / "promise" / f"{name}.toml"), "--data-dir", str(options.data_dir), *one),
            )
            for name in ("mnist_dirichlet", "fashion_one_class")
        ),
    ]


def kind(name: str) -> tuple[str, ...]:
    """Whether stand-ins were used, as in the stored run."""
    told = json.loads((STORED / name / "summary.json").read_text(encoding="utf-8"))
    return ("--data", "stand-in") if told["stand_in"] else ()


def rows(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """A run's row by setting, method and seed, those of the first seed."""
    with path.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    names = [name for name in ("setting", "method", "algorithm", "seed") if name in found[0]]
    return {tuple(row[name] for name in names): row for row in found if row["seed"] == "0"}


def once_more(job: Job, data_dir: Path) -> tuple[int, int, int]:
    """The job again: runs compared, those that are the same, seconds."""
    folder, start = Path(tempfile.mkdtemp(prefix="drfl-again-")), time.monotonic()
    try:
        environment = {**os.environ, "DRFL_DATA": str(data_dir), "OMP_NUM_THREADS": "1"}
        out = folder / "out"
        subprocess.run(
            [BIN / "drfl", *job.command, "--out", out], check=True, env=environment, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        new = rows(next(out.rglob(job.table)))
        old = rows(STORED / job.name / job.table)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    # Methods that were left out of a table since, and such that are new, have nothing to be compared with.
    both = sorted(old.keys() & new.keys())
    same = 0
    for run in both:
        shared = [name for name in old[run] if name in new[run] and name not in TIMELESS]
        apart = [name for name in shared if old[run][name] != new[run][name]]
        same += not apart
        if apart:
            told = "; ".join(f"{name} {old[run][name]} → {new[run][name]}" for name in apart[:3])
            print(f"  {' · '.join(run)}: {told}", flush=True)
    return len(both), same, round(time.monotonic() - start)


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--adult", type=Path, required=True)
    parser.add_argument("--shakespeare", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", help="some jobs, with commas between")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "jobs.csv"
    done: dict[str, list[str]] = {}
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            done = {row[0]: row for row in list(csv.reader(file))[1:]}
    for job in jobs(options):
        if job.name in done or (options.only and job.name not in options.only.split(",")):
            continue
        done[job.name] = [job.name, *map(str, once_more(job, options.data_dir))]
        print(*done[job.name], flush=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *done.values()])
    about = {
        "command": "python experiments/step_bound_unchanged.py --data-dir DIR --adult DIR --shakespeare FILE",
        "runs": sum(int(row[1]) for row in done.values()), "the same": sum(int(row[2]) for row in done.values()),
        "seed": 0, "device": "cpu", "versions": versions(),
    }  # fmt: skip
    (RESULTS / "summary.json").write_text(json_text(about, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
