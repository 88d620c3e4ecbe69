"""What a local solver may be."""

from __future__ import annotations

import math

import pytest

from drfl.errors import InputError
from drfl.local import LocalSGD

NAN, INF = math.nan, math.inf
BAD = {
    "steps": [0, -1, 0.5, 2.5, NAN, INF],
    "lr": [0, -0.1, NAN, INF],
    "batch": [0, -3, 0.5, 1.5, NAN, INF],
    "radius": [0, -1, NAN, INF],
    "momentum": [-0.1, 1, 1.5, NAN],
    "weight_decay": [-0.1, NAN, INF],
}
GOOD = {"steps": [1, 100], "lr": [1e-9, 5], "batch": [None, 1], "radius": [None, 3.0], "momentum": [0, 0.99]}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_refused(name, value):
    with pytest.raises(InputError, match=name):
        LocalSGD(**{name: value})


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in GOOD.items() for value in values])
def test_accepted(name, value):
    assert getattr(LocalSGD(**{name: value}), name) == value


def test_it_is_a_value():
    assert LocalSGD(steps=3) == LocalSGD(steps=3)
    assert hash(LocalSGD(steps=3)) == hash(LocalSGD(steps=3))
