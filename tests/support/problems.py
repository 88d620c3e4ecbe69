"""Small federations with unequal clients, made from fixed seeds."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from drfl.core.key import Key
from drfl.data import ClientData
from drfl.engine import Loop, Simulation
from drfl.task.models import linear
from drfl.task.task import Task

SIZES = (1, 2, 31, 32, 33, 180)
"""Samples per client: fewer than, exactly and more than a batch of 32."""


def pools(sizes=SIZES, *, shape=(4,), classes=3, seed=0, dtype=torch.float64, tested=None) -> ClientData:
    """Return clients of these sizes, each with another shift of the inputs and another label skew."""
    rng = np.random.default_rng(seed)
    test_sizes = [tested or 1 + i % 5 for i in range(len(sizes))]
    centres = rng.normal(size=(classes, *shape))

    def part(counts):
        x, y = [], []
        for i, n in enumerate(counts):
            law = np.random.default_rng((seed, i)).dirichlet(np.full(classes, 0.7))
            labels = rng.choice(classes, size=n, p=law)
            y.append(labels)
            x.append(centres[labels] + rng.normal(size=(n, *shape)) + 0.3 * i / len(counts))
        where = rng.permutation(sum(counts))
        inputs, targets = np.empty((sum(counts), *shape)), np.empty(sum(counts), dtype=np.int64)
        inputs[where], targets[where] = np.concatenate(x), np.concatenate(y)
        rows = torch.from_numpy(where).split(list(counts))
        return torch.from_numpy(inputs).to(dtype), torch.from_numpy(targets), tuple(rows)

    return ClientData(*part(sizes), *part(test_sizes), tuple(f"client-{i}" for i in range(len(sizes))))


def group_norm_net(shape, classes) -> nn.Module:
    """Return a network of convolution, GroupNorm, ReLU, mean over the image, and output."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, classes),
    )


def task_of(model=linear, *, shape=(4,), classes=3, seed=0, dtype=torch.float64, **options) -> Task:
    """Return a task whose initial model depends only on the seed."""
    with Key(seed).fold("model").torch_scope():
        module = model(shape, classes).to(dtype)
    return Task(module, **options)


def federation(
    sizes=SIZES, *, engine=None, model=linear, shape=(4,), classes=3, seed=0, dtype=torch.float64, **options
) -> Simulation:
    """Return a simulation of clients of these sizes, with the plain engine by default, which needs no preparation."""
    data = pools(sizes, shape=shape, classes=classes, seed=seed, dtype=dtype, tested=options.pop("tested", None))
    task = task_of(model, shape=shape, classes=classes, seed=seed, dtype=dtype)
    return Simulation(data, task, engine=Loop() if engine is None else engine, **options)
