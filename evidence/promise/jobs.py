"""The default benchmark's jobs: real data, divided among clients so that some clients are served worse than others.

The partition of a job and the changes to its data are drawn once, from key 0. A run's seed affects only the initial
model, the cohorts and the minibatches. Half of the jobs were used to choose the defaults, the other half to report
them.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import script
from drfl import ClientData, Key, Task
from drfl.data import load, make_partition
from drfl.data.partition.partitioners import IID, Natural, OneClass, ZipfDirichlet
from drfl.task.models import MODELS

KEY = Key(0)
DECAY = 1e-3
"""Weight decay of the convex jobs; without it, separable data would have no optimum."""


@dataclass(frozen=True)
class Folders:
    """Locations of the data: ``data`` is as for ``drfl --data-dir``, and ``adult`` is the file adult.csv."""

    data: Path | None
    adult: Path


@dataclass(frozen=True)
class Job:
    """One job of the suite.

    Args:
        name: name in tables.
        kind: how the clients differ.
        chosen: whether the defaults were chosen on it.
        clients: function that creates the clients' data.
        m: cohort size; None = the algorithm's default.
        rounds: rounds of communication.
        model: "linear" or "cnn"; "regression" is linear with one output.
        decay: weight decay.
        seeds: number of seeds.
    """

    name: str
    kind: str
    chosen: bool
    clients: Callable[[Folders], ClientData]
    m: int | None = None
    rounds: int = script.sized(100, 1)
    model: str = "linear"
    decay: float = DECAY
    seeds: int = script.sized(10, 2)

    @property
    def convex(self) -> bool:
        """Whether the saddle value can be bracketed, because the model is convex."""
        return self.model != "cnn"

    def task(self, data: ClientData, seed: int) -> Task:
        """Create the model as drfl initialises it at this seed, with its loss and score."""
        shape = tuple(data.inputs.shape[1:])
        with Key(seed).fold("model").torch_scope():
            if self.model == "regression":
                model = nn.Sequential(nn.Linear(shape[0], 1), nn.Flatten(0))
                return Task(model, half_square, within_half)
            return Task(MODELS[self.model](shape, 1 + int(data.targets.max())))


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """½(o − y)², per sample."""
    return (outputs - targets).square() / 2


def within_half(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 if the prediction is within half a standard deviation of the target."""
    return ((outputs - targets).abs() < 0.5).to(outputs.dtype)


@cache
def images(name: str, folders: Folders):
    """Load a data set of images by name."""
    return load(name, data_dir=folders.data)


def divided(name: str, method) -> Callable[[Folders], ClientData]:
    """Divide a data set with one of drfl's partitions."""

    def make(folders: Folders) -> ClientData:
        dataset = images(name, folders)
        return ClientData.from_dataset(dataset, make_partition(dataset, method, KEY.fold("partition")))

    return make


def two_classes(folders: Folders) -> ClientData:
    """MNIST, 20 clients: client i has half of class i mod 10 and half of class (i + 1 + i // 10) mod 10."""
    dataset = images("mnist", folders)

    def rows(labels: Tensor) -> tuple[Tensor, ...]:
        order = torch.from_numpy(KEY.fold("two", len(labels)).generator().permutation(len(labels)))
        quarters = [list(order[labels[order] == c].tensor_split(4)) for c in range(10)]
        return tuple(torch.cat([quarters[c].pop() for c in (i % 10, (i + 1 + i // 10) % 10)]) for i in range(20))

    names = tuple(f"client {i:02d}" for i in range(20))
    train, test = rows(dataset.targets), rows(dataset.test_targets)
    return ClientData(
        dataset.inputs, dataset.targets, train, dataset.test_inputs, dataset.test_targets, test, names
    )  # fmt: skip


def changed(
    make: Callable[[Folders], ClientData], clients: tuple[int, ...], change: Callable[[Tensor, Tensor, Key], tuple]
) -> Callable[[Folders], ClientData]:
    """Change some clients' training and test rows with ``change(inputs, targets, key)``."""

    def made(folders: Folders) -> ClientData:
        data = make(folders)
        parts = {}
        for part in ("", "test_"):
            x, y = getattr(data, f"{part}inputs").clone(), getattr(data, f"{part}targets").clone()
            rows = torch.cat([(data.test if part else data.train)[i] for i in clients])
            x[rows], y[rows] = change(x[rows], y[rows], KEY.fold("change", part))
            parts |= {f"{part}inputs": x, f"{part}targets": y}
        return replace(data, **parts)

    return made


def upside_down(x: Tensor, y: Tensor, key: Key) -> tuple[Tensor, Tensor]:
    """Turn images by 180 degrees."""
    return x.flip(-1, -2), y


def swapped_labels(x: Tensor, y: Tensor, key: Key) -> tuple[Tensor, Tensor]:
    """Swap the labels 0 and 1, and 2 and 3."""
    return x, torch.where(y < 4, y ^ 1, y)


def noisy_labels(x: Tensor, y: Tensor, key: Key) -> tuple[Tensor, Tensor]:
    """Redraw forty percent of the labels uniformly."""
    rng = key.generator()
    noise = torch.from_numpy(rng.random(len(y)) < 0.4)
    return x, torch.where(noise, torch.from_numpy(rng.integers(0, 10, len(y))), y)


NUMBERS = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
LEAST = script.sized(300, 30)
"""Minimum number of rows of a group that becomes a client."""
CATEGORIES = ("workclass", "marital-status", "occupation", "relationship", "race", "sex")


def adult(target: str, group: Callable[[dict[str, str]], str]) -> Callable[[Folders], ClientData]:
    """Adult census, a client for each large enough group; numbers and dummies, standardised, without the target."""

    def make(folders: Folders) -> ClientData:
        with folders.adult.open(newline="") as file:
            rows = list(csv.DictReader(file))
        names = np.array([group(row) for row in rows])
        known, counts = np.unique(names, return_counts=True)
        rows = [row for row, name in zip(rows, names, strict=True) if counts[known.tolist().index(name)] >= LEAST]
        columns = [[float(row[name]) for row in rows] for name in NUMBERS if name != target]
        for name in CATEGORIES:
            columns += [[float(row[name] == v) for row in rows] for v in sorted({row[name] for row in rows})[1:]]
        x = np.array(columns).T
        x = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
        if target == "income-per-year":
            y = np.array([int(row[target] == ">50K") for row in rows])
        else:
            y = np.array([float(row[target]) for row in rows])
            y = (y - y.mean()) / y.std()
        groups = [group(row) for row in rows]
        pairs = {name: (x[[g == name for g in groups]], y[[g == name for g in groups]]) for name in sorted(set(groups))}
        return ClientData.from_arrays(pairs, test_fraction=1 / 3, key=KEY.fold("adult"))

    return make


def doctorate(row: dict[str, str]) -> str:
    """The two domains of AFL's experiment (Mohri et al. 2019)."""
    return "doctorate" if row["education"] == "Doctorate" else "others"


JOBS = {
    job.name: job
    for job in (
        Job("fashion-one-class", "classes split", True, divided("fashion-mnist", OneClass()), 10),
        Job("mnist-two-classes", "classes split", False, two_classes, 10),
        Job("mnist-dirichlet", "Dirichlet", True, divided("mnist", ZipfDirichlet())),
        Job("digits-dirichlet", "Dirichlet", False, divided("digits", ZipfDirichlet())),
        Job("mnist-200-clients", "Dirichlet, cohort 10 %", False, divided("mnist", ZipfDirichlet(200, 0.3)), 20),
        Job("mnist-swapped-labels", "conflict", True, changed(divided("mnist", IID(10)), (0, 1), swapped_labels)),
        Job("fashion-upside-down", "conflict", False, changed(divided("fashion-mnist", IID(10)), (0,), upside_down)),
        Job("hospitals", "natural groups", True, divided("heart-disease", Natural())),
        Job("adult-doctorate", "natural groups", False, adult("income-per-year", doctorate)),
        Job("adult-education", "natural groups", True, adult("income-per-year", lambda row: row["education"])),
        Job("fashion-label-noise", "label noise", True, changed(divided("fashion-mnist", IID(10)), (0,), noisy_labels)),
        Job("mnist-sizes-100", "unequal sizes", False, divided("mnist", ZipfDirichlet(50, 0.3, 1.18)), 25),
        Job("adult-hours", "regression", False, adult("hours-per-week", lambda row: row["occupation"]),
            model="regression"),
        Job("kmnist-cnn", "CNN", True, divided("kmnist-t10k", ZipfDirichlet(script.sized(30, 3))),
            script.sized(20, 2), script.sized(40, 1), "cnn", 0.0, script.sized(5, 1)),
    )
}  # fmt: skip
