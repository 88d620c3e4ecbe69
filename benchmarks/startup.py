"""Measure the time until a new process has imported drfl, printed help or refused an option, and ended.

    python benchmarks/startup.py [--repeats 10] [--smoke]

The time of a process includes Python's start, which has its own row. The time that drfl adds to torch is measured
within a process, for all public names after torch, because the difference of two processes would be lost in the
variation of torch's import. Times are medians over new processes. The rows take turns, so that a busy moment affects
all of them; a first turn fills the disk cache and is not counted. The script prints a table and writes
results/startup.json.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from importlib.metadata import version

from jobs import RESULTS, script, store

from drfl.experiments.run.artifacts import versions

IMPORTS = {
    "python -c pass": "pass",
    "import drfl": "import drfl",
    "import torch": "import torch",
    "import torch; from drfl import *": "import torch; from drfl import *",
}
COMMANDS = ["--help", "--version", "run --help", "compare --help", "run --nonsense", "algorithms"]
WARM_UP = script.sized(1, 0)
"""Turns that do not count."""
ROWS = {name: ["-c", code] for name, code in IMPORTS.items()} | {
    f"drfl {arguments}": ["-m", "drfl", *arguments.split()] for arguments in COMMANDS
}
REFUSED = {"drfl run --nonsense": 2}
"""Exit codes other than 0."""
BEYOND = "from drfl import *, after torch"
WITHIN = """
import time, torch
start = time.perf_counter()
from drfl import *
print(time.perf_counter() - start)
"""


def ended(row: str, arguments: list[str]) -> str:
    """Return the output of a new process.

    Raises:
        RuntimeError: If its exit code is not the expected one.
    """
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode != REFUSED.get(row, 0):
        raise RuntimeError(f"{row} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def seconds(row: str) -> float:
    """Return the seconds of a new process from start to end, or those that it measured itself."""
    if row == BEYOND:
        return float(ended(row, ["-c", WITHIN]))
    start = time.perf_counter()
    ended(row, ROWS[row])
    return time.perf_counter() - start


def measured(repeats: int) -> dict[str, dict[str, float]]:
    """Return the median, minimum and maximum seconds of every row."""
    times: dict[str, list[float]] = {row: [] for row in (*ROWS, BEYOND)}
    for turn in range(WARM_UP + repeats):
        for row, found in times.items():
            passed = seconds(row)
            if turn >= WARM_UP:
                found.append(passed)
    return {
        row: {name: round(of(found), 4) for name, of in (("median", statistics.median), ("least", min), ("most", max))}
        for row, found in times.items()
    }


def main() -> None:
    """Measure all rows, print the table and store it."""
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("--repeats", type=int, default=script.sized(10, 1))
    options = parser.parse_args()
    found = measured(options.repeats)
    print("| process | median s | least s | most s |\n| --- | ---: | ---: | ---: |")
    for row, s in found.items():
        print(f"| `{row}` | {s['median']:.3f} | {s['least']:.3f} | {s['most']:.3f} |")
    command = f"python benchmarks/startup.py --repeats {options.repeats}"
    known = versions() | {"typer": version("typer")}
    store(options.out, "startup", command, {"repeats": options.repeats, "versions": known, "seconds": found})


if __name__ == "__main__":
    main()
