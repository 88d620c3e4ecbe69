"""A small federation in closed form, and every algorithm with all clients."""

from __future__ import annotations

from dataclasses import fields

import torch

from drfl import LocalSGD
from drfl.algorithms import ALGORITHMS
from drfl.testing import least_squares
from drfl.testing.toy_problem import exact

SIZES = (8, 9, 12, 10, 30, 7, 16, 11)
N = len(SIZES)
EVERYBODY = torch.arange(N)
LOCAL = LocalSGD(steps=2, lr=0.05, batch=None)


def fed_of():
    """Eight clients of least squares with three parameters, in float64."""
    return exact(least_squares(SIZES))


def algorithm_of(name, **options):
    """Return an algorithm of the registry that asks all clients."""
    known = {field.name for field in fields(ALGORITHMS[name])}
    return ALGORITHMS[name](**{"m": N, "local": LOCAL} | options if "m" in known else {"local": LOCAL} | options)
