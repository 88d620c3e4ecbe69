"""Compare the speed of two checkouts: CPU time of whole processes, and of rounds of each engine.

    python benchmarks/checkouts.py OLD [--new NEW] [--repeats 15] [--smoke]

OLD and NEW are roots of checkouts; NEW is this one by default. Both run in the environment of this interpreter, in
turns, so that a busy moment affects both. Packages that only the old checkout needs are found through PYTHONPATH. The
numbers are ratios of CPU time (user and system, one thread), new divided by old, with a 95 % interval of the mean over
pairs (Student's t on logarithms). CPU time is used because other processes change it less than the time on the clock.
The script prints a table and writes results/checkouts.json.
"""

from __future__ import annotations

import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from jobs import RESULTS, script, store
from scipy.stats import t

ROUNDS = """
import time, torch, drfl
from drfl import engine
torch.manual_seed(0)
x, y = torch.randn({rows}, {shape}), torch.randint(0, 10, ({rows},))
data = drfl.ClientData.from_arrays([(x[i::30], y[i::30]) for i in range(30)])
model = torch.nn.Sequential({layers})
fed = drfl.Simulation(data, drfl.Task(model), engine=engine.{engine}())
local, cohort = drfl.LocalSGD(steps=10, batch=32, lr=0.1), torch.arange(20)
fed.train(cohort, fed.w0, local, drfl.Key(0))
start = time.process_time()
for r in range({rounds}):
    fed.train(cohort, fed.w0, local, drfl.Key(r))
print(time.process_time() - start)
"""
LINEAR = {"rows": 6000, "shape": "784", "layers": "torch.nn.Linear(784, 10)", "rounds": script.sized(40, 1)}
CNN = {
    "rows": 3000,
    "shape": "1, 28, 28",
    "layers": "torch.nn.Conv2d(1, 8, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(), "
    "torch.nn.Linear(1152, 10)",
    "rounds": script.sized(4, 1),
}
CODE = {
    f"{name}, {engine}": ROUNDS.format(engine=engine, **job)
    for name, job in (("linear", LINEAR), ("CNN", CNN))
    for engine in ("Loop", "Stacked", "Threads")
}
DEMO = ["compare", "examples/one_class.toml", "--seeds", "1", "--jobs", "1", "--rounds", "10", "--overwrite", "--json"]


def cpu_seconds(tree: Path, row: str) -> float:
    """Run a row in a checkout and return its CPU time.

    Raises:
        RuntimeError: The process failed.
    """
    env = {
        **os.environ,
        "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "OMP_NUM_THREADS": "1",
    }
    with tempfile.TemporaryDirectory() as out:
        words = {
            "drfl run --help": ["-m", "drfl", "run", "--help"],
            "demo, 10 rounds": ["-m", "drfl", *DEMO, "--out", f"{out}/demo"],
        }.get(row) or ["-c", CODE[row]]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, *words], cwd=tree, env=env, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{row} in {tree} ended with {done.returncode}: {done.stderr}")
    if row in CODE:
        return float(done.stdout)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def interval(logs: list[float]) -> tuple[float, float, float]:
    """Return the geometric mean of ratios and the ends of its 95 % interval, from their logarithms."""
    mean = statistics.fmean(logs)
    half = t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def main() -> None:
    """Measure all rows in turns."""
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("old", type=Path)
    parser.add_argument("--new", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--repeats", type=int, default=script.sized(15, 2))
    options = parser.parse_args()
    trees = [options.old.resolve(), options.new.resolve()]
    rows = ["drfl run --help", "demo, 10 rounds", *CODE]
    logs = {row: list[float]() for row in rows}
    for turn in range(options.repeats + 1):
        for row in rows:
            # The order alternates. The first turn fills caches and is not counted.
            order = trees if turn % 2 else trees[::-1]
            seconds = {tree: cpu_seconds(tree, row) for tree in order}
            if turn:
                logs[row].append(math.log(seconds[trees[1]] / seconds[trees[0]]))
    found = {row: dict(zip(("ratio", "low", "high"), interval(values), strict=True)) for row, values in logs.items()}
    for row, values in found.items():
        print(f"{row:20}  {values['ratio']:.3f}  ({values['low']:.3f} to {values['high']:.3f})")
    commits = [
        subprocess.run(["git", "-C", str(tree), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
        for tree in trees
    ]
    command = f"python benchmarks/checkouts.py OLD --repeats {options.repeats}"
    store(options.out, "checkouts", command, {"old": commits[0], "new": commits[1], "rows": found})


if __name__ == "__main__":
    main()
