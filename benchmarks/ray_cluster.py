"""Measure cells and runs on Ray: time with one and two machines, the cost of a message, and the loss of a machine.

    python benchmarks/ray_cluster.py [--only NAMES] [--smoke]

The script takes about ten minutes and writes benchmarks/results/ray_cluster.json. The machines are Ray nodes of one CPU
each on this machine, connected by the loopback; every setting has its own process. The load averages before and after
show how busy the machine was with other work. --only NAMES measures a part and stores nothing. With --smoke every part
is measured once, at its smallest size.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from jobs import RESULTS, script, store

import drfl
from drfl.engine import RayWorkers
from drfl.engine.batches import ClientRows, draw
from drfl.engine.ray_cluster import Cluster
from drfl.experiments.config.config import load_config
from drfl.experiments.execution.cells import Cell
from drfl.experiments.execution.executor import Workers
from drfl.experiments.execution.run_cells import run_all_cells
from drfl.experiments.execution.training_cells import cost_of, job_from_config
from drfl.experiments.run.artifacts import versions
from drfl_papers.execute import run_cell

CELLS = script.sized(40, 2)
ROUNDS = script.sized(12, 2)
WARM = script.sized(3, 1)
"""Rounds that are not counted."""

CLIENTS, MANY, COHORT = script.sized((1_000, 100_000, 5_000), (30, 40, 10))
REPORTS, SENDINGS = script.sized(((60, 20), (8, 3)), ((2, 1), (2, 1)))
"""Number of requests for losses and models, and number of first ones that do not count."""

STANDING = []
"""Clusters to stop at the end, their users first."""


def machines(count: int) -> tuple[str, list]:
    """Start a cluster of nodes with one CPU each; return its address and the nodes except the head."""
    from ray.cluster_utils import Cluster as Nodes

    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    others = [nodes.add_node(num_cpus=1) for _ in range(count - 1)]
    nodes.wait_for_nodes()
    STANDING.append(nodes)
    return nodes.address, [(nodes, other) for other in others]


def wanted() -> list[Cell]:
    """Time the cells: one configuration at 40 seeds."""
    base = {"dataset": "digits", "algorithm": "DRFA", "clients": 10, "cohort": 6, "evaluate_every": 20}
    base |= {"rounds": script.sized(60, 2)}
    configs = [load_config(None, {**base, "seed": seed}) for seed in range(CELLS)]
    return [Cell("training", job_from_config(config), cost_of(config)) for config in configs]


def cells(where: str, count: int) -> dict[str, float]:
    """Return the seconds of 40 cells in processes or on Ray, with and without starting the cluster."""
    start = time.perf_counter()
    workers: Workers = count if where == "processes" else Cluster(machines(count)[0])
    if isinstance(workers, Cluster):
        workers.connected()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        ended = [end.cell.key for end in run_all_cells(wanted(), Path(folder), run_cell, workers=workers)]
    assert len(ended) == CELLS
    now = time.perf_counter()
    return {"whole_s": round(now - start, 2), "cells_s": round(now - begun, 2)}


def federation(model: str, engine: object, clients: int, rows: int) -> drfl.Simulation:
    """Create clients with random samples of MNIST's shape, two of which are test samples."""
    shape = (1, 28, 28)
    generator = torch.Generator().manual_seed(0)
    pool = torch.rand(min(clients * rows, 20_000), *shape, generator=generator)
    y = torch.randint(0, 10, (len(pool),), generator=generator)
    index = torch.arange(clients * rows).remainder(len(pool)).view(clients, rows)
    train, test = index[:, :-2].contiguous().unbind(), index[:, -2:].contiguous().unbind()
    names = tuple(f"client-{i}" for i in range(clients))
    data = drfl.ClientData(pool, y, train, pool, y, test, names=names)
    with drfl.Key(0).fold("model").torch_scope():
        task = drfl.Task(getattr(drfl.models, model)(shape, 10))
    return drfl.Simulation(data, task, engine=engine)


def one_run(model: str, where: str, count: int, algorithm: str) -> dict[str, float]:
    """Time rounds of one run: 20 of 1,000 clients, ten steps of 32 samples."""
    torch.set_num_threads(count if where == "plain" else 1)
    engine = None if where == "plain" else RayWorkers(count, machines(count)[0], sums=where == "ray, sums")
    fed, local = federation(model, engine, CLIENTS, 42), drfl.LocalSGD(steps=10, lr=0.05, batch=32)
    made = getattr(drfl, algorithm)(m=20, local=local)
    state, times = made.init(fed), []
    for r in range(WARM + ROUNDS):
        start = time.perf_counter()
        state, _ = made.round(state, fed, drfl.Key(0).fold("round", r))
        times.append(time.perf_counter() - start)
    return {
        "d": fed.w0.numel(),
        "round_ms": round(1e3 * statistics.median(times[WARM:]), 2),
        "norm": float(state.w.norm()),
    }


def message(count: int) -> dict[str, float]:
    """Time a loss report of one client with and without Ray, and the sending of models."""
    address, _ = machines(count)
    found = {}
    for name, engine in (("plain", None), ("ray", RayWorkers(count, address, sums=False))):
        torch.set_num_threads(1)
        fed, times = federation("linear", engine, CLIENTS, 42), []
        D, local = torch.arange(count), drfl.LocalSGD(steps=1, lr=0.05, batch=1)
        for r in range(REPORTS[0]):
            start = time.perf_counter()
            fed.losses(D, fed.w0, drfl.Key(r), batch=1)
            times.append(time.perf_counter() - start)
        found[f"{name}_losses_ms"] = round(1e3 * statistics.median(times[REPORTS[1] :]), 3)
        every, times = torch.arange(CLIENTS), []
        for r in range(SENDINGS[0]):
            start = time.perf_counter()
            fed.train(every, fed.w0, local, drfl.Key(r))
            times.append(time.perf_counter() - start)
        found[f"{name}_31_mb_of_models_ms"] = round(1e3 * statistics.median(times[SENDINGS[1] :]), 1)
    return found


def many(count: int) -> dict[str, float]:
    """Time a round of FedAvg with the CNN and sums: 5,000 of 100,000 clients, one step of eight samples."""
    torch.set_num_threads(1)
    fed = federation("cnn", RayWorkers(count, machines(count)[0], sums=True), MANY, 12)
    made = drfl.FedAvg(m=COHORT, local=drfl.LocalSGD(steps=1, lr=0.05, batch=8))
    state, times = made.init(fed), []
    for r in range(3):
        start = time.perf_counter()
        state, _ = made.round(state, fed, drfl.Key(0).fold("round", r))
        times.append(time.perf_counter() - start)
    rows, cohort = ClientRows.of(fed.data.train), torch.arange(COHORT)
    start = time.perf_counter()
    draw(rows, cohort, 1, 8, drfl.Key(0))
    drawn = time.perf_counter() - start
    models = COHORT * fed.w0.numel() * 4 / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "d": fed.w0.numel(),
        "round_s": round(min(times), 2),
        "draw_s": round(drawn, 3),
        "models_mib": round(models),
        "driver_peak_mib": round(peak),
    }


def lost(count: int) -> dict[str, object]:
    """Compare a run that loses one machine in round 5 with a run without a loss."""
    ends: dict[str, object] = {}
    models = []
    address, others = machines(count)
    for name in ("whole", "lost"):
        engine = RayWorkers(count, address, sums=True)
        fed = federation("linear", engine, CLIENTS, 42)

        def lose(progress: drfl.RunState, name: str = name) -> None:
            if name == "lost" and progress.round == 5:
                nodes, node = others[-1]
                nodes.remove_node(node, allow_graceful=False)

        start = time.perf_counter()
        local = drfl.LocalSGD(steps=10, lr=0.05, batch=32)
        result = drfl.run(drfl.DRFA(m=20, local=local), fed, rounds=10, callbacks=[lose])
        ends[f"{name}_s"] = round(time.perf_counter() - start, 2)
        models.append(result.model)
    torch.set_num_threads(1)
    plain = drfl.run(drfl.DRFA(m=20, local=local), federation("linear", None, CLIENTS, 42), rounds=10).model
    return {**ends, "same_bits": torch.equal(*models), "from_plain": float((plain - models[0]).abs().max())}


SETTINGS: dict[str, tuple[Callable[..., dict], list[list]]] = script.sized(
    {
        "cells": (cells, [["processes", 1], ["processes", 2], ["ray", 1], ["ray", 2]]),
        "run": (
            one_run,
            [
                [model, where, count, "DRFA"]
                for model in ("linear", "cnn")
                for where in ("plain", "ray, sums", "ray, models")
                for count in (1, 2)
            ],
        ),
        "message": (message, [[1], [2]]),
        "many": (many, [[2]]),
        "lost": (lost, [[4]]),
    },
    {
        "cells": (cells, [["ray", 1]]),
        "run": (one_run, [["linear", "ray, sums", 1, "DRFA"]]),
        "message": (message, [[1]]),
        "many": (many, [[1]]),
        "lost": (lost, [[2]]),
    },
)


def in_a_process(name: str, setting: list) -> dict[str, object]:
    """Measure one setting in a new process."""
    output = script.again(__file__, main, ["--one", json.dumps([name, setting])])
    # Ray also prints messages about lost machines
    answer = json.loads([line for line in output.splitlines() if line.startswith("{")][-1])
    found = {"setting": setting, **answer, "load": round(os.getloadavg()[0], 2)}
    print(name, found, flush=True)
    return found


def main() -> None:
    """Measure the selected settings."""
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--only", default=",".join(SETTINGS))
    options = parser.parse_args()
    if options.one:
        name, setting = json.loads(options.one)
        print(json.dumps(SETTINGS[name][0](*setting)), flush=True)
        if STANDING:
            sys.modules["ray"].shutdown()
            STANDING[0].shutdown()
        return
    names, before = options.only.split(","), os.getloadavg()
    found = {name: [in_a_process(name, setting) for setting in SETTINGS[name][1]] for name in names}
    if len(names) < len(SETTINGS):
        print("not stored: only a part was measured")
        return
    import ray

    about = {"rounds": ROUNDS, "load_before": before, "load_after": os.getloadavg()}
    about |= {"versions": {**versions(), "ray": ray.__version__}}
    store(options.out, "ray_cluster", "python benchmarks/ray_cluster.py", {**about, **found})


if __name__ == "__main__":
    main()
