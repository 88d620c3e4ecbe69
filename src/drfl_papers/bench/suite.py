"""The jobs of the embedded suite: small data that come with drfl, so that nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from drfl.core.key import Key
from drfl.data import ClientData, load, make_partition
from drfl.data.partition.partition import PartitionMethod
from drfl.data.partition.partitioners import IID, Natural, OneClass, ZipfDirichlet
from drfl.task.models import MODELS
from drfl.task.task import Task


def key_of(seed: int) -> Key:
    """Return the key of a seed's partition, test rows and changes."""
    return Key(seed).fold("bench")


@dataclass(frozen=True)
class BenchJob:
    """One job of a suite."""

    name: str
    kind: str
    clients: Callable[[int], ClientData]


def task(data: ClientData, seed: int) -> Task:
    """Return a linear model for the data, initialised at this seed, with cross-entropy and accuracy."""
    with Key(seed).fold("model").torch_scope():
        return Task(MODELS["linear"](tuple(data.inputs.shape[1:]), 1 + int(data.targets.max())))


def divided(dataset: str, method: PartitionMethod | Natural, seed: int) -> ClientData:
    """Divide all rows of a data set among clients by one of drfl's partitions."""
    pool = load(dataset).pooled()
    return ClientData.from_dataset(pool, make_partition(pool, method, key_of(seed).fold("partition")))


def changed(
    make: Callable[[int], ClientData], inputs: Callable[[Tensor], Tensor], noise: float, seed: int
) -> ClientData:
    """Change the first client: a function of its inputs, and a share of its training labels that is redrawn."""
    data = make(seed)
    x, test, y, rows = data.inputs.clone(), data.test_inputs.clone(), data.targets.clone(), data.train[0]
    x[rows], test[data.test[0]] = inputs(x[rows]), inputs(test[data.test[0]])
    rng = key_of(seed).fold("labels").generator()
    drawn = torch.from_numpy(rng.integers(0, 1 + int(y.max()), len(rows)))
    # Labels of test rows stay right, because they measure the model.
    y[rows] = torch.where(torch.from_numpy(rng.random(len(rows)) < noise), drawn, y[rows])
    return replace(data, inputs=x, test_inputs=test, targets=y)


def small_client(make: Callable[[int], ClientData], rows: int, seed: int) -> ClientData:
    """Keep only some training rows of the first client."""
    data = make(seed)
    return replace(data, train=(data.train[0][:rows], *data.train[1:]))


def base_rates(make: Callable[[int], ClientData], seed: int) -> ClientData:
    """Make classes 0 to 4 nine times as frequent as the others at half of the clients, and the reverse elsewhere."""
    data = make(seed)

    def kept(rows: Tensor, targets: Tensor, i: int) -> Tensor:
        rare = (targets[rows] >= 5) == (i % 2 == 0)
        rare_rows = rows[rare]
        return torch.cat([rows[~rare], rare_rows[: max(1, len(rare_rows) // 9)]])

    train = tuple(kept(rows, data.targets, i) for i, rows in enumerate(data.train))
    test = tuple(kept(rows, data.test_targets, i) for i, rows in enumerate(data.test))
    return replace(data, train=train, test=test)


def _same(x: Tensor) -> Tensor:
    return x


def _upside_down(x: Tensor) -> Tensor:
    return x.flip(-1, -2)


iid = partial(divided, "digits", IID(6))

SUITE = (
    BenchJob("hospitals", "natural groups", partial(divided, "heart-disease", Natural())),
    BenchJob("digits-dirichlet", "label skew", partial(divided, "digits", ZipfDirichlet(10, 0.3))),
    BenchJob("digits-one-class", "classes split", partial(divided, "digits", OneClass())),
    BenchJob("digits-label-noise", "label noise at one client", partial(changed, iid, _same, 0.4)),
    BenchJob("digits-upside-down", "feature shift at one client", partial(changed, iid, _upside_down, 0.0)),
    BenchJob("digits-small-client", "one client with 15 training rows", partial(small_client, iid, 15)),
    BenchJob("digits-base-rates", "different base rates", partial(base_rates, iid)),
)
"""The embedded suite."""
