"""Check and measure drfl on a CUDA device: correctness, speed, other frameworks, and a table of a paper.

    python benchmarks/gpu.py --all --out DIR [--data-dir DIR] [--seconds 265] [--smoke]
    python benchmarks/gpu.py --parts correctness,speed --out DIR

The parts are correctness, speed, rivals and table, see benchmarks/gpu_parts/. Each runs in a separate process, with a
share of ``--seconds``, and is stopped when its share is used up. It prints every row as it measures it and writes
PART.json after every row, so nothing is lost. Time that a part does not need goes to the parts after it. Only ``table``
reads a data set (kmnist-t10k); nothing needs a network.

The script ends with code 1 if a part fails or a check of correctness does, and with code 2 if torch sees no CUDA
device. With --smoke it runs on the CPU. benchmarks/gpu_device.sh runs it on a machine that has torch only.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import sys
import time
import traceback
import warnings

import torch
from gpu_parts.report import Report
from jobs import RESULTS, script

SHARES = {"correctness": 0.27, "speed": 0.28, "rivals": 0.27, "table": 0.18}
"""Parts, and their shares of the time."""

GRACE = 5.0
"""Extra seconds in which a part may finish its current measurement."""


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = script.parser(__doc__, RESULTS / "gpu", data=True)
    parser.add_argument("--all", action="store_true", help="run all parts")
    parser.add_argument("--parts", default="", help=f"some of {', '.join(SHARES)}, separated by commas")
    parser.add_argument("--seconds", type=float, default=265.0, help="time for all parts together")
    given = parser.parse_args()
    if given.all or (script.SMOKE and not given.parts):
        given.parts = ",".join(SHARES)
    given.parts = [part for part in given.parts.split(",") if part]
    if not given.parts or set(given.parts) - set(SHARES):
        parser.error(f"choose --all, or --parts from {', '.join(SHARES)}")
    return given


def work(part: str, given: argparse.Namespace, seconds: float) -> None:
    """Run a part, in its own process."""
    warnings.filterwarnings("ignore", "There is a performance drop")  # torch maps some layers client by client
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":  # the reference on the CPU is small, and many threads would slow it down
        torch.set_num_threads(min(4, os.cpu_count() or 1))
    report = Report(part, given.out, f"python benchmarks/gpu.py --parts {part}", device, seconds)
    try:
        module = importlib.import_module(f"gpu_parts.{part}")
        if part == "table":
            module.measure(report, given.data_dir)
        else:
            module.measure(report)
    except Exception as error:
        report.summarise(error="".join(traceback.format_exception(error))[-2000:])
        raise
    finally:
        report.finish()
    if report.failures:
        raise SystemExit(f"{part}: {report.failures} checks failed")


def main() -> None:
    """Run the parts."""
    given = options()
    if not torch.cuda.is_available() and not given.smoke:
        print("benchmarks/gpu.py: torch sees no CUDA device here", file=sys.stderr)
        raise SystemExit(2)
    end, failed = time.monotonic() + given.seconds, []
    # CUDA cannot be used in forked processes.
    context = multiprocessing.get_context("spawn")
    for number, part in enumerate(given.parts):
        total = sum(SHARES[name] for name in given.parts[number:])
        seconds = (end - time.monotonic()) * SHARES[part] / total
        process = context.Process(target=work, args=(part, given, seconds - GRACE))
        process.start()
        process.join(seconds)
        if process.is_alive():
            print(f"{part} was stopped after {seconds:.0f} s", flush=True)
            process.kill()
            process.join()
        elif process.exitcode:
            failed.append(part)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
