"""Measure a round with the models that people use: each engine, plain PyTorch and pfl-research side by side.

    python benchmarks/models.py [--models 1,2] [--series 5] [--busy 0,2] [--processor] [--pfl] [--smoke]

The jobs are in model_jobs.py. *Plain* copies the model and creates an ``optim.SGD`` for each client, one client after
another, on the minibatches that drfl draws, with torch's default number of threads or with one. All calls take turns
within each series, in one process. Times are medians over the series, after a warm-up of two rounds. Ratios are medians
of the ratios within a series, with the range of the central half. *Dual DRDM* is a round with loss reports and drift
terms. The floor is the number of multiplications and additions of the products and convolutions in the local steps,
divided by this machine's rate for a float32 matrix product in the same series. Memory is the peak of a separate process
that plays three rounds.

With --processor, everything has one thread and times are processor seconds, which other processes hardly affect. The
results are then in results/models_processor.json.

With --pfl, only pfl-research is measured, on files with the same data and in the environment that benchmarks/peers.py
creates, between two measurements of drfl's rounds, and added to the stored results. The script prints its figures and
writes results/models.json. A call for some of the models replaces only these in that file.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jobs import RESULTS, busy, product_rate, script, store
from model_jobs import CLASSES, JOBS, VOCABULARY, Job, is_short

from drfl import Auto, DualDRDM, FedAvg, Key, Loop, Simulation, Stacked, Threads
from drfl.core.intraop import VECTORS, threads_for
from drfl.engine.batches import draw
from drfl.engine.step_cost import step_cost
from drfl.federation.algorithm import Algorithm

ENGINES = {"auto": Auto(), "stacked": Stacked(), "threads": Threads(), "loop": Loop()}
ONCE = ("loop",)
"""Calls so slow that one series is enough."""


def played(job: Job, fed: Simulation, algorithm: Algorithm, engine: str) -> Callable[[int], object]:
    """Return a function that plays the next round of an algorithm behind an engine, as a run does."""
    state = algorithm.init(fed)

    def call(r: int) -> None:
        nonlocal state
        fed.engine = ENGINES[engine]
        with threads_for(VECTORS * fed.w0.numel()):
            state, _ = algorithm.round(state, fed, Key(r))

    return call


def plain(job: Job, fed: Simulation, threads: int) -> Callable[[int], object]:
    """Return a function that runs the local steps and the mean without a library."""
    problem, criterion = fed._train, torch.nn.CrossEntropyLoss()

    def client(samples: torch.Tensor) -> torch.nn.Module:
        model = copy.deepcopy(problem.task.model)
        optimiser = torch.optim.SGD(model.parameters(), lr=job.local.eta)
        for rows in samples:
            optimiser.zero_grad()
            criterion(model(problem.x[rows]), problem.y[rows]).backward()
            optimiser.step()
        return model

    def call(r: int) -> list[torch.Tensor]:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        samples = draw(fed._rows, torch.arange(job.m), job.steps, job.batch, Key(r)).samples
        trained = [client(own) for own in samples]
        with torch.no_grad():
            parameters = zip(*(model.parameters() for model in trained), strict=True)
            means = [torch.stack(own).mean(0) for own in parameters]
        torch.set_num_threads(before)
        return means

    return call


def calls_of(job: Job) -> dict[str, Callable[[int], object]]:
    """Return everything that is timed; all clients take part in every round."""
    fed = job.simulation(job.m)
    average, dual = FedAvg(m=job.m, local=job.local), DualDRDM(m=job.m, local=job.local)
    engines = [name for name in ENGINES if name != "stacked" or is_short(fed)]
    calls = {engine: played(job, fed, average, engine) for engine in engines}
    calls["plain"] = plain(job, fed, torch.get_num_threads())
    if torch.get_num_threads() > 1:
        calls["plain, one thread"] = plain(job, fed, 1)
    return calls | {f"dual DRDM, {name}": played(job, fed, dual, name) for name in engines if name != "loop"}


def operations(job: Job) -> float:
    """Return the floating-point operations of the products and convolutions in the local steps of a round."""
    cost = step_cost(job.simulation(2)._train)
    return 2 * (cost.products + cost.convolutions) * job.batch * job.steps * job.m


def timed(job: Job, series: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Return the seconds of each call in each series; calls that fail are missing."""
    calls, times, rates = calls_of(job), dict[str, list[float]](), list[float]()
    for name in list(calls):
        try:
            for r in range(1 if name in ONCE else 2):
                calls[name](r)
            times[name] = []
        except Exception as error:
            print(f"  {name} fails: {str(error).splitlines()[0][:200]}", flush=True)
            del calls[name]
    for s in range(series):
        rates.append(product_rate(clock=clock))
        for name, call in calls.items():
            if s and name in ONCE:
                continue
            start = clock()
            call(2 + s)
            once = clock() - start
            # Short rounds are repeated, and the first one, with cold caches, is dropped.
            repeats = 3 if once < 0.3 and name not in ONCE else 0
            start = clock()
            for i in range(repeats):
                call(100 * (s + 1) + i)
            times[name].append((clock() - start) / repeats if repeats else once)
    return {**times, "rate": rates}


def ratio(above: list[float], below: list[float]) -> list[float]:
    """Return the median and the quartiles of the ratios within the series."""
    found = [a / b for a, b in zip(above, below, strict=True)]
    low, _, high = statistics.quantiles(found, n=4) if len(found) > 1 else (found[0],) * 3
    return [round(value, 3) for value in (statistics.median(found), low, high)]


def summary(times: Mapping[str, list[float]], flops: float) -> dict[str, Any]:
    """Return the medians of the calls, the floor, and the ratios of a job."""
    medians = {name: statistics.median(found) for name, found in times.items()}
    rate = medians.pop("rate")
    engines = {name: medians[name] for name in ("stacked", "threads", "loop") if name in medians}
    fastest = min(engines, key=engines.__getitem__)
    best = min((name for name in medians if name.startswith("plain")), key=medians.__getitem__)
    return {
        "median_s": {name: round(found, 5) for name, found in medians.items()},
        "floor_s": round(flops / rate, 5),
        "gigaflops": round(rate / 1e9, 1),
        "plain_over_auto": ratio(times["plain"], times["auto"]),
        "best_plain_over_auto": ratio(times[best], times["auto"]),
        "auto_over_fastest": round(medians["auto"] / min(medians["auto"], engines[fastest]), 3),
        "dual_over_fedavg": ratio(times["dual DRDM, auto"], times["auto"]),
    }


def peak(name: str, call: str) -> float | None:
    """Return the peak MiB of a process that plays three rounds of a call."""
    try:
        return float(script.again(__file__, main, ["--one", name, call]).splitlines()[-1])
    except RuntimeError:  # this call does not work with this model
        return None


def one(name: str, call: str) -> None:
    """Play three rounds of a call, and print this process's peak."""
    function = calls_of(JOBS[name])[call]
    for r in range(3):
        function(r)
    status = Path("/proc/self/status").read_text().splitlines()
    print(sum(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024)


def pfl(name: str, rounds: int, venvs: Path) -> dict[str, object]:
    """Return the seconds of a round of pfl-research with its fastest setting on this machine."""
    from peer.frameworks import FRAMEWORKS, environment, install, versions

    framework, job = FRAMEWORKS["pfl"], JOBS[name]
    if reason := install(framework, venvs):
        return {"failed": reason}
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder, fed = Path(temporary), job.simulation(job.m)
        rows, problem = fed._rows, fed._train
        torch.save(problem.task.model, folder / "model.pt")
        inputs, targets = problem.x[rows.index].numpy(), problem.y[rows.index].numpy()
        np.savez(folder / "data.npz", inputs=inputs, targets=targets, sizes=rows.sizes.numpy())
        classes = VOCABULARY if len(job.shape) == 1 else CLASSES
        about = {"cohort": job.m, "steps": job.steps, "batch": job.batch, "lr": job.local.lr, "classes": classes}
        (folder / "job.json").write_text(json.dumps(about))
        for setting in framework.settings:
            out, scratch = folder / "out.json", folder / f"{setting.workers}"
            scratch.mkdir(exist_ok=True)
            options = {"rounds": rounds + 2, "seed": 0, "started": time.monotonic()}
            options |= {"workers": setting.workers, "threads": setting.threads}
            command = [str(framework.python(venvs)), "-m", "peer.pfl", str(folder), str(out)]
            command += [f"--{key}={value}" for key, value in options.items()]
            # The model's classes are read from these files.
            sees = environment(setting, scratch)
            sees["PYTHONPATH"] = os.pathsep.join([sees["PYTHONPATH"], os.environ.get("PYTHONPATH", "")])
            run = subprocess.run(command, cwd=scratch, env=sees, capture_output=True, text=True, check=False)
            if run.returncode:
                found[f"failed {setting}"] = " ".join(run.stderr.split())[-300:]
                continue
            report = json.loads(out.read_text())
            found[str(setting)] = round(statistics.median(report["seconds"][2:]), 5)
            found[f"peak_mib {setting}"] = round(report["peak_mib"])
    times = [value for key, value in found.items() if isinstance(value, float)]
    return {**found, "median_s": min(times, default=None), "versions": versions(framework, venvs)}


def between(name: str, options: argparse.Namespace) -> dict[str, object]:
    """Measure pfl-research between two measurements of drfl's default engine."""
    call = calls_of(JOBS[name])["auto"]

    def own() -> float:
        found = []
        for r in range(2 + options.series):
            start = time.perf_counter()
            call(r)
            found.append(time.perf_counter() - start)
        return statistics.median(found[2:])

    before, found, after = own(), pfl(name, options.series, options.venvs), own()
    found["auto_s"] = [round(before, 5), round(after, 5)]
    if isinstance(seconds := found.get("median_s"), float):
        found["over_auto"] = round(seconds / statistics.mean((before, after)), 3)
    print(f"{name}: pfl-research {found}", flush=True)
    return found


def measured(name: str, options: argparse.Namespace) -> dict[str, object]:
    """Measure a job quietly and beside busy processes."""
    job, before = JOBS[name], os.getloadavg()[0]
    flops = operations(job)
    content: dict[str, object] = {"m": job.m, "steps": job.steps, "batch": job.batch, "gigaflop": flops / 1e9}
    content |= {"load_average_before": before, "parameters": job.simulation(2).w0.numel(), "series": options.series}
    for others in options.busy:
        with busy(others) if others else contextlib.nullcontext():
            series = options.series if not others else max(1, options.series // 2)
            times = timed(job, series, time.process_time if options.processor else time.perf_counter)
        content[f"beside_{others}"] = found = summary(times, flops)
        shown = {call: f"{1e3 * s:.0f}" for call, s in found["median_s"].items()}
        print(f"{name}, beside {others}: ms {shown}, floor {1e3 * found['floor_s']:.0f}", flush=True)
        print(f"  plain/auto {found['plain_over_auto']}, auto/fastest {found['auto_over_fastest']}", flush=True)
    if not options.processor:
        calls = ("auto", "stacked", "threads", "plain", "dual DRDM, auto")
        content["peak_mib"] = {call: peak(name, call) for call in calls}
    return {**content, "load_average_after": os.getloadavg()[0], "date": datetime.now(UTC).isoformat("T", "minutes")}


def main() -> None:
    """Measure and store."""
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("--models", help="numbers of the models, from 1, separated by commas (default: all)")
    parser.add_argument("--series", type=int, default=script.sized(5, 1))
    parser.add_argument("--busy", default=script.sized("0,2", "0"), type=lambda t: [int(part) for part in t.split(",")])
    parser.add_argument("--processor", action="store_true", help="measure processor time with one thread")
    parser.add_argument("--pfl", action="store_true", help="measure pfl-research, and nothing else")
    parser.add_argument("--venvs", type=Path, default=Path(__file__).parent / ".peers")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.venvs = options.venvs.resolve()
    if options.one:
        one(*options.one)
        return
    names = list(JOBS) if options.models is None else [list(JOBS)[int(i) - 1] for i in options.models.split(",")]
    stem = "models_processor" if options.processor else "models"
    if options.processor:
        torch.set_num_threads(1)
    file = options.out / f"{stem}.json"
    kept = json.loads(file.read_text())["models"] if file.exists() and (options.pfl or len(names) < len(JOBS)) else {}
    for name in names:
        if options.pfl:
            kept.setdefault(name, {})["pfl"] = between(name, options)
        else:
            # pfl-research was measured against separate rounds of drfl, so its result is kept.
            of_pfl = {"pfl": kept[name]["pfl"]} if "pfl" in kept.get(name, {}) else {}
            kept[name] = {**measured(name, options), **of_pfl}
        ordered = {known: kept[known] for known in JOBS if known in kept}
        command = "python benchmarks/models.py" + " --processor" * options.processor
        store(options.out, stem, command, {"models": ordered})


if __name__ == "__main__":
    main()
