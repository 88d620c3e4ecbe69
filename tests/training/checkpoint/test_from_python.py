"""Test `drfl.run(…, checkpoints=drfl.Checkpoints(folder))`: the same call resumes, and another one is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tests.support.refusals import logged, refused

import drfl
from drfl.resilience import Protected

ALGORITHM = drfl.DRFA(m=2, local=drfl.LocalSGD(steps=2, batch=4))


def federation(shift=0.0, module=None, **task):
    torch.manual_seed(5)
    arrays = [(torch.randn(12, 3) + i + shift, torch.randint(0, 2, (12,))) for i in range(3)]
    linear = torch.nn.Linear(3, 2)
    model = linear if module is None else torch.nn.Sequential(linear, module)
    return drfl.Simulation(drfl.ClientData.from_arrays(arrays), drfl.Task(model, **task))


def killed_at(r):
    def callback(step):
        if step.round == r:
            raise KeyboardInterrupt

    return [callback]


def run(folder=None, algorithm=ALGORITHM, fed=None, **options):
    checkpoints = None if folder is None else drfl.Checkpoints(folder, every=2)
    return drfl.run(algorithm, fed or federation(), **{"rounds": 7, "checkpoints": checkpoints, **options})


@pytest.fixture
def killed(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(str(tmp_path), callbacks=killed_at(5))
    return tmp_path


def test_same_call_resumes_and_equals_an_uninterrupted_run(killed):
    seen = []
    again = run(killed, callbacks=[lambda step: seen.append(step.round)])
    assert seen == [4, 5, 6, 7]
    whole = run()
    assert again.history.to_csv() == whole.history.to_csv()
    assert torch.equal(again.model, whole.model)
    assert run(killed, rounds=9).history.to_csv() == run(rounds=9).history.to_csv()  # a run with more rounds may resume
    before = sorted(killed.iterdir())
    with refused("out-of-range", "rounds", "8", "3"):
        run(killed, rounds=3)
    assert sorted(killed.iterdir()) == before


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"seed": 1}, ("other-run", "seed", "0", "1")),
        pytest.param({"evaluate_every": 2}, ("other-run", "evaluate_every", "1", "2"), marks=pytest.mark.long),
        (
            {"algorithm": drfl.DRFA(m=2, local=drfl.LocalSGD(steps=3, batch=4))},
            ("other-run", "algorithm.local.steps", "algorithm.local.steps = '2'", "'3'"),
        ),
        pytest.param(
            {"algorithm": drfl.FedAvg(m=2)}, ("other-run", "algorithm", "'DRFA'", "'FedAvg'"), marks=pytest.mark.long
        ),
        ({"fed": federation(0.5)}, ("other-run", "data")),
        pytest.param(
            {"fed": federation(loss=torch.nn.CrossEntropyLoss(label_smoothing=0.1))},
            ("other-run", "loss", "0.1"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            {"fed": federation(score="auc")}, ("other-run", "metrics", "accuracy", "auc"), marks=pytest.mark.long
        ),
        pytest.param(
            {"fed": federation(module=torch.nn.Tanh())}, ("other-run", "module", "Tanh"), marks=pytest.mark.long
        ),
        pytest.param(
            {"fed": federation(augment=lambda x, uniform: -x)}, ("other-run", "augment", "none"), marks=pytest.mark.long
        ),
    ],
)
def test_other_run_is_a_one_line_error(changes, error, killed):
    before = sorted(path.name for path in killed.iterdir())
    with refused(*error) as caught:
        run(killed, **changes)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in killed.iterdir()) == before


@pytest.mark.long
def test_damaged_checkpoint_is_reported_and_the_previous_one_used(killed, caplog):
    (killed / "round-00000004" / "state.safetensors").write_bytes(b"")
    assert run(killed).history.to_csv() == run().history.to_csv()
    ((code, field),) = logged(caplog)
    assert (code, Path(field).name) == ("damaged-checkpoint", "round-00000004")


def test_one_object_can_serve_several_runs(tmp_path):
    keep = drfl.Checkpoints(tmp_path / "a", every=3)
    first = run(checkpoints=keep)
    assert run(checkpoints=keep).history.to_csv() == first.history.to_csv()
    with refused("other-run", "seed", "0", "1"):
        run(checkpoints=keep, seed=1)


def test_mistakes_are_refused(tmp_path):
    with refused("out-of-range", "every", "1", "0"):
        drfl.Checkpoints(tmp_path, every=0)
    with refused("conflicting-options", "checkpoints"):
        run(tmp_path, keep=lambda progress, stopping: None)


class Twice(NamedTuple):
    w: torch.Tensor
    head: torch.Tensor


@dataclass(frozen=True)
class Shares(drfl.FedAvg):
    """An algorithm of a user whose state holds the same memory twice."""

    def init(self, fed):
        return Twice(fed.w0, fed.w0)

    def round(self, state, fed, key):
        after, info = super().round(state, fed, key)
        return Twice(after.w, after.w), info


def test_state_with_shared_memory_is_saved(tmp_path):
    algorithm = Shares(m=2, local=drfl.LocalSGD(lr=0.1))
    whole = run(algorithm=algorithm)
    run(tmp_path, algorithm, rounds=5)
    again = run(tmp_path, algorithm)
    assert torch.equal(again.model, whole.model)
    assert torch.equal(again.state.head, again.state.w)


class WithNumber(NamedTuple):
    w: torch.Tensor
    step: float


@dataclass(frozen=True)
class HasNumber(drfl.FedAvg):
    """An algorithm of a user whose state cannot be saved."""

    def init(self, fed):
        return WithNumber(fed.w0, 0.5)


@pytest.mark.parametrize("wrap", [lambda algorithm: algorithm, Protected], ids=["alone", "protected"])
def test_state_that_cannot_be_saved_is_refused(tmp_path, wrap):
    algorithm, fed = wrap(HasNumber()), federation()
    for call in (
        lambda: run(None, algorithm), lambda: run(tmp_path, algorithm),
        lambda: drfl.compare({"own": algorithm, "FedAvg": drfl.FedAvg()}, fed.data, fed._given, rounds=2, seeds=1),
    ):  # fmt: skip
        with refused("wrong-type", "HasNumber", "state.step", "float"):
            call()
    assert not list(tmp_path.iterdir())
