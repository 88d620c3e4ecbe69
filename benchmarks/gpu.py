"""Rounds per second on a CUDA device against this machine's CPU, and how much of the device's rate a round reaches.

    python benchmarks/gpu.py --data-dir DIR [--rounds 40]

Both jobs, FedAvg's local steps for 20 clients. The device's rate is that of a float32 matrix product of 8192 × 8192, in
the same run. Also checks that one round on the device is the round on the CPU up to rounding. Prints a table; writes
results/gpu.json with the device's name. Without a CUDA device it says so and ends with exit code 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from jobs import COHORT, JOBS, LOCAL, operations, product_rate, simulation, store, turns

from drfl import Key, Simulation


def round_of(fed: Simulation) -> Callable[[int], object]:
    """One round's training and mean, to its end."""

    def call(r: int) -> float:
        return float(fed.train(torch.arange(COHORT), fed.w0, LOCAL, Key(r)).w.mean(0)[0])

    return call


def main() -> None:
    """Measure both jobs on both devices."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/gpu.py: torch sees no CUDA device here", file=sys.stderr)
        raise SystemExit(2)
    rate, jobs = product_rate("cuda"), {}
    for job in JOBS:
        feds = {device: simulation(job, options.data_dir, device=device) for device in ("cpu", "cuda")}
        ends = [fed.train(torch.arange(COHORT), fed.w0, LOCAL, Key(0)).w.cpu() for fed in feds.values()]
        seconds = turns(options.rounds, {device: round_of(fed) for device, fed in feds.items()})
        jobs[job] = {
            "median_s": {device: round(s, 6) for device, s in seconds.items()},
            "cpu_over_cuda": round(seconds["cpu"] / seconds["cuda"], 2),
            "share_of_rate": round(operations(feds["cpu"]) / seconds["cuda"] / rate, 4),
            "largest_difference": float((ends[0] - ends[1]).abs().max()),
        }
        print(job, jobs[job], flush=True)
    content = {"card": torch.cuda.get_device_name(), "teraflops": round(rate / 1e12, 1), "jobs": jobs}
    store("gpu", "python benchmarks/gpu.py", content)


if __name__ == "__main__":
    main()
