"""Every algorithm at a small size, and a small federation."""

from __future__ import annotations

import dataclasses

import torch
from tests.support.problems import federation

from drfl.algorithms import ALGORITHMS
from drfl.core.key import Key
from drfl.engine import Loop
from drfl.optim.local import LocalSGD
from drfl.testing.state import leaves

N, VECTOR = 8, 15 * 8
EVERYBODY = torch.arange(N)
LOCAL = LocalSGD(steps=3, lr=0.1, batch=4)


def algorithm(name, m=6, **parameters):
    cls = ALGORITHMS[name]
    own = {field.name for field in dataclasses.fields(cls)}
    return cls(local=LOCAL, **({"m": m} if "m" in own else {}), **parameters)


def small(engine=None):
    """Return 8 clients with a model of 15 parameters in float64."""
    return federation((5, 6, 7, 8, 9, 10, 11, 12), engine=engine or Loop())


def who(*clients, n=N):
    return torch.isin(torch.arange(n), torch.tensor(clients, dtype=torch.int64))


def rounds(algorithm, fed, count, seed=0):
    """Yield (state before, state after, info) of each round."""
    state = algorithm.init(fed)
    for r in range(1, count + 1):
        before = state
        state, info = algorithm.round(state, fed, Key(seed).fold("round", r))
        yield before, state, info


def same(one, other):
    one, other = leaves(one), leaves(other)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
