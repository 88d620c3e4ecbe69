"""Test the simulation: its ledger and its refusals."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.support.problems import federation, pools, task_of
from tests.support.refusals import refused
from torch import nn

import drfl
from drfl.core.key import Key
from drfl.engine import ENGINES, Loop, Simulation
from drfl.optim.local import LocalSGD
from drfl.task.task import Task


def test_ledger_by_hand(engine):
    """The model has 15 parameters of 8 bytes, clients have 2 and 180 samples, minibatches 32, and there are 4 steps."""
    fed = federation(engine=engine)
    local, cohort = LocalSGD(steps=4, lr=0.1, batch=32), torch.tensor([1, 5])
    fed.evaluate(fed.w0)
    assert set(fed.ledger.totals().values()) == {0}
    fed.train(cohort, fed.w0, local, Key(0))
    assert fed.ledger.totals() == {
        "bytes_down": 2 * 120,
        "bytes_up": 2 * 120,
        "messages": 4,
        "gradient_evaluations": 4 * (2 + 32),
        "loss_evaluations": 0,
    }
    fed.train(cohort, fed.w0, local, Key(0), shift=torch.zeros(2, 15).double(), snapshot=1, average=True)
    assert fed.ledger.bytes_down == 2 * 120 + 2 * 240
    assert fed.ledger.bytes_up == 2 * 120 + 2 * 360
    assert fed.ledger.messages == 8
    fed.losses(cohort, fed.w0, Key(0))
    assert fed.ledger.bytes_down == 6 * 120 + 2 * 120
    assert fed.ledger.bytes_up == 8 * 120 + 2 * 8
    assert fed.ledger.loss_evaluations == 182
    assert fed.ledger.gradient_evaluations == 2 * 4 * 34
    fed.gradients(cohort, fed.w0, Key(0), batch=3)
    assert fed.ledger.bytes_up == 8 * 120 + 2 * 8 + 2 * 128
    assert fed.ledger.gradient_evaluations == 2 * 4 * 34 + 5
    assert fed.ledger.messages == 16


def test_ledger_counts_the_bytes_of_the_model_type():
    fed = federation(dtype=torch.float32)
    fed.train(torch.tensor([0]), fed.w0, LocalSGD(steps=1, lr=0.1), Key(0))
    assert fed.ledger.bytes_up == 15 * 4


def test_shares_are_proportional_to_samples():
    fed = federation((1, 3))
    assert fed.n == 2
    assert fed.shares.dtype == torch.float64
    assert fed.shares.tolist() == [0.25, 0.75]


@pytest.mark.parametrize("snapshot", [0, -1, 4])
def test_snapshot_must_be_a_step(snapshot):
    fed = federation((2, 3))
    with pytest.raises(ValueError, match=f"snapshot={snapshot} .*1…3"):
        fed.train(torch.arange(2), fed.w0, LocalSGD(steps=3, lr=0.1), Key(0), snapshot=snapshot)


@pytest.mark.parametrize("batch", [0, -1])
def test_batch_must_be_positive(batch):
    fed = federation((2, 30))
    with refused("out-of-range", "batch"):
        fed.losses(torch.arange(2), fed.w0, Key(0), batch=batch)
    with refused("out-of-range", "batch"):
        fed.gradients(torch.arange(2), fed.w0, Key(0), batch=batch)


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_missing_device_is_refused(device):
    with refused("device-missing", "device", f"'{device}'") as raised:
        Simulation(pools(), task_of(), device=device)
    assert "\n" not in str(raised.value)


def test_floating_point_data_take_the_models_type():
    data = pools(dtype=torch.float32)
    fed = Simulation(data, task_of())
    assert fed.losses(torch.arange(6), fed.w0, Key(0)).values.isfinite().all()


@pytest.mark.parametrize("part", ["targets", "test_targets"])
@pytest.mark.parametrize("label", [3, 9])
def test_labels_outside_the_classes_are_refused(part, label):
    data = pools()
    targets = getattr(data, part).clone()
    targets[-1] = label
    with refused("out-of-range", "targets", "0…2"):
        Simulation(dataclasses.replace(data, **{part: targets}), task_of())


def test_mismatched_model_and_data_are_refused():
    with refused("model-data-mismatch", "model") as raised:
        Simulation(pools(), task_of(shape=(5,)))
    assert "\n" not in str(raised.value)


def test_frozen_parameters_are_unchanged(engine):
    data = pools()
    with Key(0).torch_scope():
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    model[0].weight.requires_grad_(False)
    fed = Simulation(data, Task(model), engine=engine)
    assert len(fed.w0) == 6 + 18 + 3
    with torch.no_grad():
        expected = nn.functional.cross_entropy(model(data.inputs[data.train[3]]), data.targets[data.train[3]])
    loss = fed.losses(torch.tensor([3]), fed.w0, Key(0)).values[0]
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    moved = fed.train(torch.arange(6), fed.w0, LocalSGD(steps=2, lr=0.1), Key(0)).w
    assert moved.shape == (6, 27)


def test_tied_parameters_train_as_one(engine):
    """The shared tensor gets gradients from every place of use."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(torch.tanh(self.first(x)))

    data = pools()
    with Key(0).torch_scope():
        model = Tied().double()
    fed = Simulation(data, Task(model), engine=engine)
    assert len(fed.w0) == 16
    rows = data.train[4]
    loss = nn.functional.cross_entropy(model(data.inputs[rows]), data.targets[rows])
    (expected,) = torch.autograd.grad(loss, model.first.weight)
    actual = fed.gradients(torch.tensor([4]), fed.w0, Key(0)).values[0]
    torch.testing.assert_close(actual, expected.flatten(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["loop", Loop, 5, drfl.engine], ids=str)
def test_engine_names_and_classes_are_refused(name):
    with refused("wrong-type", "engine"):
        Simulation(pools(), task_of(), engine=name)


def test_engines_are_made_by_name():
    assert {name: type(make()).__name__ for name, make in ENGINES.items()} == {
        "auto": "Auto",
        "loop": "Loop",
        "stacked": "Stacked",
        "threads": "Threads",
    }


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_grad_mode_of_the_caller_does_not_matter(engine, mode):
    fed, local = federation(engine=engine), LocalSGD(steps=2, lr=0.1, batch=8)
    expected = fed.train(torch.arange(6), fed.w0, local, Key(0)).w
    with mode():
        w = fed.w0 * 1
        assert torch.equal(fed.train(torch.arange(6), w, local, Key(0)).w, expected)
        assert fed.gradients(torch.arange(6), w, Key(0)).values.any()


def test_data_spec_is_refused_with_the_remedy():
    spec = drfl.data_spec(dataset="digits", partition="iid", clients=3)
    task = drfl.Task(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)))
    with refused("wrong-type", "data", "DataSettings", "drfl.ClientData", "data.for_seed(0)"):
        drfl.Simulation(spec, task)
    samples = spec.for_seed(0)
    assert drfl.Simulation(samples, task).n == 3
    with refused("wrong-type", "task", "Linear", "drfl.Task"):
        drfl.Simulation(samples, torch.nn.Linear(64, 10))


def test_names_of_classes_must_fit_the_outputs():
    pairs = [(torch.randn(20, 4), torch.arange(20) % 2)]
    data = drfl.ClientData.from_arrays(pairs, classes=("a", "b"))
    with refused("model-data-mismatch", "model", "2", "3"):
        Simulation(data, Task(nn.Linear(4, 3)))
    assert Simulation(data, Task(nn.Linear(4, 2))).outputs == 2


@pytest.mark.parametrize(
    ("wrong", "code", "quoted"),
    [
        (lambda w: nn.Linear(4, 3), "wrong-type", "task.layout.flatten(module)"),
        (lambda w: w.numpy(), "wrong-type", "ndarray"),
        (lambda w: w.float(), "wrong-type", "torch.float32"),
        (lambda w: w[1:], "wrong-shape", "(14,)"),
        (lambda w: None, "wrong-type", "NoneType"),
    ],
)
def test_model_other_than_a_vector_of_the_task_is_refused(wrong, code, quoted):
    fed = federation()
    for test in (fed.evaluate, lambda w: fed.evaluate_all([w]), fed.row_scores):
        with refused(code, "model", quoted, "torch.float64"):
            test(wrong(fed.w0))
