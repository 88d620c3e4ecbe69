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


def fed_of(sizes=SIZES):
    """Return eight clients with least-squares losses of three parameters, in float64."""
    return exact(least_squares(sizes))


def algorithm_of(name, **options):
    """Return an algorithm of the registry with all clients in every cohort."""
    known = {field.name for field in fields(ALGORITHMS[name])}
    return ALGORITHMS[name](**{"m": N, "local": LOCAL} | options if "m" in known else {"local": LOCAL} | options)
