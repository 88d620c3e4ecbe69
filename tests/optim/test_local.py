"""Test the parameters of a local solver."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.support.refusals import refused

from drfl.optim.local import LocalSGD

NAN, INF = math.nan, math.inf
BAD = {
    "steps": [0, -1, 0.5, 2.5, NAN, INF],
    "lr": [0, -0.1, NAN, INF, "0.1"],
    "batch": [0, -3, 0.5, 1.5, NAN, INF],
    "radius": [0, -1, NAN, INF],
    "momentum": [-0.1, 1, 1.5, NAN, "0.9"],
    "weight_decay": [-0.1, NAN, INF],
}
GOOD = {"steps": [1, 100], "lr": [1e-9, 5, None], "batch": [None, 1], "radius": [None, 3.0], "momentum": [0, 0.99]}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_invalid_solvers_are_refused(name, value):
    with refused("out-of-range", name):
        LocalSGD(**{name: value})


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in GOOD.items() for value in values])
def test_valid_solvers_are_accepted(name, value):
    assert getattr(LocalSGD(**{name: value}), name) == value


def test_undetermined_step_size_cannot_be_used():
    assert LocalSGD(lr=0.3).eta == 0.3
    with refused("missing-option", "lr", "LocalSGD(lr=…)", "drfl.run"):
        _ = LocalSGD().eta


def test_solver_is_a_hashable_value():
    assert LocalSGD(steps=3) == LocalSGD(steps=3)
    assert hash(LocalSGD(steps=3)) == hash(LocalSGD(steps=3))


@pytest.mark.parametrize("steps", [1, 2, 7, 200])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_effective_steps_with_momentum(steps, momentum):
    """This is the distance travelled, divided by η, if every direction is 1 and adds to the velocity of later steps."""
    solver, u, velocity = LocalSGD(steps=steps, lr=0.01, momentum=momentum), 0.0, 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        u -= 0.01 * velocity
    assert solver.effective_steps == pytest.approx(-u / 0.01, rel=1e-12)
    in_closed_form = (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    assert solver.effective_steps == pytest.approx(in_closed_form, rel=1e-12)


@pytest.mark.parametrize("name", ["lr", "radius", "momentum", "weight_decay"])
@pytest.mark.parametrize("value", [True, np.True_])
def test_truth_value_is_not_a_number(name, value):
    with refused("out-of-range", name):
        LocalSGD(**{name: value})
