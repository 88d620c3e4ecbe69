"""Measure a round of drfl and of other frameworks: FedAvg, 20 of 30 clients, ten steps of 32 samples, float32.

    python benchmarks/peers.py --data-dir DIR [--only drfl,pfl] [--job linear] [--series 3] [--rounds 10] [--busy 0,2]
        [--smoke]

The jobs are the linear model on MNIST and the CNN on kmnist-t10k. Data, partition and initial model are made once, with
drfl, and passed to every framework as files. Each run is a process in the framework's own environment. Frameworks and
settings take turns, series by series, so that a busy moment affects all of them.

The table has each framework's fastest setting: the median over all rounds after warm-up. Start-up is the time from the
start of the process to the end of its first round, minus a median round, because some frameworks load data or start
workers during the first round. Accuracy is the mean over clients of the final model's test accuracy, computed by drfl
for all frameworks, as mean ± std over the framework's runs; each series has its own seed. Frameworks that cannot be
installed or fail are omitted, with the reason.

With --busy, the same is then measured beside this number of busy processes. The script writes peers.json, or
peers_loaded.json with --busy, in results/. With --smoke nothing is installed: only drfl and plain PyTorch run, and both
must succeed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from jobs import RESULTS, busy, script
from peer.frameworks import FRAMEWORKS, environment, install, versions
from peer.job import Setting

from drfl import ClientData, Key, Simulation, Task, ZipfDirichlet, load
from drfl.data import make_partition
from drfl.task import models

HERE = Path(__file__).parent
JOBS = {"linear": ("mnist", models.linear, 0.1), "cnn": ("kmnist-t10k", models.cnn, 0.05)}
CLIENTS, COHORT, STEPS, BATCH, WARM_UP = 30, *script.sized((20, 10, 32, 2), (3, 2, 8, 1))
HERE_ALREADY = [name for name, framework in FRAMEWORKS.items() if not framework.package]
"""Frameworks that need no separate environment."""
LIMIT = 900  # seconds for one process, after which it counts as failed

Run = dict[str, object]


class Judge:
    """A job that is written into a folder, and the test of the models that frameworks return."""

    def __init__(self, job: str, data_dir: Path | None, folder: Path) -> None:
        name, model, lr = JOBS[job]
        dataset = load(name, data_dir=data_dir)
        self.folder, self.data = (
            folder,
            ClientData.from_dataset(dataset, make_partition(dataset, ZipfDirichlet(clients=CLIENTS), Key(0))),
        )
        with Key(0).fold("model").torch_scope():
            self.model = model(tuple(dataset.inputs.shape[1:]), dataset.classes)
        rows = torch.cat(self.data.train)
        folder.mkdir(parents=True)
        torch.save(self.model, folder / "model.pt")
        inputs, targets = self.data.inputs[rows].numpy(), self.data.targets[rows].numpy()
        np.savez(folder / "data.npz", inputs=inputs, targets=targets, sizes=self.data.sizes.numpy())
        about = {"cohort": COHORT, "steps": STEPS, "batch": BATCH, "lr": lr, "classes": dataset.classes}
        (folder / "job.json").write_text(json.dumps(about))

    def accuracy(self, weights: Path) -> float:
        """Return the mean over clients of the test accuracy of these weights."""
        with np.load(weights) as found, torch.no_grad():
            for into, name in zip(self.model.parameters(), found.files, strict=True):
                into.copy_(torch.from_numpy(found[name]))
        fed = Simulation(self.data, Task(self.model))
        return float(fed.evaluate(fed.w0).score.mean())


def one_run(judge: Judge, name: str, setting: Setting, seed: int, rounds: int, venvs: Path) -> Run:
    """Run one process of a framework; return its measurements and the accuracy, or the reason of its failure."""
    framework = FRAMEWORKS[name]
    scratch = Path(tempfile.mkdtemp(dir=judge.folder))
    out, log = scratch / "out.json", scratch / "log"
    options = {"rounds": rounds + WARM_UP, "seed": seed, "started": time.monotonic(), **asdict(setting)}
    pairs = [f"--{key}={value}" for key, value in options.items()]
    command = [str(framework.python(venvs)), "-m", f"peer.{framework.module}", str(judge.folder), str(out), *pairs]
    ended = finish(command, scratch, environment(setting, scratch), log)
    if ended or not out.exists():
        said = " ".join(log.read_text().replace(f"{HERE.parent}/", "").split())
        return {"failed": f"{ended or 'no report'}: {said[-400:]}"}
    return {"seed": seed, **json.loads(out.read_text()), "accuracy": judge.accuracy(out.with_suffix(".npz"))}


def finish(command: Sequence[str], place: Path, sees: Mapping[str, str], log: Path) -> str:
    """Run a command and end all its processes; return an error message, or an empty text."""
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=place, env=sees, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            return f"no end after {LIMIT} s"
        finally:
            with suppress(ProcessLookupError):  # the usual case: all have ended
                os.killpg(process.pid, signal.SIGKILL)
    return f"exit status {code}" if code else ""


def measure(job: str, names: Sequence[str], options: argparse.Namespace) -> list[Run]:
    """Return all runs of a job in the order in which they were made."""
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as temporary:
        judge = Judge(job, options.data_dir, Path(temporary) / job)
        rounds = options.rounds * (4 if job == "linear" else 1)
        every = [(name, setting) for name in names for setting in FRAMEWORKS[name].settings[: script.sized(None, 1)]]
        for others, series, (name, setting) in itertools.product(options.busy, range(options.series), every):
            with busy(others):
                found = one_run(judge, name, setting, series, rounds, options.venvs)
            said = found.get("failed") or f"{1e3 * median([found]):.1f} ms, {100 * found['accuracy']:.1f} %"
            print(f"{job}, beside {others}, series {series}, {name} {setting}: {said}", file=sys.stderr, flush=True)
            of_run = {"framework": name, "setting": asdict(setting), "busy": others, "series": series}
            runs.append({**of_run, **found})
    return runs


def median(runs: Sequence[Run]) -> float:
    """Return the median seconds of the rounds after warm-up over all these runs."""
    return statistics.median([s for run in runs for s in run["seconds"][WARM_UP:]])


def startup(run: Run) -> float:
    """Return the seconds from the start of the process to the end of its first round, minus a median round."""
    return run["startup_s"] + run["seconds"][0] - median([run])


def summary(name: str, runs: Sequence[Run]) -> Run:
    """Return a framework's row: its fastest setting, and its accuracy over all settings."""
    mine = [run for run in runs if run["framework"] == name and "failed" not in run]
    by_setting = {s: [run for run in mine if run["setting"] == asdict(s)] for s in FRAMEWORKS[name].settings}
    medians = {s: median(found) for s, found in by_setting.items() if found}
    if not medians:
        return {"failed": next((run["failed"] for run in runs if run["framework"] == name), "did not run")}
    best = min(medians, key=medians.__getitem__)
    accuracies = [run["accuracy"] for run in mine]
    return {
        "median_s": medians[best],
        "setting": str(best),
        "medians_s": {str(s): found for s, found in medians.items()},
        "peak_mib": statistics.median([run["peak_mib"] for run in by_setting[best]]),
        "startup_s": statistics.median([startup(run) for run in by_setting[best]]),
        "accuracy": statistics.fmean(accuracies),
        "accuracy_std": statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
        "accuracies": len(accuracies),
    }


def table(lines: Mapping[str, Run]) -> str:
    """Format the table of a job."""
    own = lines.get("drfl", {}).get("median_s")
    rows = [
        "| framework | workers × threads | median, ms a round | × drfl | peak, MiB | start-up, s | accuracy, % |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, line in sorted(lines.items(), key=lambda pair: pair[1].get("median_s", float("inf"))):
        if "failed" in line:
            rows.append(f"| {name} | failed |  |  |  |  |  |")
            continue
        ratio = f"{line['median_s'] / own:.2f}" if own else ""
        score = f"{100 * line['accuracy']:.1f} ± {100 * line['accuracy_std']:.1f}"
        cells = [f"{1e3 * line['median_s']:.1f}", ratio, f"{line['peak_mib']:.0f}", f"{line['startup_s']:.1f}", score]
        rows.append(f"| {name} | {line['setting']} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def device() -> str:
    """Return the processor's name and the number of cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return f"{name}, {os.cpu_count()} cores"


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = script.parser(__doc__, RESULTS, data=True)
    parser.add_argument("--job", choices=JOBS, help="job (default: both)")
    names = ",".join(script.sized(list(FRAMEWORKS), HERE_ALREADY))
    parser.add_argument("--only", default=names, help="names, separated by commas")
    parser.add_argument("--series", type=int, default=script.sized(3, 1))
    parser.add_argument(
        "--rounds",
        type=int,
        default=script.sized(10, 1),
        help="timed rounds of a run, after two of warm-up; four times as many for the short rounds of the linear model",
    )
    parser.add_argument("--busy", default="0", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--venvs", type=Path, default=HERE.parent / ".peers")
    given = parser.parse_args()
    given.venvs, given.only = given.venvs.resolve(), given.only.split(",")
    if unknown := set(given.only) - set(FRAMEWORKS):
        parser.error(f"no such framework: {', '.join(sorted(unknown))}; there are {', '.join(FRAMEWORKS)}")
    if given.series < 1 or given.rounds < 1:
        parser.error("there must be at least one series and one round")
    return given


def main() -> None:
    """Install and measure the frameworks, print the tables and store them."""
    given, before = options(), os.getloadavg()[0]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that finish() still ends its processes
    reasons = {name: install(FRAMEWORKS[name], given.venvs) for name in given.only}
    names = [name for name, reason in reasons.items() if not reason]
    jobs = {}
    for job in [given.job] if given.job else JOBS:
        runs = measure(job, names, given)
        by_load = {n: {name: summary(name, [r for r in runs if r["busy"] == n]) for name in names} for n in given.busy}
        for others, lines in by_load.items():
            print(f"{job}, {JOBS[job][0]}, beside {others} busy processes\n\n{table(lines)}", flush=True)
        jobs[job] = {"data": JOBS[job][0], "lr": JOBS[job][2], "beside": by_load, "runs": runs}
    missing = {name: reason for name, reason in reasons.items() if reason}
    for name, reason in missing.items():
        print(f"{name} was not installed: {reason}")
    words = ["DIR" if last == "--data-dir" else word for last, word in itertools.pairwise(sys.argv)]
    about = {
        "command": f"python benchmarks/peers.py {shlex.join(words)}",
        "load_average_before": before,
        "device": device(),
        "seeds": {"partition and initial model": 0, "runs": "the number of the series"},
        "job": {"clients": CLIENTS, "cohort": COHORT, "steps": STEPS, "batch": BATCH, "warm_up_rounds": WARM_UP},
        "workers": {name: FRAMEWORKS[name].workers for name in names},
        "not_installed": missing,
        "empty_modules": {name: FRAMEWORKS[name].empty for name in names if FRAMEWORKS[name].empty},
        "versions": {name: versions(FRAMEWORKS[name], given.venvs) for name in names},
    }
    script.store(given.out, {"peers_loaded.json" if any(given.busy) else "peers.json": {**about, "jobs": jobs}})
    failures = [run["failed"] for job in jobs.values() for run in job["runs"] if "failed" in run]
    if given.smoke and failures:
        raise SystemExit(str(failures[0]))


if __name__ == "__main__":
    main()
