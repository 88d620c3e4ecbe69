"""Test that arguments of a wrong type are one line when an algorithm is made, or at the latest when it runs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.support.refusals import refused

import drfl
from drfl.algorithms import ALGORITHMS
from drfl.testing import check_algorithm

WRONG = {"local": (5, {"steps": 3}, drfl.LocalSGD), "ambiguity": ("simplex", 0.2)}
CASES = [
    (name, field.name, value)
    for name, kind in ALGORITHMS.items()
    for field in dataclasses.fields(kind)
    for value in WRONG.get(field.name, ())
]


@pytest.fixture(scope="module")
def federation():
    clients = {name: (torch.randn(30, 2), torch.randint(2, (30,))) for name in "abc"}
    return drfl.Simulation(drfl.ClientData.from_arrays(clients), drfl.Task(torch.nn.Linear(2, 2)))


@pytest.mark.parametrize(("name", "field", "value"), CASES)
def test_wrong_local_solver_or_ambiguity_set_is_refused(name, field, value, federation):
    with refused("wrong-type", field):
        drfl.run(ALGORITHMS[name](**{field: value}), federation, rounds=1)


@pytest.mark.parametrize("value", [drfl.DRFA, "DRFA", None, 3])
def test_something_else_than_an_algorithm_is_refused(value, federation):
    with refused("wrong-type", "algorithm"):
        drfl.run(value, federation, rounds=1)
    with refused("wrong-type", "algorithm"):
        check_algorithm(value)
    with refused("wrong-type", "mine"):
        drfl.compare({"mine": value}, federation.data, drfl.Task(torch.nn.Linear(2, 2)), rounds=1)


@pytest.mark.parametrize("value", [[drfl.DRFA(m=2)], drfl.DRFA(m=2), {}, None])
def test_compare_refuses_algorithms_without_names(value, federation):
    with refused("wrong-type", "algorithms"):
        drfl.compare(value, federation.data, drfl.Task(torch.nn.Linear(2, 2)), rounds=1)
