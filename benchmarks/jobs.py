"""Common parts of the benchmarks: the two jobs, the machine's floor, interleaving, and the head of a result file."""

from __future__ import annotations

import math
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from drfl import ClientData, Key, LocalSGD, Simulation, Task, ZipfDirichlet, load
from drfl.data import make_partition
from drfl.experiments.run.artifacts import versions
from drfl.task import models
from evidence import script  # the other scripts import it from here

RESULTS = Path(__file__).parent / "results"
JOBS = {"linear": ("mnist", models.linear), "cnn": ("kmnist-t10k", models.cnn)}
"""The linear model on MNIST and DRDM's CNN on the test part of Kuzushiji-MNIST."""

CLIENTS, COHORT, STEPS = script.sized((30, 20, 10), (4, 3, 2))
LOCAL = LocalSGD(steps=STEPS, lr=0.1, batch=32)


def simulation(job: str, data_dir: Path | None, **options: object) -> Simulation:
    """Return the job's clients, by default behind the engine that fits."""
    name, model = JOBS[job]
    dataset = load(name, data_dir=data_dir)
    data = ClientData.from_dataset(dataset, make_partition(dataset, ZipfDirichlet(clients=CLIENTS), Key(0)))
    with Key(0).fold("model").torch_scope():
        module = model(tuple(dataset.inputs.shape[1:]), dataset.classes)
    return Simulation(data, Task(module), **options)  # pyright: ignore[reportArgumentType]


def operations(fed: Simulation) -> float:
    """Count the floating-point operations of a round: only matrix products and convolutions, forward and backward."""
    from torch.utils.flop_counter import FlopCounterMode

    problem, task = fed._train, fed._train.task
    parameters = {name: value.requires_grad_() for name, value in task.layout.views(fed.w0).items()}
    with FlopCounterMode(display=False) as counter:
        loss = task.sample_losses(task.outputs(parameters, problem.x[:32]), problem.y[:32]).mean()
        torch.autograd.grad(loss, list(parameters.values()))
    return float(counter.get_total_flops()) * LOCAL.tau * COHORT


def product_rate(device: str = "cpu", clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the floating-point operations per second of a large float32 matrix product, the best of five."""
    size = script.sized(2048 if device == "cpu" else 8192, 128)
    a, times = torch.randn(size, size, device=device), []
    for _ in range(5):
        start = clock()
        (a @ a)[0, 0].item()
        times.append(clock() - start)
    return 2 * size**3 / min(times)


def turns(
    rounds: int,
    calls: Mapping[str, Callable[[int], object]],
    series: int = script.sized(4, 1),
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median seconds of each call over at least ``rounds`` rounds, in interleaved series.

    Interleaving lets a busy moment affect all calls. Within a series a call is repeated as in a run, and its first
    round, with cold caches, does not count. The first series of each call is a warm-up. ``clock`` may be
    ``time.process_time``, which does not count other processes.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    r = 0
    for turn in range(1 + math.ceil(rounds / series)):
        for name, call in calls.items():
            for i in range(series + 1):
                start = clock()
                call(r + i)
                if turn and i:
                    times[name].append(clock() - start)
        r += series + 1
    return {name: statistics.median(found) for name, found in times.items()}


def _spin() -> None:
    while True:
        pass


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Run this number of busy processes within this context."""
    others = [multiprocessing.get_context("fork").Process(target=_spin, daemon=True) for _ in range(processes)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.terminate()


def store(out: Path, name: str, command: str, content: Mapping[str, object]) -> None:
    """Write NAME.json into a folder: the command, the machine and the versions, then the content."""
    device = f"{os.cpu_count()} cores, {platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    about: dict[str, object] = {
        "command": command,
        "device": device,
        "threads": torch.get_num_threads(),
        "seed": 0,
        "versions": versions(),
    }
    script.store(out, {f"{name}.json": {**about, **content}})
