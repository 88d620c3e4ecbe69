"""Milliseconds per round of each engine, what a round consists of, and memory, on random images.

N = 100, m = 20, τ = 10, B = 32. The profile distinguishes kernels, copies, launches and synchronisations. Graph
captures are counted over 100 rounds, because a graph that is captured repeatedly costs more than it saves.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

import torch
from jobs import product_rate, script
from torch import nn
from torch.profiler import ProfilerActivity, profile

from drfl import DRDM, DRFA, Algorithm, ClientData, DualDRDM, FedAvg, Key, LocalSGD, Simulation, State, Task
from drfl.engine import Auto, Engine, stacked
from drfl.task import models
from gpu_parts.correctness import ENGINES, graphs
from gpu_parts.networks import CLASSES, random_clients, resnet18
from gpu_parts.report import Report, synchronise

N, M, STEPS, BATCH, PER_CLIENT = script.sized((100, 20, 10, 32, 64), (4, 2, 2, 4, 8))
SIDE = script.sized(32, 8)
SHAPE = (3, SIDE, SIDE)
LOCAL = LocalSGD(steps=STEPS, lr=0.01, batch=BATCH)
GREY = (1, script.sized(28, 8), script.sized(28, 8))
"""Images of DRDM's Table 1, for which its CNN was made."""
MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "linear": lambda: models.linear(SHAPE, CLASSES),
    "cnn": lambda: models.cnn(SHAPE, CLASSES),
    "cnn-28": lambda: models.cnn(GREY, CLASSES),
    "lstm": lambda: models.LSTM(LETTERS),  # cannot be stacked
    "resnet18": lambda: resnet18(width=script.sized(64, 4)),
}
LETTERS, TEXT = 80, 20
"""Vocabulary and length of the LSTM's texts."""
ALGORITHMS = {"FedAvg": FedAvg, "DRFA": DRFA, "DRDM": DRDM, "DualDRDM": DualDRDM}
COHORTS = script.sized((5, 20, 100, 300, 1000), (3,))
ROUNDS = script.sized(100, 1)
"""Rounds over which captures are counted, as many as a run of DRDM's Table 1 has."""

SYNCHRONISATIONS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch")


@functools.cache
def clients(name: str, n: int = N) -> ClientData:
    """Return random clients for a model."""
    if name == "lstm":
        rng = torch.Generator().manual_seed(0)
        x, y = torch.randint(LETTERS, (n, PER_CLIENT, TEXT), generator=rng), torch.randint(LETTERS, (n, PER_CLIENT))
        return ClientData.from_arrays(list(zip(x, y, strict=True)), test_fraction=1 / PER_CLIENT)
    return random_clients(n, PER_CLIENT, GREY if name == "cnn-28" else SHAPE)


def simulation(name: str, device: str, engine: Engine, precision: str = "full", n: int = N) -> Simulation:
    """Return a job's clients."""
    with Key(0).fold("model").torch_scope():
        task = Task(MODELS[name]())
    return Simulation(clients(name, n), task, device=device, engine=engine, precision=precision)


def rounds_of(algorithm: Algorithm[State], fed: Simulation) -> Callable[[], None]:
    """Return a function that does the next round, to the end of its work on the device."""
    state, r, device = algorithm.init(fed), 0, str(fed.w0.device)

    def call() -> None:
        nonlocal state, r
        r += 1
        state, _ = algorithm.round(state, fed, Key(0).fold("round", r))
        synchronise(device)

    return call


def timed(call: Callable[[], object], seconds: float, most: int = script.sized(30, 1)) -> list[float]:
    """Return the seconds of at least one call, after one that does not count."""
    end = time.monotonic() + seconds
    call()
    times: list[float] = []
    while not times or (len(times) < most and time.monotonic() < end):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


@contextmanager
def counted_captures() -> Iterator[list[float]]:
    """Collect the seconds of every capture of a graph."""
    seconds: list[float] = []
    capture = stacked.capture

    def counting(*arguments):  # noqa: ANN002, ANN202
        start = time.perf_counter()
        made = capture(*arguments)
        seconds.append(round(time.perf_counter() - start, 3))
        return made

    counting.__name__ = capture.__name__
    with mock.patch.object(stacked, "capture", counting):
        yield seconds


def engines(report: Report) -> None:
    """Measure FedAvg's round with each engine, and with bfloat16."""
    for name in list(MODELS)[:: script.sized(1, 4)]:
        variants = [("auto", "full", True), ("auto", "bf16", True)]
        if name != "resnet18":  # a round of it takes seconds with the others
            variants += [("loop", "full", True), ("threads", "full", True), ("auto", "full", False)]
        for engine, precision, with_graphs in variants[: script.sized(None, 2)]:
            if report.left < 45 and not script.SMOKE:  # leave time for the profiles
                return
            row = {"model": name, "engine": engine, "precision": precision, "graphs": with_graphs}
            try:
                with graphs(with_graphs), counted_captures() as captures:
                    reset_peak(report.device)
                    fed = simulation(name, report.device, ENGINES[engine], precision)
                    times = timed(rounds_of(FedAvg(m=M, local=LOCAL), fed), script.sized(2.0, 0.0))
                report.add(check="engine", **row, **milliseconds(times), captures=len(captures), **peak(report.device))
            except Exception as error:  # measure the other engines even if one fails
                report.add(check="engine", **row, error=f"{type(error).__name__}: {error}"[:300])


def milliseconds(times: list[float]) -> dict[str, object]:
    """Return the median, the fastest and the slowest."""
    found = [round(1e3 * value, 2) for value in (statistics.median(times), min(times), max(times))]
    return {"median_ms": found[0], "fastest_ms": found[1], "slowest_ms": found[2], "rounds": len(times)}


def reset_peak(device: str) -> None:
    """Reset the peak of memory."""
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak(device: str) -> dict[str, object]:
    """Return the peak of memory since the last reset."""
    if device == "cpu":
        return {}
    return {
        "peak_mib": round(torch.cuda.max_memory_allocated() / 2**20),
        "reserved_mib": round(torch.cuda.max_memory_reserved() / 2**20),
    }


def algorithms(report: Report) -> None:
    """Measure rounds, captures and profiles of algorithms."""
    jobs = [*((name, "cnn") for name in ALGORITHMS), ("DualDRDM", "linear"), ("DualDRDM", "cnn-28")]
    for algorithm, name in jobs[: script.sized(None, 1)]:
        if report.left < 15 and not script.SMOKE:
            return
        with counted_captures() as captures:
            fed = simulation(name, report.device, Auto())
            call = rounds_of(ALGORITHMS[algorithm](m=M, local=LOCAL), fed)
            times = timed(call, script.sized(5.0, 0.0), ROUNDS)
        row = {"algorithm": algorithm, "model": name, **milliseconds(times), "captures": len(captures)}
        row["capture_s"] = round(sum(captures), 2)
        row["drawing_ms"] = drawing(fed)
        report.add(check="algorithm", **row, profile=profiled(call, report.device, statistics.median(times)))
    for name in (name for name in MODELS if name != "lstm"):
        report.add(check="inside a step", model=name, **inside_a_step(name, report.device))


def drawing(fed: Simulation) -> float:
    """Return the milliseconds that the CPU takes to draw a cohort's minibatches."""
    from drfl.engine.batches import draw

    times = timed(lambda: draw(fed._rows, torch.arange(M), STEPS, BATCH, Key(0)), 0.1, 5)
    return round(1e3 * statistics.median(times), 2)


def profiled(call: Callable[[], object], device: str, wall: float) -> dict[str, object]:
    """Return what rounds consist of, on average.

    Args:
        call: A round.
        device: The device.
        wall: Seconds per round without the profiler.
    """
    rounds = script.sized(5, 1)
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device != "cpu")
    with profile(activities=kinds) as recorded:
        for _ in range(rounds):
            call()
    count, kernels, copies = Counter[str](), Counter[str](), Counter[str]()
    operations, spans = 0, list[tuple[float, float]]()
    for event in recorded.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            into = copies if event.name.startswith(("Memcpy", "Memset")) else kernels
            into[event.name] += event.time_range.elapsed_us()
            count[event.name] += 1
            if into is kernels:
                spans.append((event.time_range.start, event.time_range.end))
        elif event.name.startswith("cu"):
            count[event.name] += 1
        else:
            operations += event.name.startswith("aten::") and event.cpu_parent is None
    # A captured graph may run kernels at the same time, so their durations do not add up to the time of the device.
    in_kernels, end = 0.0, 0.0
    for start, stop in sorted(spans):
        in_kernels += max(0.0, stop - max(start, end)) / rounds / 1e6
        end = max(end, stop)
    return {
        "kernel_ms": round(1e3 * in_kernels, 3),
        "share_in_kernels": round(in_kernels / wall, 3),
        "operations": operations / rounds,
        "launches": sum(count[name] for name in LAUNCHES) / rounds,
        "graph_launches": count["cudaGraphLaunch"] / rounds,
        "synchronisations": sum(count[name] for name in SYNCHRONISATIONS) / rounds,
        "kernels": sum(count[name] for name in kernels) / rounds,
        "copies": {name: count[name] / rounds for name in copies},
        "copies_ms": round(sum(copies.values()) / rounds / 1e3, 3),
        "slowest_kernels_ms": {
            name[:90]: round(value / rounds / 1e3, 3) for name, value in kernels.most_common(12)
        },
    }  # fmt: skip


def inside_a_step(name: str, device: str) -> dict[str, object]:
    """Run local steps call by call while torch refuses every synchronisation."""
    if device == "cpu":
        return {"skipped": "needs a CUDA device"}
    steps = stacked._local_steps

    def strict(*arguments):  # noqa: ANN002, ANN202
        torch.cuda.set_sync_debug_mode("error")
        try:
            return steps(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    try:
        with graphs(on=False), mock.patch.object(stacked, "_local_steps", strict):
            rounds_of(FedAvg(m=M, local=LOCAL), simulation(name, device, ENGINES["stacked"]))()
    except Exception as error:  # a synchronisation, or a model that cannot be stacked
        return {"ok": False, "error": f"{type(error).__name__}: {error}"[:300]}
    return {"ok": True}


def cohorts(report: Report) -> None:
    """Measure the CNN with cohorts of several sizes: time, and memory, which grows with the models."""
    for m in COHORTS:
        if report.left < 5 and not script.SMOKE:
            return
        reset_peak(report.device)
        try:
            fed = simulation("cnn", report.device, Auto(), n=max(COHORTS))
            times = timed(rounds_of(FedAvg(m=m, local=LOCAL), fed), script.sized(1.0, 0.0))
            report.add(check="cohort", m=m, **milliseconds(times), **peak(report.device))
        except Exception as error:  # too little memory, for example
            report.add(check="cohort", m=m, error=f"{type(error).__name__}: {error}"[:300])


def measure(report: Report) -> None:
    """Measure everything."""
    report.summarise(teraflops_float32=round(product_rate(report.device) / 1e12, 1))
    engines(report)
    algorithms(report)
    cohorts(report)
