"""Measure the cost of the safeguard's checks: the share of a run's time, and of its bytes.

    python benchmarks/safeguard.py --data-dir DIR [--rounds 100] [--repeats 5] [--jobs linear,cnn] [--smoke]

FedAvg and dual DRDM run with ``safeguard="best"`` (the default) and ``"start"``, tested at the beginning and at the end
only. The two take turns, and the ratio of times is the median over the pairs. Bytes include those of the probes at the
start and of the check at the end. The script prints a table and writes results/safeguard.json. A call for one of the
jobs replaces only this job in that file.
"""

from __future__ import annotations

import dataclasses
import json
import time
from statistics import median

from jobs import COHORT, JOBS, LOCAL, RESULTS, script, simulation, store

from drfl import DualDRDM, FedAvg, Simulation, run

FOUND = dataclasses.replace(LOCAL, lr=None)
"""The step size is that of drfl, because there are no checks of a given one."""
ALGORITHMS = {kind.__name__: kind(m=COHORT, local=FOUND) for kind in (FedAvg, DualDRDM)}


def measured(fed: Simulation, name: str, rounds: int, repeats: int) -> dict[str, float]:
    """Return ratios of time and bytes, with the safeguard over without."""
    times, sent = {"best": [], "start": []}, {}
    for _ in range(repeats):
        for rule in times:
            start = time.perf_counter()
            result = run(
                ALGORITHMS[name], fed, rounds=rounds, evaluate_every=rounds, safeguard=rule, check_data=False
            )  # fmt: skip
            times[rule].append(time.perf_counter() - start)
            sent[rule] = sum(result.history.last.ledger[counter] for counter in ("bytes_up", "bytes_down"))
    pairs = [best / start for best, start in zip(times["best"], times["start"], strict=True)]
    return {
        "time_ratio": round(median(pairs), 4), "least": round(min(pairs), 4), "most": round(max(pairs), 4),
        "bytes_ratio": round(sent["best"] / sent["start"], 4), "seconds": round(median(times["best"]), 3),
    }  # fmt: skip


def main() -> None:
    """Measure both algorithms on all jobs."""
    parser = script.parser(__doc__, RESULTS, data=True)
    parser.add_argument("--rounds", type=int, default=script.sized(100, 4))
    parser.add_argument("--repeats", type=int, default=script.sized(5, 1))
    parser.add_argument("--jobs", default=",".join(JOBS))
    options = parser.parse_args()
    jobs, file = {}, options.out / "safeguard.json"
    if file.exists() and options.jobs != ",".join(JOBS):
        jobs = json.loads(file.read_text())["jobs"]
    for job in options.jobs.split(","):
        fed = simulation(job, options.data_dir)
        given = {"rounds": options.rounds, "repeats": options.repeats}
        command = " ".join(("--jobs", job, *(f"--{name} {value}" for name, value in given.items())))
        jobs[job] = {"options": command, **{name: measured(fed, name, **given) for name in ALGORITHMS}}
        print(job, jobs[job], flush=True)
    store(options.out, "safeguard", "python benchmarks/safeguard.py --data-dir DIR", {"jobs": jobs})


if __name__ == "__main__":
    main()
