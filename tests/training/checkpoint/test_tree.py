"""Test states as named tensors."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from tests.papers.energy.jobs import digits
from tests.support.marks import crossed, long_beyond, long_except
from tests.support.refusals import refused
from torch import Tensor

from drfl.algorithms import ALGORITHMS
from drfl.core.key import Key
from drfl.experiments.config.hyperparameters import has_parameter, make_algorithm
from drfl.federation.client_table import ClientTable
from drfl.resilience import Clip, FailureModel, Faulty, OverSelection, Protected, Quorum, RobustClip
from drfl.training.averages import Average
from drfl.training.checkpoint import DamagedError
from drfl.training.checkpoint.state_schema import check, restored, state_specs, tensors_of
from drfl.training.loop import run
from drfl.training.run_state import first


def back_from(first, tensors, name="state"):
    """Return a state from its tensors, if they fit."""
    check(state_specs(first, name), tensors)
    return restored(first, tensors, name)


class Some(NamedTuple):
    w: Tensor
    h: ClientTable
    average: Average | None


def some(average=None):
    return Some(torch.arange(3.0), ClientTable.zeros(5, torch.zeros(3)), average)


def same(a, b):
    first, second = tensors_of(a), tensors_of(b)
    # a guard has NaN for clients that have not reported yet
    return first.keys() == second.keys() and all(
        torch.equal(first[k].nan_to_num(nan=-1.5), second[k].nan_to_num(nan=-1.5)) for k in first
    )


@pytest.mark.parametrize("name", long_except(["SCAFFOLD", "DRFA", "ScaffPD", "DualDRDM"], ALGORITHMS))
def test_every_state_is_read_back(name):
    fed = digits()
    given = {"m": 6, "steps": 2, "lr": 0.05}
    algorithm = make_algorithm(name, {k: v for k, v in given.items() if has_parameter(name, k)})
    state = algorithm.init(fed)
    for r in (1, 2):
        state, _ = algorithm.round(state, fed, Key(r))
    back = back_from(algorithm.init(fed), tensors_of(state))
    assert type(back) is type(state)
    assert same(back, state)
    ahead, again = (algorithm.round(s, fed, Key(3))[0] for s in (state, back))
    assert same(ahead, again)


@pytest.mark.parametrize(
    "name", long_beyond(2, [name for name, make in ALGORITHMS.items() if not hasattr(make, "no_average")])
)
def test_every_average_is_read_back(name):
    fed, kept = digits(), []
    given = {"m": 6, "steps": 2, "lr": 0.05}
    algorithm = make_algorithm(name, {k: v for k, v in given.items() if has_parameter(name, k)})
    whole = run(algorithm, fed, rounds=3, averaged=True, keep=lambda progress, stopping: kept.append(progress))
    fresh, last = first(algorithm, fed, averaged=True), kept[-1]
    tensors = {**tensors_of(last.state), **tensors_of(last.average, "average")}
    assert {"average.w", "average.lam", "average.rounds"} <= tensors.keys()
    check({**state_specs(fresh.state), **state_specs(fresh.average, "average")}, tensors)
    back = restored(fresh.state, tensors), restored(fresh.average, tensors, "average")
    assert type(back[1]) is Average
    assert same(back[0], last.state)
    assert same(back[1], last.average)
    again = run(algorithm, fed, rounds=3, averaged=True, start=last._replace(state=back[0], average=back[1]))
    assert same(again.average, whole.average)
    assert int(again.average.rounds) == 3


AROUND = {
    "protected": lambda inner: Protected(inner, guards=(RobustClip(), Clip(9.0))),
    "without guards": lambda inner: Protected(inner, guards=()),
    "faulty": lambda inner: Faulty(Protected(inner), FailureModel(drop=0.3, outage=0.2, groups=3)),
    "called off": lambda inner: Quorum(Faulty(Protected(OverSelection(inner, 4)), FailureModel(drop=0.6)), 3),
    "nobody answers": lambda inner: Faulty(Protected(inner), FailureModel(drop=1.0)),
}


@pytest.mark.parametrize(
    ("around", "name"),
    crossed(long_except(["protected", "faulty", "called off"], AROUND.values(), AROUND), ["DRDM", "ScaffPD", "FedAvg"]),
)
def test_wrapper_state_keeps_its_shape(name, around):
    fed = digits()
    algorithm, kept = around(make_algorithm(name, {"m": 6, "steps": 1})), []
    fresh = first(algorithm, fed, averaged=True)
    run(algorithm, fed, rounds=4, averaged=True, keep=lambda progress, stopping: kept.append(progress))
    assert len(kept) == 3
    for progress in kept:
        assert same(back_from(fresh.state, tensors_of(progress.state)), progress.state)
        assert same(back_from(fresh.average, tensors_of(progress.average)), progress.average)


def test_unwritten_rows_take_no_space():
    state = some()._replace(h=some().h.put(torch.tensor([3, 1]), torch.ones(2, 3)))
    tensors = tensors_of(state)
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {
        "state.w": (3,),
        "state.h.clients": (2,),
        "state.h.rows": (2, 3),
    }
    assert back_from(some(), tensors).h.clients.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"state.w": None}, ("damaged-checkpoint", "state.w")),
        ({"state.w": torch.zeros(3, dtype=torch.float64)}, ("damaged-checkpoint", "state.w", "torch.float64")),
        ({"state.w": torch.zeros(3, 1)}, ("damaged-checkpoint", "state.w", "(3, 1)")),
        ({"state.h.clients": torch.tensor([7])}, ("damaged-checkpoint", "state.h.clients", "7")),
        ({"state.h.rows": torch.zeros(1, 2)}, ("damaged-checkpoint", "state.h.rows", "torch.float32", "(1, 2)")),
    ],
)
def test_mismatched_tensors_are_refused(change, error):
    state = some()._replace(h=some().h.put(torch.tensor([2]), torch.ones(1, 3)))
    tensors = {k: t for k, t in {**tensors_of(state), **change}.items() if t is not None}
    with refused(*error, kind=DamagedError):
        back_from(some(), tensors)


@pytest.mark.parametrize("part", [3.0, [1], (1, 2)])
def test_only_saveable_states_are_accepted(part):
    with pytest.raises(TypeError, match=r"state\.average"):
        tensors_of(some(part))
    with pytest.raises(TypeError, match=r"state\.average"):
        back_from(some(part), tensors_of(some()))
