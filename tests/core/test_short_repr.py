"""Test that representations are one short line."""

from __future__ import annotations

import pytest
import torch

import drfl
from drfl.algorithms import ALGORITHMS, BASELINES


@pytest.mark.parametrize("make", [*ALGORITHMS.values(), *BASELINES.values()])
def test_repr_of_an_algorithm_shows_changed_parameters(make):
    assert repr(make()) == f"{make.__name__}()"


def test_repr_shows_values_as_written():
    algorithm = drfl.DRFA(m=3, local=drfl.LocalSGD(lr=0.1), sampling=drfl.sampling.without_replacement)
    assert repr(algorithm) == "DRFA(m=3, local=LocalSGD(steps=10, lr=0.1), sampling=without_replacement)"


def test_repr_of_task_and_evaluation_is_one_line():
    task = drfl.Task(torch.nn.Linear(3, 2))
    assert repr(task) == "<Task: Linear with 8 parameters, scored by accuracy>"
    evaluation = drfl.Evaluation(torch.tensor([0.8, torch.nan, 0.9]), torch.tensor([0.5, 0.3, 0.1]), torch.ones(3))
    assert repr(evaluation) == "<Evaluation of 3 clients: score 0.800 to 0.900, mean loss 0.300>"
