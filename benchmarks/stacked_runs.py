"""Several seeds in one stack (`stack=K`) against one run after the other, and against processes (`jobs=2`).

    python benchmarks/stacked_runs.py [--rounds 200] [--series 3] [--walls] [--smoke]

The linear model on digits (64 features, ten classes) and on tables of 30 columns (two classes), N = 10 and 30, m = 10,
τ = 10, B = 32, tested every ten rounds; five seeds with a partition or tables of their own, on one thread. FedAvg, DRFA
and DualDRDM by `drfl.run`, one seed after the other and side by side in turns: seconds of this process, the least of
the series, and how far the models are apart. Stacks of 2, 5 and 10 seeds. With --walls also whole calls of
`drfl.compare`, the start of worker processes and files included, by the clock on the wall: of a quiet machine.
Prints a table; writes results/stacked_runs.json.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from jobs import RESULTS, script, store
from torch import nn

import drfl
from drfl import DRFA, ClientData, DualDRDM, FedAvg, Key, LocalSGD, Result, Simulation, Task, ZipfDirichlet, load
from drfl.data import make_partition
from drfl.engine.lockstep import run_in_lockstep, shared
from drfl.federation.algorithm import Algorithm
from drfl.task import models

SEEDS, COHORT, LOCAL, EVERY = script.sized(5, 2), 10, LocalSGD(steps=10, batch=32), 10
ALGORITHMS = {kind.__name__: kind(m=COHORT, local=LOCAL) for kind in (FedAvg, DRFA, DualDRDM)}
CALLS = ({"jobs": 1, "stack": 1}, {"jobs": 1, "stack": 5}, {"jobs": 2, "stack": 1}, {"jobs": 2, "stack": 3})


def digits(seed: int) -> ClientData:
    """Ten clients, another partition at each seed."""
    dataset = load("digits")
    return ClientData.from_dataset(dataset, make_partition(dataset, ZipfDirichlet(clients=10), Key(seed)))


def tables(seed: int) -> ClientData:
    """Thirty clients with a hundred rows of 30 columns each; the second column counts the more the later the client."""
    noise, pairs = torch.Generator().manual_seed(seed), []
    for i in range(30):
        x, error = torch.randn(100, 30, generator=noise), torch.randn(100, generator=noise)
        pairs.append((x, (x[:, 0] + i / 30 * x[:, 1] + error > 0).long()))
    return ClientData.from_arrays(pairs)


def linear(shape: tuple[int, ...], classes: int, seed: int) -> Task:
    """The linear model, another initial one at each seed."""
    with Key(seed).fold("model").torch_scope():
        layer: nn.Module = models.linear(shape, classes)
    return Task(layer)


JOBS: dict[str, tuple[Callable[[int], ClientData], Callable[[int], Task]]] = {
    "digits": (digits, partial(linear, (8, 8), 10)),
    "tables": (tables, partial(linear, (30,), 2)),
}


def one(job: str, algorithm: Algorithm, rounds: int, seed: int) -> Result:
    """A run, from its data on."""
    data, task = JOBS[job]
    fed = Simulation(data(seed), task(seed))
    fed.engine = shared(fed.engine)
    return drfl.run(algorithm, fed, rounds=rounds, seed=seed, evaluate_every=EVERY, check_data=False)


def side_by_side(runs: Sequence[Callable[[], Result]]) -> list[Result]:
    """All in one stack."""
    return [future.result() for future in run_in_lockstep(runs)]


def compared(job: str, algorithm: Algorithm, rounds: int, seeds: int, series: int) -> dict[str, float]:
    """Seconds of the process for all seeds, one after the other and side by side, and the models' distance."""
    runs = [partial(one, job, algorithm, rounds, seed) for seed in range(seeds)]
    ways = {"alone_s": lambda: [run() for run in runs], "stacked_s": lambda: side_by_side(runs)}
    least, found = dict.fromkeys(ways, float("inf")), {}
    for _ in range(series):
        for name, way in ways.items():
            start = time.process_time()
            found[name] = way()
            least[name] = min(least[name], time.process_time() - start)
    pairs = zip(*found.values(), strict=True)
    apart = max(float((a.model - b.model).norm() / a.model.norm()) for a, b in pairs)
    ratio = least["alone_s"] / least["stacked_s"]
    return {name: round(s, 3) for name, s in least.items()} | {"ratio": round(ratio, 2), "apart": float(f"{apart:.1e}")}


def walls(job: str, rounds: int, series: int) -> list[dict[str, float]]:
    """Seconds on the wall of comparisons in stacks and in processes, the least of the series."""
    data, task = JOBS[job]
    settings = {"rounds": rounds, "seeds": SEEDS, "evaluate_every": EVERY, "progress": None}
    least = [float("inf")] * len(CALLS)
    for _ in range(series):
        for place, call in enumerate(CALLS):
            start = time.perf_counter()
            drfl.compare({"DRFA": ALGORITHMS["DRFA"]}, data, task, **settings, **call)  # pyright: ignore[reportArgumentType]
            least[place] = min(least[place], time.perf_counter() - start)
    return [{**call, "wall_s": round(s, 2)} for call, s in zip(CALLS, least, strict=True)]


def main() -> None:
    """Measure, print and store."""
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("--rounds", type=int, default=script.sized(200, 2))
    parser.add_argument("--series", type=int, default=script.sized(3, 1))
    parser.add_argument("--walls", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    content: dict[str, object] = {"rounds": options.rounds, "series": options.series, "m": COHORT, "seeds": SEEDS}
    content["load_average_before"] = os.getloadavg()[0]
    for job in JOBS:
        found = {n: compared(job, a, options.rounds, SEEDS, options.series) for n, a in ALGORITHMS.items()}
        print(job, *(f"{name} {row}" for name, row in found.items()), sep="\n  ", flush=True)
        content[job] = found
    sizes = {
        str(k): compared("digits", ALGORITHMS["DRFA"], options.rounds, k, 1) for k in script.sized((2, 5, 10), (2,))
    }
    print("stacks of", *(f"{size} {row}" for size, row in sizes.items()), sep="\n  ", flush=True)
    content["digits, DRFA, by seeds in a stack"] = sizes
    if options.walls:
        content["digits, DRFA, whole calls"] = found = walls("digits", options.rounds, options.series)
        print(*found, sep="\n")
    words = f"--rounds {options.rounds} --series {options.series}" + " --walls" * options.walls
    store(options.out, "stacked_runs", f"python benchmarks/stacked_runs.py {words}", content)


if __name__ == "__main__":
    main()
