"""Compare the rounds of two versions of drfl: this checkout, and another one.

    python benchmarks/two_trees.py [OTHER] [--pairs 20] [--threads 1] [--smoke]

OTHER is a folder with the sources of the other version, such as a worktree of an earlier commit; by default it is this
checkout. Each version runs in a separate process. The two take turns: they play some rounds of the same job, and the
order changes from pair to pair. The jobs are FedAvg, SCAFFOLD and DRDM with the linear model on vectors of 784 numbers,
and with the CNN of DRDM's paper on images of 28 × 28 (m = 20 of 30 clients, τ = 10, B = 32). Inputs are random. Times
are seconds of the processor, which other processes hardly affect. The ratio is this checkout's time divided by the
other's: the geometric mean over the pairs, with Student's 95 % interval of the logarithms. The script prints a table
and writes results/two_trees.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

from jobs import RESULTS, script, store
from scipy.stats import t as students_t

ROOT = Path(__file__).resolve().parents[1]
ALGORITHMS = ("FedAvg", "SCAFFOLD", "DRDM")
ROUNDS = script.sized({"linear": 40, "cnn": 1}, {"linear": 2, "cnn": 1})
ROWS = script.sized(300, 8)
COHORT, STEPS = script.sized((20, 10), (2, 2))


def player(job: str, name: str) -> Callable[[int], None]:
    """Return a function that plays a number of rounds of a job with the version of drfl that this process imports."""
    import torch

    import drfl

    g = torch.Generator().manual_seed(0)
    shape = (784,) if job == "linear" else (1, 28, 28)
    pairs = [(torch.randn(ROWS, *shape, generator=g), torch.randint(0, 10, (ROWS,), generator=g)) for _ in range(30)]
    torch.manual_seed(0)
    fed = drfl.Simulation(drfl.ClientData.from_arrays(pairs), drfl.Task(getattr(drfl.models, job)(shape, 10)))
    algorithm = getattr(drfl, name)(m=COHORT, local=drfl.LocalSGD(steps=STEPS, lr=0.01, batch=32))
    state, r = algorithm.init(fed), 0

    def play(rounds: int) -> None:
        nonlocal state, r
        for _ in range(rounds):
            state, _ = algorithm.round(state, fed, drfl.Key(0).fold("round", r))
            r += 1

    return play


def worker(threads: int) -> None:
    """Play the rounds that each line on standard input requests, and print the CPU seconds."""
    import torch

    torch.set_num_threads(threads)
    players: dict[tuple[str, str], Callable[[int], None]] = {}
    for line in sys.stdin:
        job, name, rounds = json.loads(line)
        if (job, name) not in players:
            players[job, name] = player(job, name)
            players[job, name](2)  # warm up
        start = time.process_time()
        players[job, name](rounds)
        print(time.process_time() - start, flush=True)


def started(tree: Path, threads: int) -> subprocess.Popen[str]:
    """Start a worker that imports drfl from a tree."""
    paths = [str(tree / "src"), str(ROOT / "benchmarks")]
    command = [
        sys.executable,
        "-W",
        "ignore",
        __file__,
        *script.FLAGS,
        "--worker",
        "--threads",
        str(threads),
        str(tree),
    ]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def asked(process: subprocess.Popen[str], job: str, name: str) -> float:
    """Return the seconds of a worker for the rounds of a job."""
    send, receive = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
    send.write(json.dumps([job, name, ROUNDS[job]]) + "\n")
    send.flush()
    return float(receive.readline())


def commit_of(tree: Path) -> str:
    """Return the commit of a tree."""
    command = ["git", "-C", str(tree), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Measure, print and store."""
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("other", type=Path, nargs="?", default=ROOT, help="the other version; by default this one")
    parser.add_argument("--pairs", type=int, default=script.sized(20, 2))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.threads)
        return
    before, rows = os.getloadavg()[0], dict[str, dict[str, float]]()
    ours, theirs = started(ROOT, options.threads), started(options.other.resolve(), options.threads)
    for job in ROUNDS:
        for name in ALGORITHMS:
            logs = []
            for pair in range(options.pairs + 1):
                order = (ours, theirs) if pair % 2 else (theirs, ours)
                seconds = {process: asked(process, job, name) for process in order}
                logs.append(math.log(seconds[ours] / seconds[theirs]))
            logs, ms = logs[1:], 1e3 * seconds[ours] / ROUNDS[job]  # the first pair includes the start
            mean, error = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
            half = float(students_t.ppf(0.975, len(logs) - 1)) * error
            ratio, low, high = (round(math.exp(value), 4) for value in (mean, mean - half, mean + half))
            rows[f"{job}, {name}"] = {"ratio": ratio, "low": low, "high": high, "pairs": len(logs)}
            print(f"{job}, {name}: {ratio:.3f} ({low:.3f} to {high:.3f}), about {ms:.1f} ms", flush=True)
    for process in (ours, theirs):
        cast(IO[str], process.stdin).close()
        process.wait()
    commits = {"commit": commit_of(ROOT), "other": commit_of(options.other)}
    command = f"python benchmarks/two_trees.py OTHER --pairs {options.pairs} --threads {options.threads}"
    content = {**commits, "threads_of_torch": options.threads, "load_average_before": before, "rows": rows}
    store(options.out, "two_trees", command, content)


if __name__ == "__main__":
    main()
