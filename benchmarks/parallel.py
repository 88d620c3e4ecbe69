"""Compare parallel runs with `drfl compare --jobs` with sequential ones.

    python benchmarks/parallel.py --data-dir DIR [--jobs 2] [--seeds 8] [--rounds 300] [--series 3] [--smoke]

The job is FedAvg with the linear model on MNIST, N = 30, m = 20 and ``--seeds`` seeds; each run uses one thread and is
tested every ten rounds. Whole commands are timed, including start-up, results and report; the two take turns. The same
commands with two rounds per run show the *fixed* part, which does not grow with the rounds: start-up, data, results and
report. The speed-up of the rest shows what the processes do in parallel. Memory is the largest sum over the processes
of their shares of mapped pages (PSS), sampled twice a second. The script prints the speed-up over jobs = 1 and writes
results/parallel.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from jobs import RESULTS, script, store


def memory(session: int) -> float:
    """Return the MiB of all processes of a session."""
    found = 0
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, StopIteration):  # it has ended
            if int((place / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                lines = (place / "smaps_rollup").read_text().splitlines()
                found += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return found / 1024


FIXED = 2
"""Rounds of the runs that show the fixed part."""


def whole(jobs: int, rounds: int, options: argparse.Namespace) -> tuple[float, float]:
    """Return the seconds and MiB of a whole command."""
    words = "compare --dataset mnist --algorithms FedAvg --clients 30 --cohort 20 --lr 0.1 --steps 10 --batch 32"
    words += f" --seeds {options.seeds} --rounds {rounds} --evaluate-every 10 --threads 1 --jobs {jobs}"
    where = [] if options.data_dir is None else ["--data-dir", str(options.data_dir)]
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = [sys.executable, "-m", "drfl", *words.split(), *where, "--out", f"{folder}/runs"]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process, most = subprocess.Popen(command, start_new_session=True, **silent), 0.0
        while process.poll() is None:
            most = max(most, memory(process.pid))
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        return time.perf_counter() - start, most


def main() -> None:
    """Measure the commands, print the speed-up and store it."""
    parser = script.parser(__doc__, RESULTS, data=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=script.sized(8, 2))
    parser.add_argument("--rounds", type=int, default=script.sized(300, 1))
    parser.add_argument("--series", type=int, default=script.sized(3, 1))
    options = parser.parse_args()
    before = os.getloadavg()[0]
    calls = {
        (jobs, rounds): list[tuple[float, float]]() for rounds in (FIXED, options.rounds) for jobs in (1, options.jobs)
    }
    for _ in range(options.series):
        for (jobs, rounds), found in calls.items():
            found.append(whole(jobs, rounds, options))
    pairs = zip(calls[1, options.rounds], calls[options.jobs, options.rounds], strict=True)
    ratios = [one / several for (one, _), (several, _) in pairs]
    seconds, mib = ({key: statistics.median(run[i] for run in found) for key, found in calls.items()} for i in (0, 1))
    one, several = seconds[1, options.rounds], seconds[options.jobs, options.rounds]
    fixed_one, fixed_several = seconds[1, FIXED], seconds[options.jobs, FIXED]
    content = {
        "load_average_before": before,
        "jobs": options.jobs,
        "seeds": options.seeds,
        "rounds": options.rounds,
        "one_after_the_other_s": round(one, 2),
        "at_once_s": round(several, 2),
        "speed_up": round(statistics.median(ratios), 2),
        "of_ideal": round(statistics.median(ratios) / options.jobs, 2),
        "fixed_one_after_the_other_s": round(fixed_one, 2),
        "fixed_at_once_s": round(fixed_several, 2),
        "speed_up_of_the_rest": round((one - fixed_one) / (several - fixed_several), 2),
        "one_after_the_other_mib": round(mib[1, options.rounds]),
        "at_once_mib": round(mib[options.jobs, options.rounds]),
    }
    print(content)
    words = f"--jobs {options.jobs} --seeds {options.seeds} --rounds {options.rounds} --series {options.series}"
    store(options.out, "parallel", f"python benchmarks/parallel.py --data-dir DIR {words}", content)


if __name__ == "__main__":
    main()
