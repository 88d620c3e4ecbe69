"""Kill runs with SIGKILL at random moments: every resumed run must end as if it had not been interrupted.

    python evidence/survival.py [--kills 100] [--smoke]

`drfl run` on digits runs in its own process, which is killed at a moment drawn uniformly from the duration of an
undisturbed run. The same command then runs with --resume, and may be killed again; five algorithms take turns. Files
are compared byte for byte, except for wall time. The script writes results/survival/. It runs only on Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.run_files import different, results_in

import script
from drfl.cli.app import call
from drfl.core.csv_cells import csv_text
from drfl.experiments.run.artifacts import versions
from drfl.training.callbacks import Progress
from drfl.training.checkpoint import newest

RESULTS = Path(__file__).parent / "results" / "survival"
ALGORITHMS = script.sized(("FedAvg", "SCAFFOLD", "DRFA", "ScaffPD", "DualDRDM"), ("DualDRDM",))
EVERY, ROUNDS = 3, script.sized(60, 12)

COLUMNS = ("algorithm", "killed_after_round", "checkpoint_round", "lost_rounds", "resumed")


class Kill(NamedTuple):
    """A killed run: the last finished round, and the round from which it can resume."""

    algorithm: str
    round: int
    kept: int
    resumed: bool


def command(algorithm: str, out: Path) -> list[str]:
    """The command that a user would type."""
    job = [
        "--clients",
        "10",
        "--rounds",
        str(ROUNDS),
        "--steps",
        "3",
        "--threads",
        "1",
        "--checkpoint-every",
        str(EVERY),
    ]
    return ["run", "--algorithm", algorithm, *job, "--out", str(out), "--resume"]


def launched(arguments: list[str]) -> tuple[int, int]:
    """Start the command in a separate process; return its id and a pipe that receives each finished round."""
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        return child, read
    os.close(read)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    Progress.__call__ = lambda self, step: os.write(write, struct.pack("i", step.round)) and None
    code = 99
    try:
        code = call(arguments)
    finally:
        os._exit(code)


def rounds_seen(pipe: int) -> int:
    """Read the last round from a pipe whose writer has ended; 0 if there is none."""
    data = b""
    while part := os.read(pipe, 2**16):
        data += part
    os.close(pipe)
    whole = len(data) // 4 * 4
    return max(struct.unpack(f"{whole // 4}i", data[:whole]), default=0)


def ended(arguments: list[str]) -> float:
    """Run the command to its end and return the seconds."""
    start = time.perf_counter()
    child, pipe = launched(arguments)
    rounds_seen(pipe)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 0:
        raise SystemExit(f"{' '.join(arguments)} ended with {code}")
    return time.perf_counter() - start


def kept_round(out: Path, seen: int) -> int:
    """The round from which a killed run can resume, or the last one if its results were complete."""
    kept = newest(out / "checkpoint")
    if kept is None:
        return seen if (out / "summary.json").exists() else 0
    return kept.record.round


def killed(algorithm: str, kills: int, folder: Path, rng: random.Random) -> tuple[list[Kill], int]:
    """Kill runs of one algorithm this number of times, and count the runs that ended with the same results."""
    place = folder / "whole" / algorithm
    seconds, found, ends, out = ended(command(algorithm, place)), [], 0, folder / "0" / algorithm
    whole, pending = results_in(place), False
    while len(found) < kills or pending:
        last = len(found) >= kills
        resumed = (out / "checkpoint").exists()
        child, pipe = launched(command(algorithm, out))
        if not last:
            time.sleep(rng.uniform(0, seconds))
            os.kill(child, signal.SIGKILL)
        seen = rounds_seen(pipe)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            found.append(Kill(algorithm, seen, kept_round(out, seen), resumed))
            pending = True
            continue
        if os.waitstatus_to_exitcode(status) != 0:
            raise SystemExit(f"a resume of {algorithm} ended with {os.waitstatus_to_exitcode(status)}")
        if names := different(results_in(out), whole):
            raise SystemExit(f"{out} and {place} differ in {', '.join(names)}")
        ends, pending = ends + 1, False
        out = folder / str(ends) / algorithm
    return found, ends


def main() -> None:
    """Kill runs of all algorithms and write the results."""
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("--kills", type=int, default=script.sized(100, 1))
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder, rng = Path(tempfile.mkdtemp(prefix="drfl-survival-")), random.Random(0)
    try:
        kills, ends = [], 0
        for k, algorithm in enumerate(ALGORITHMS):
            share = options.kills // len(ALGORITHMS) + (k < options.kills % len(ALGORITHMS))
            own, done = killed(algorithm, share, folder, rng)
            kills, ends = [*kills, *own], ends + done
            print(f"{algorithm}: {len(own)} kills, {done} runs compared", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    write(kills, ends, options)


def write(kills: list[Kill], ends: int, options: argparse.Namespace) -> None:
    """Write the files."""
    rows = [[k.algorithm, k.round, k.kept, k.round - k.kept, k.resumed] for k in kills]
    summary = {
        "command": f"python evidence/survival.py --kills {options.kills}",
        "kills": len(kills),
        "of_resumed_runs": sum(k.resumed for k in kills),
        "runs_compared": ends,
        "runs_that_differ": 0,
        "most_rounds_lost": max(k.round - k.kept for k in kills),
        "checkpoint_every": EVERY,
        "seed": 0,
        "device": "cpu",
        "versions": versions(),
    }
    script.store(options.out, {"kills.csv": csv_text(COLUMNS, rows), "summary.json": summary})
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
