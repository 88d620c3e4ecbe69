"""Test that arguments of a wrong type give a one-line error when an algorithm is made, or when it runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from tests.support.refusals import refused

import drfl
from drfl.algorithms import ALGORITHMS
from drfl.testing import check_algorithm

WRONG = {
    "local": (5, {"steps": 3}, drfl.LocalSGD),
    "ambiguity": ("simplex", 0.2, drfl.CVaR),
    "sampling": ("uniform", drfl.sampling.uniform, None, drfl.LocalSGD),
    "server": ("fedadam", drfl.server_optimizers.FedAdam),
    "lam0": (["a"] * 3, {"a": 1.0}),
    "gamma_schedule": ("cosine",),
    "sigma_schedule": ("cosine",),
    "server_lr_schedule": ("cosine",),
}
UNKNOWN = {"reference": (True, ["own"], "self")}
OUTSIDE = {"m": (True, "2", [2])}
MIXTURES = {
    "lam0": ((0.5, 0.5), [1.0, 1.0, 1.0], [2.0, -1.0, 0.0], torch.full((3,), torch.nan), np.ones(2) / 2, 3, None)
}


def cases(wrong):
    return [
        (name, field.name, value)
        for name, kind in ALGORITHMS.items()
        for field in dataclasses.fields(kind)
        for value in wrong.get(field.name, ())
    ]


CASES = [
    (*case, code)
    for code, wrong in (
        ("wrong-type", WRONG), ("unknown-name", UNKNOWN), ("out-of-range", OUTSIDE), ("invalid-value", MIXTURES)
    )
    for case in cases(wrong)
]  # fmt: skip


@pytest.fixture(scope="module")
def federation():
    clients = {name: (torch.randn(30, 2), torch.randint(2, (30,))) for name in "abc"}
    return drfl.Simulation(drfl.ClientData.from_arrays(clients), drfl.Task(torch.nn.Linear(2, 2)))


@pytest.mark.parametrize(("name", "field", "value", "code"), CASES)
def test_argument_of_a_wrong_kind_is_refused(name, field, value, code, federation):
    with refused(code, field):
        drfl.run(ALGORITHMS[name](**{field: value}), federation, rounds=1)


@pytest.mark.parametrize("name", sorted({name for name, _, _ in cases({"lam0": (None,)})}))
@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_first_weights_may_be_any_sequence_of_numbers(name, kind, federation):
    state = ALGORITHMS[name](lam0=kind([0.5, 0.2, 0.3])).init(federation)
    assert state.lam.tolist() == pytest.approx([0.5, 0.2, 0.3])


def test_step_size_of_a_class_without_fields_is_refused(federation):
    class Plain:
        local = drfl.LocalSGD(steps=2)

        def init(self, fed):
            return drfl.FedAvg().init(fed)

        def round(self, state, fed, key):
            return drfl.FedAvg(local=self.local).round(state, fed, key)

    for kind in (Plain, dataclasses.dataclass(frozen=True)(Plain)):
        with refused("not-a-dataclass", "Plain", "local"):
            drfl.run(kind(), federation, rounds=1)
    Plain.local = drfl.LocalSGD(steps=2, lr=0.1)
    assert drfl.run(Plain(), federation, rounds=1).rounds == 1


@pytest.mark.parametrize("value", [drfl.DRFA, "DRFA", None, 3])
def test_object_other_than_an_algorithm_is_refused(value, federation):
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
