"""Compare a sweep with a shell loop of ``drfl run`` over the same runs.

    python benchmarks/sweep.py [--runs 200] [--looped 8] [--smoke]

The sweep runs two algorithms on the embedded digits, with ten seeds for each Dirichlet concentration. The loop runs
some of these runs, evenly spaced, one process after another, and its time per run is multiplied by the number of runs.
Both write all their files; the loop also writes a report per run, as ``drfl run`` always does. The script prints both
times and writes results/sweep.json.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jobs import RESULTS, script, store

from drfl.experiments.run.artifacts import versions

SETTINGS = {"dataset": "digits", "clients": 10, "rounds": 10, "threads": 1}
ALGORITHMS = ("FedAvg", "DRFA")
SEEDS = 10
STUDY = """{settings}

[grid]
algorithm = {algorithms}
alpha = {alphas}
seed = "0..{last}"
"""


def timed(arguments: list[str], folder: Path) -> float:
    """Return the seconds of a command of drfl in a new process, from its start to its end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "drfl", *arguments], cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Measure, print, write."""
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("--runs", type=int, default=script.sized(200, 8))
    parser.add_argument("--looped", type=int, default=script.sized(8, 2))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    seeds = min(SEEDS, options.runs // len(ALGORITHMS))
    alphas = [round(0.1 * (k + 1), 1) for k in range(options.runs // (len(ALGORITHMS) * seeds))]
    points = [(name, alpha, seed) for alpha in alphas for seed in range(seeds) for name in ALGORITHMS]
    looped = points[:: max(1, len(points) // options.looped)][: options.looped]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        lines = (f"{name} = {value!r}".replace("'", '"') for name, value in SETTINGS.items())
        names = str(list(ALGORITHMS)).replace("'", '"')
        (folder / "study.toml").write_text(
            STUDY.format(settings="\n".join(lines), algorithms=names, alphas=alphas, last=seeds - 1)
        )
        settings = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]
        single = []
        for number, (name, alpha, seed) in enumerate(looped):
            words = ["run", *settings, "--algorithm", name, "--alpha", str(alpha), "--seed", str(seed)]
            single.append(timed([*words, "--out", f"run-{number}"], folder))
        sweep = timed(["sweep", "study.toml", "--jobs", str(options.jobs), "--out", "sweep"], folder)
    per_run = sum(single) / len(single)
    found = {
        "runs": len(points), "looped": [list(point) for point in looped], "jobs": options.jobs,
        "seconds": {
            "sweep": round(sweep, 2), "loop_per_run": round(per_run, 3), "loop_of_all": round(per_run * len(points), 1)
        },
        "factor": round(per_run * len(points) / sweep, 2), "versions": versions(),
    }  # fmt: skip
    print(f"sweep of {len(points)} runs: {sweep:.1f} s; loop: {per_run:.2f} s a run; factor {found['factor']}")
    command = f"python benchmarks/sweep.py --runs {options.runs} --looped {options.looped} --jobs {options.jobs}"
    store(options.out, "sweep", command, found)


if __name__ == "__main__":
    main()
