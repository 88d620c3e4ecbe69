"""Test that full GPU memory is an error of drfl wherever torch raises it, and that no part of the run is lost."""

from __future__ import annotations

import pytest
import torch
from tests.support.problems import federation, pools, task_of
from tests.support.refusals import quotes
from torch import nn

import drfl
from drfl import DRDM, Checkpoints, FedAvg, Key, LocalSGD, Simulation, Stacked
from drfl.core.errors import DrflError
from drfl.core.full_memory import explain_full_memory
from drfl.engine import Auto, Loop, stacked

TEXT = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.19 GiB of which 5.06 MiB is free."
    "\nIf reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF"
)
LOCAL = LocalSGD(steps=2, lr=0.1, batch=8)


def full(*arguments, **options):
    raise torch.OutOfMemoryError(TEXT)


def check(call):
    with pytest.raises(DrflError) as caught:
        call()
    assert type(caught.value) is DrflError
    assert (caught.value.code, caught.value.field) == ("out-of-memory", "device")
    assert quotes(str(caught.value), "2.50 GiB", "'loop'", "'bf16'")
    assert "\n" not in str(caught.value)


class Full(nn.Module):
    """Raise full memory after a number of calls."""

    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(shape[0], classes)

    def forward(self, x):
        return full()


def test_other_errors_pass_through():
    with pytest.raises(ZeroDivisionError), explain_full_memory():
        1 / 0  # noqa: B018


def test_full_memory_while_the_simulation_is_created():
    check(lambda: Simulation(pools(), task_of(Full)))


@pytest.mark.parametrize("method", ["train", "losses", "gradients"])
def test_full_memory_in_a_request(method, monkeypatch):
    fed = federation()
    monkeypatch.setattr(Loop, method, full)
    more = (LOCAL, Key(0)) if method == "train" else (Key(0),)
    check(lambda: getattr(fed, method)(torch.arange(3), fed.w0, *more))


@pytest.mark.parametrize("method", ["evaluate", "tested", "row_scores"])
def test_full_memory_in_an_evaluation(method, monkeypatch):
    fed = federation()
    monkeypatch.setattr(Loop, "evaluate", full)
    check(lambda: getattr(fed, method)(fed.w0))
    check(lambda: fed.evaluate_all([fed.w0]))


def test_untested_model_is_not_called_unstackable(monkeypatch):
    fed = federation(engine=Auto())
    monkeypatch.setattr(stacked, "_local_steps", full)
    check(lambda: fed.train(torch.arange(3), fed.w0, LOCAL, Key(0)))
    check(lambda: Simulation(pools(), task_of(), engine=Stacked()))


def test_full_memory_in_tables_and_sums_of_the_server(monkeypatch):
    monkeypatch.setattr(DRDM, "init", full)
    check(lambda: drfl.run(DRDM(m=3, local=LOCAL), federation(), rounds=2, check_data=False))
    monkeypatch.setattr(FedAvg, "round", full)
    check(lambda: drfl.run(FedAvg(m=3, local=LOCAL), federation(), rounds=2, check_data=False))


def test_run_resumes_after_full_memory(tmp_path, monkeypatch):
    def run(*checkpoints):
        options = {"checkpoints": Checkpoints(tmp_path, every=1)} if checkpoints else {}
        return drfl.run(DRDM(m=3, local=LOCAL), federation(), rounds=6, check_data=False, **options)

    train, rounds = Loop.train, []

    def fourth(self, *arguments):
        rounds.append(len(rounds))
        return full() if len(rounds) == 4 else train(self, *arguments)

    monkeypatch.setattr(Loop, "train", fourth)
    check(lambda: run(tmp_path))
    assert len(rounds) == 4
    resumed = run(tmp_path)
    assert len(rounds) == 4 + 3, "it begins again with the fourth of six rounds"
    monkeypatch.setattr(Loop, "train", train)
    assert torch.equal(resumed.end.state.w, run().end.state.w)
