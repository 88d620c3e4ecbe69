"""Measure rounds per second on a CUDA device and on the CPU, and the share of the device's rate that is reached.

    python benchmarks/gpu.py --data-dir DIR [--rounds 40] [--smoke]

Both jobs run FedAvg's local steps for 20 clients. The device's rate is that of a float32 matrix product of 8192 × 8192
in the same run. The script also checks that one round on the device equals the round on the CPU up to rounding. It
prints a table and writes results/gpu.json with the device's name. Without a CUDA device it prints a message and exits
with code 2; with --smoke it uses the CPU instead.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable

import torch
from jobs import COHORT, JOBS, LOCAL, RESULTS, operations, product_rate, script, simulation, store, turns

from drfl import Key, Simulation


def round_of(fed: Simulation) -> Callable[[int], object]:
    """One round's training and mean, to its end."""

    def call(r: int) -> float:
        return float(fed.train(torch.arange(COHORT), fed.w0, LOCAL, Key(r)).w.mean(0)[0])

    return call


def main() -> None:
    """Measure both jobs on both devices."""
    parser = script.parser(__doc__, RESULTS, data=True)
    parser.add_argument("--rounds", type=int, default=script.sized(40, 1))
    options = parser.parse_args()
    there = torch.cuda.is_available()
    if not there and not options.smoke:
        print("benchmarks/gpu.py: torch sees no CUDA device here", file=sys.stderr)
        raise SystemExit(2)
    device = "cuda" if there else "cpu"
    rate, jobs = product_rate(device), {}
    for job in JOBS:
        feds = {name: simulation(job, options.data_dir, device=on) for name, on in (("cpu", "cpu"), ("cuda", device))}
        ends = [fed.train(torch.arange(COHORT), fed.w0, LOCAL, Key(0)).w.cpu() for fed in feds.values()]
        seconds = turns(options.rounds, {device: round_of(fed) for device, fed in feds.items()})
        jobs[job] = {
            "median_s": {device: round(s, 6) for device, s in seconds.items()},
            "cpu_over_cuda": round(seconds["cpu"] / seconds["cuda"], 2),
            "share_of_rate": round(operations(feds["cpu"]) / seconds["cuda"] / rate, 4),
            "largest_difference": float((ends[0] - ends[1]).abs().max()),
        }
        print(job, jobs[job], flush=True)
    card = torch.cuda.get_device_name() if there else platform.machine()
    content = {"card": card, "teraflops": round(rate / 1e12, 1), "jobs": jobs}
    store(options.out, "gpu", "python benchmarks/gpu.py", content)


if __name__ == "__main__":
    main()
