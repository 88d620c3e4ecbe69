"""Test that everything that makes a run slower is logged in one line, with the reason."""

from __future__ import annotations

import logging

import torch
from tests.support.problems import federation
from torch import nn

from drfl.core.key import Key
from drfl.engine import Auto, Stacked
from drfl.engine.tracing import replay
from drfl.optim.local import LocalSGD
from drfl.task.task import Task

LOCAL = LocalSGD(steps=2, lr=0.1, batch=4)


class Branching(nn.Module):
    """A branch on a value, which vmap cannot follow."""

    def __init__(self, shape, classes) -> None:
        super().__init__()
        self.layer = nn.Linear(torch.Size(shape).numel(), classes)

    def forward(self, x):
        outputs = self.layer(x.flatten(1))
        return outputs if bool((outputs.sum() < 1e9).item()) else -outputs


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "drfl.engine"]


def test_unstackable_model_is_logged_once(caplog):
    fed = federation((9, 20, 12), model=Branching, engine=Auto())
    with caplog.at_level(logging.WARNING, logger="drfl.engine"):
        for k in range(3):
            fed.train(torch.arange(3), fed.w0, LOCAL, Key(k))
    (line,) = lines(caplog)
    assert line.startswith("the model Branching cannot be stacked (its forward pass branches on values")


def test_untraceable_step_is_logged_once_for_all_shapes(caplog):
    task = Task(nn.Linear(2, 2))

    def trace(function, arguments):
        raise NotImplementedError("no such operation\nand more")

    for n in (1, 2, 3):
        found = replay(task, "step", lambda x: [2 * x], [torch.ones(n)], trace)
        assert found(torch.ones(n))[0].tolist() == [2.0] * n
    (line,) = lines(caplog)
    assert "Linear cannot be traced (NotImplementedError: no such operation)" in line


def test_trace_with_wrong_results_is_logged(caplog):
    replay(Task(nn.Linear(2, 2)), "step", lambda x: [x], [torch.ones(3)], lambda f, a: lambda x: [x + 1])
    (line,) = lines(caplog)
    assert "Linear cannot be " in line


def test_normal_runs_log_nothing(caplog):
    fed = federation((9, 20, 12), engine=Stacked())
    fed.train(torch.arange(3), fed.w0, LOCAL, Key(0))
    assert lines(caplog) == []
