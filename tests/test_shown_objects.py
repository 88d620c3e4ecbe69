"""What a prompt or a notebook shows of a run's objects, and what is said of the wrong ones."""

from __future__ import annotations

import io

import pandas as pd
import pytest
import torch
from torch import nn

import drfl
from drfl.certificate import Certifier

DATA = drfl.ClientData.from_arrays({f"site {i}": (torch.randn(20, 3), torch.arange(20) % 2) for i in range(40)})
TASK = drfl.Task(nn.Linear(3, 2))
FED = drfl.Simulation(DATA, TASK)


@pytest.fixture(scope="module")
def result():
    return drfl.run(drfl.DRFA(m=5, local=drfl.LocalSGD(lr=0.1)), FED, rounds=3, certify=Certifier(TASK))


def test_a_line_says_what_it_is(result):
    shown = [repr(thing) for thing in (result, result.history, drfl.History(), DATA, FED)]
    assert [line for line in shown if len(line) > 160 or "\n" in line] == []
    assert "<Result of 3 rounds, the average model of 8 parameters: worst accuracy 0." in shown[0]
    assert shown[2] == "<History without a row>"
    assert "40 clients (site 0, site 1, site 2, …), 16 to 16 training rows each, inputs (3,)" in shown[3]
    assert shown[4] == "<Simulation of 40 clients, 8 parameters, engine Auto>"


def test_a_history_as_a_frame_is_what_the_file_says(result):
    frame, file = result.history.to_frame(), pd.read_csv(io.StringIO(result.history.to_csv()))
    assert set(frame) == {*file, "seconds"}
    pd.testing.assert_frame_equal(frame[list(file)], file, check_dtype=False, atol=1e-6)
    assert frame["seconds"].is_monotonic_increasing
    assert len(drfl.History().to_frame()) == 0


@pytest.mark.parametrize(
    ("algorithm", "fed", "message"),
    [
        (drfl.FedAvg, FED, r"FedAvg is a class: give an object, such as FedAvg\(m=10\)"),
        ("FedAvg", FED, "a str is no algorithm: give one such as"),
        (drfl.LocalSGD(), FED, "a LocalSGD is no algorithm"),
        (drfl.FedAvg(m=5), DATA, r"ClientData is no federation: give one such as drfl.Simulation\(data, task\)"),
        (drfl.FedAvg(m=5), drfl.Simulation, "Simulation is no federation"),
        (FED, drfl.FedAvg(m=5), "a Simulation is no algorithm"),
    ],
)
def test_the_wrong_object_is_named(algorithm, fed, message):
    with pytest.raises(drfl.InputError, match=message):
        drfl.run(algorithm, fed, rounds=1)
