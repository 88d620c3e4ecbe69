"""Measure a round beside busy processes, as on a shared server, in a sweep, or in two runs at once.

    python benchmarks/loaded.py --data-dir DIR [--busy 0,2,4] [--rounds 30] [--series 3] [--smoke]

The jobs are FedAvg with 20 of 30 clients and ten steps of 32 samples: the linear model on MNIST and a small CNN on 8×8
digits. Each call is its own process, beside ``--busy`` busy processes; calls take turns, series by series.
Times are wall and CPU milliseconds per round, medians over the rounds of a process after two warm-up rounds, then over
the series:

* default: drfl with torch's default number of threads;
* one thread: drfl after ``torch.set_num_threads(1)``;
* plain: PyTorch without a library, one client after another, with torch's threads; plain, one thread: with one;
* run: a round of `drfl run` with its defaults, tested in every round, with checkpoints and guard;
* test pass: the model's outputs for all test rows, by PyTorch alone with one thread;
* two at once: the default in two parallel processes.

The small CNN is also measured with both engines. ``slowdown`` is the time beside busy processes divided by the time
without, for drfl's default relative to plain PyTorch on one thread. The script prints a table and writes
results/loaded.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from engines import plain
from jobs import COHORT, LOCAL, RESULTS, STEPS, busy, script, simulation, store
from torch import nn

import drfl
from drfl import ClientData, FedAvg, Simulation, Stacked, Task, Threads, ZipfDirichlet
from drfl.core.intraop import VECTORS, threads_for
from drfl.data import make_partition

WARM_UP = 2
DEFAULT, ONE, PLAIN, PLAIN_ONE = "default", "one thread", "plain", "plain, one thread"
RUN, PASS, TWO = "run", "test pass", "two at once"
ENGINES = {"stacked": Stacked, "threads": Threads}
CALLS = script.sized(
    {
        "linear": (DEFAULT, ONE, PLAIN, PLAIN_ONE, RUN, PASS, TWO),
        "small CNN": (DEFAULT, ONE, *ENGINES, PLAIN_ONE),
    },
    {"linear": (DEFAULT, PLAIN_ONE, RUN, PASS)},
)


def small_cnn() -> Simulation:
    """Return a convolution of 16 channels on 8×8 digits."""
    dataset = drfl.load("digits")
    data = ClientData.from_dataset(dataset, make_partition(dataset, ZipfDirichlet(clients=30), drfl.Key(0)))
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)]
    return Simulation(data, Task(nn.Sequential(*layers)))


def rounds_of(job: str, name: str, rounds: int, data_dir: Path | None) -> Iterator[None]:
    """Plays a round, or computes the test outputs, at each call."""
    fed = small_cnn() if job == "small CNN" else simulation(job, data_dir)
    if name in ENGINES:
        fed.engine = ENGINES[name]()
    if name in (ONE, PASS):
        torch.set_num_threads(1)
    if name == PASS:
        for _ in range(rounds):
            with torch.no_grad():
                fed._test.task.model(fed._test.x)
            yield
        return
    if name in (PLAIN, PLAIN_ONE):
        call = plain(fed, 1 if name == PLAIN_ONE else torch.get_num_threads())
        for r in range(rounds):
            call(r)
            yield
        return
    yield from _played(fed, rounds)


def _played(fed: Simulation, rounds: int) -> Iterator[None]:
    algorithm = FedAvg(m=COHORT, local=LOCAL)
    state = algorithm.init(fed)
    for r in range(rounds):
        with threads_for(VECTORS * fed.w0.numel()):
            state, _ = algorithm.round(state, fed, drfl.Key(r))
        yield


def one(job: str, name: str, rounds: int, data_dir: Path | None) -> tuple[float, float]:
    """Return the median wall and CPU milliseconds of a round in this process."""
    if name == RUN:
        return command(rounds, data_dir)
    wall, cpu, play = [], [], rounds_of(job, name, WARM_UP + rounds, data_dir)
    while True:
        start = time.perf_counter(), time.process_time()
        if next(play, StopIteration) is StopIteration:
            break
        wall.append(time.perf_counter() - start[0])
        cpu.append(time.process_time() - start[1])
    return tuple(1e3 * statistics.median(found[WARM_UP:]) for found in (wall, cpu))


def command(rounds: int, data_dir: Path | None) -> tuple[float, float]:
    """Time a round of `drfl run`, between one test and the next."""
    from drfl.cli.app import call
    from drfl.training.run_log import RunLog

    ends: list[tuple[float, float]] = []
    add = RunLog.add

    def noted(*arguments: object) -> object:
        ends.append((time.perf_counter(), time.process_time()))
        return add(*arguments)  # pyright: ignore

    RunLog.add = noted  # pyright: ignore
    where = [] if data_dir is None else ["--data-dir", str(data_dir)]
    options = f"--dataset mnist --algorithm FedAvg --clients 30 --cohort {COHORT} --lr 0.1 --steps {STEPS} --batch 32"
    with tempfile.TemporaryDirectory() as folder:
        call(["run", *options.split(), *where, "--rounds", str(WARM_UP + rounds), "--out", f"{folder}/run"])
    passed = [[b[k] - a[k] for a, b in itertools.pairwise(ends)][WARM_UP:] for k in (0, 1)]
    return tuple(1e3 * statistics.median(found) for found in passed)


def measured(job: str, name: str, options: argparse.Namespace) -> dict[str, float]:
    """Time a call in a separate process, or in two at once and return the slower one."""
    words = ["--one", job, DEFAULT if name == TWO else name, "--rounds", str(options.rounds)]
    words += ["--data-dir", str(options.data_dir)] if options.data_dir else []

    def process(_: int = 0) -> dict[str, float]:
        return json.loads(script.again(__file__, main, words).splitlines()[-1])

    if name != TWO:
        return process()
    with ThreadPoolExecutor(2) as pool:
        return max(pool.map(process, range(2)), key=lambda times: times["wall_ms"])


def table(options: argparse.Namespace) -> list[dict[str, object]]:
    """Return a row for each job, call and number of busy processes."""
    found: dict[tuple[str, str, int], list[dict[str, float]]] = {}
    for _ in range(options.series):
        for others in options.busy:
            with busy(others):
                for job, name in ((job, name) for job, names in CALLS.items() for name in names):
                    if name == TWO and others:
                        continue
                    found.setdefault((job, name, others), []).append(measured(job, name, options))
    rows = []
    for (job, name, others), times in found.items():
        wall, cpu = (round(statistics.median(t[kind] for t in times), 2) for kind in ("wall_ms", "cpu_ms"))
        rows.append({"job": job, "call": name, "busy": others, "wall_ms": wall, "cpu_ms": cpu})
        print(f"{job:10} {name:18} beside {others}: {wall:8.2f} ms a round, {cpu:8.2f} ms of CPU", flush=True)
    return rows


def slowdowns(rows: Sequence[Mapping[str, object]]) -> dict[str, float]:
    """Return the slowdown of drfl's default relative to plain PyTorch on one thread, by job and busy processes."""
    times = {(r["job"], r["call"], r["busy"]): float(str(r["wall_ms"])) for r in rows}
    found = {}
    for job, call, others in times:
        if call == DEFAULT and others:
            ratios = [times[job, name, others] / times[job, name, 0] for name in (DEFAULT, PLAIN_ONE)]
            found[f"{job}, beside {others}"] = round(ratios[0] / ratios[1], 2)
    return found


def main() -> None:
    """Measure all jobs, print the table and store it."""
    parser = script.parser(__doc__, RESULTS, data=True)
    parser.add_argument(
        "--busy", default=script.sized("0,2,4", "0,1"), type=lambda text: [int(part) for part in text.split(",")]
    )
    parser.add_argument("--rounds", type=int, default=script.sized(30, 1))
    parser.add_argument("--series", type=int, default=script.sized(3, 1))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        wall, cpu = one(*options.one, options.rounds, options.data_dir)
        print(json.dumps({"wall_ms": wall, "cpu_ms": cpu}))
        return
    before = os.getloadavg()[0]
    rows = table(options)
    content = {"load_average_before": before, "rows": rows, "slowdown": slowdowns(rows)}
    print(content["slowdown"])
    words = f"--busy {','.join(map(str, options.busy))} --rounds {options.rounds} --series {options.series}"
    store(options.out, "loaded", f"python benchmarks/loaded.py --data-dir DIR {words}", content)


if __name__ == "__main__":
    main()
