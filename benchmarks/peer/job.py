"""Common parts of the adapters: the job as files, the batches, the clock, and the report. Needs NumPy and PyTorch.

A round ends when the framework has the next global model; each adapter states how it detects this moment. Memory is the
sum, over the adapter's process and its descendants alive after the last round, of their peak resident sets (VmHWM of
/proc); pages shared by several processes count once for each of them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Setting:
    """How a framework uses the machine: the workers that train clients, and torch's threads in each."""

    workers: int = 1
    threads: int = 1
    engine: str = ""

    def __str__(self) -> str:
        return f"{self.engine} {self.workers} × {self.threads}".strip()


@dataclass
class Job:
    """A run of FedAvg: ``cohort`` clients per round take ``steps`` steps of ``batch`` samples with step size ``lr``."""

    arguments: tuple[str, ...]  # the command line from which it was read
    folder: Path
    out: Path
    rounds: int
    seed: int
    started: float  # time.monotonic() of the driver just before it started this process
    setting: Setting
    device: str = "cpu"  # device of data and models; only plain PyTorch and pfl are measured on a CUDA device
    cohort: int = field(init=False)
    steps: int = field(init=False)
    batch: int = field(init=False)
    lr: float = field(init=False)
    classes: int = field(init=False)
    inputs: Tensor = field(init=False)  # all clients' samples, one client after the other
    targets: Tensor = field(init=False)
    x: list[Tensor] = field(init=False)  # for each client, its part of the samples
    y: list[Tensor] = field(init=False)
    model: nn.Module = field(init=False)  # with the initial parameters

    def __post_init__(self) -> None:
        for name, value in json.loads((self.folder / "job.json").read_text()).items():
            setattr(self, name, value)
        with np.load(self.folder / "data.npz") as data:
            sizes = data["sizes"].tolist()
            self.inputs, self.targets = torch.from_numpy(data["inputs"]), torch.from_numpy(data["targets"])
        self.inputs, self.targets = self.inputs.to(self.device), self.targets.to(self.device)
        self.x, self.y = list(self.inputs.split(sizes)), list(self.targets.split(sizes))
        self.model = torch.load(self.folder / "model.pt", weights_only=False).to(self.device)
        torch.set_num_threads(self.setting.threads)
        for seed in (torch.manual_seed, random.seed, np.random.seed):  # a framework may use any of these
            seed(self.seed)

    @property
    def sizes(self) -> list[int]:
        """Each client's number of samples."""
        return [len(y) for y in self.y]

    def batches(self, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a round's batches from shuffled passes; all samples if they are fewer than a batch."""
        x, y = self.x[client], self.y[client]
        size, order = min(self.batch, len(y)), torch.randperm(len(y), device=y.device)
        at = 0
        for _ in range(self.steps):
            if at + size > len(y):
                order, at = torch.randperm(len(y), device=y.device), 0
            rows = order[at : at + size]
            at += size
            yield x[rows], y[rows]


class Clock:
    """Call ``mark`` when the first round starts and at the end of every round, then ``report``."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.marks: list[float] = []

    def mark(self) -> None:
        """Record the end of a round, or the start of the first one."""
        if self.job.device != "cpu":
            torch.cuda.synchronize()
        self.marks.append(time.monotonic())

    def report(self, model: nn.Module) -> None:
        """Write the seconds, the memory and the global model's weights."""
        seconds = [b - a for a, b in zip(self.marks, self.marks[1:], strict=False)]
        if len(seconds) != self.job.rounds:
            raise RuntimeError(f"{len(seconds)} rounds were timed, not {self.job.rounds}")
        found = {
            "seconds": seconds,
            "startup_s": self.marks[0] - self.job.started,
            "peak_mib": sum(map(_peak_mib, _tree())),
        }
        weights = [p.detach().cpu().numpy() for p in model.parameters()]
        np.savez(self.job.out.with_suffix(".npz"), *weights)
        self.job.out.write_text(json.dumps(found))


def from_command() -> Job:
    """Return the job that the driver's command line names."""
    return from_arguments(sys.argv[1:])


def from_arguments(arguments: list[str]) -> Job:
    """Return the job that these command-line arguments name."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--started", type=float, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--engine", default="")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args(arguments)
    setting = Setting(given.workers, given.threads, given.engine)
    return Job(
        tuple(arguments), given.folder, given.out, given.rounds, given.seed, given.started, setting, given.device
    )


def _tree() -> list[int]:
    """Return this process and its descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = path.read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        parents[int(path.parent.name)] = int(after_name[1])
    tree = [os.getpid()]
    for process in tree:  # grows during the loop
        tree += [child for child, parent in parents.items() if parent == process]
    return tree


def _peak_mib(process: int) -> float:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
