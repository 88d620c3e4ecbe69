"""States as named tensors."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from tests.energy.jobs import digits
from torch import Tensor

from drfl.algorithm import Average
from drfl.algorithms import ALGORITHMS
from drfl.checkpoint import DamagedError
from drfl.checkpoint.tree import restored, tensors_of
from drfl.experiments.parameters import make, takes
from drfl.faults import Faults, Faulty
from drfl.key import Key
from drfl.participation import OverSampled, Quorum
from drfl.protection import Clip, Protected, RobustClip
from drfl.table import Table


class Some(NamedTuple):
    w: Tensor
    h: Table
    average: Average | None


def some(average=None):
    return Some(torch.arange(3.0), Table.zeros(5, torch.zeros(3)), average)


def same(a, b):
    first, second = tensors_of(a), tensors_of(b)
    # a guard has NaN where nobody reported yet
    return first.keys() == second.keys() and all(
        torch.equal(first[k].nan_to_num(nan=-1.5), second[k].nan_to_num(nan=-1.5)) for k in first
    )


@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_state_comes_back_whole(name, averaged):
    fed = digits()
    given = {"m": 6, "averaged": averaged, "steps": 2, "lr": 0.05}
    algorithm = make(name, {k: v for k, v in given.items() if takes(name, k)})
    state = algorithm.init(fed)
    for r in (1, 2):
        state, _ = algorithm.round(state, fed, Key(r))
    back = restored(algorithm.init(fed), tensors_of(state))
    assert type(back) is type(state)
    assert same(back, state)
    ahead, again = (algorithm.round(s, fed, Key(3))[0] for s in (state, back))
    assert same(ahead, again)


AROUND = {
    "protected": lambda inner: Protected(inner, guards=(RobustClip(), Clip(9.0))),
    "without guards": lambda inner: Protected(inner, guards=()),
    "faulty": lambda inner: Faulty(Protected(inner), Faults(drop=0.3, outage=0.2, groups=3)),
    "called off": lambda inner: Quorum(Faulty(Protected(OverSampled(inner, 4)), Faults(drop=0.6)), 3),
    "nobody answers": lambda inner: Faulty(Protected(inner), Faults(drop=1.0)),
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
@pytest.mark.parametrize("name", ["DRDM", "ScaffPD", "FedAvg"])
def test_what_wrappers_remember_keeps_its_shape_too(name, around):
    fed = digits()
    algorithm = around(make(name, {"m": 6, "averaged": True, "steps": 1}))
    state = fresh = algorithm.init(fed)
    for r in range(1, 6):
        state, _ = algorithm.round(state, fed, Key(r))
        assert same(restored(fresh, tensors_of(state)), state)


def test_rows_that_were_never_written_take_no_room():
    state = some()._replace(h=some().h.put(torch.tensor([3, 1]), torch.ones(2, 3)))
    tensors = tensors_of(state)
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {
        "state.w": (3,),
        "state.h.clients": (2,),
        "state.h.rows": (2, 3),
    }
    assert restored(some(), tensors).h.clients.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state.w": None}, "state.w is missing"),
        ({"state.w": torch.zeros(3, dtype=torch.float64)}, "state.w is torch.float64"),
        ({"state.w": torch.zeros(3, 1)}, r"of shape \(3, 1\)"),
        ({"state.h.clients": torch.tensor([7])}, "state.h does not fit"),
        ({"state.h.rows": torch.zeros(1, 2)}, r"state\.h\.rows is torch.float32 of shape \(1, 2\)"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    state = some()._replace(h=some().h.put(torch.tensor([2]), torch.ones(1, 3)))
    tensors = {k: t for k, t in {**tensors_of(state), **change}.items() if t is not None}
    with pytest.raises(DamagedError, match=message):
        restored(some(), tensors)


@pytest.mark.parametrize("part", [3.0, [1], (1, 2)])
def test_only_what_can_be_saved_is_a_state(part):
    with pytest.raises(TypeError, match=r"state\.average is a"):
        tensors_of(some(part))
    with pytest.raises(TypeError, match=r"state\.average is a"):
        restored(some(part), tensors_of(some()))
