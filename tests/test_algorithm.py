"""The loop that runs an algorithm."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import torch
from tests.support.federations import Still
from tests.support.problems import federation, task_of
from torch import Tensor

from drfl.algorithm import Average, Info, run
from drfl.algorithms import ALGORITHMS, DRDM, DRFA, FedAvg
from drfl.callbacks import Target
from drfl.cohort import Cohort
from drfl.errors import DivergedError, InputError, NonFiniteError
from drfl.history import Metrics
from drfl.key import Key
from drfl.local import LocalSGD

ONE = Cohort(torch.tensor([0]), torch.ones(1, dtype=torch.float64))


class Counted(NamedTuple):
    w: Tensor
    lam: Tensor
    average: Average | None = None


@dataclass
class Counter:
    """w counts the rounds; it breaks in a given one."""

    breaks: dict = field(default_factory=dict)
    empty: tuple = ()
    local: LocalSGD = field(default_factory=LocalSGD)
    keys: list = field(default_factory=list)

    def init(self, fed):
        return Counted(torch.zeros(2), torch.full((fed.n,), 1 / fed.n))

    def round(self, state, fed, key):
        self.keys.append(key)
        r = len(self.keys)
        if isinstance(self.breaks.get(r), Exception):
            raise self.breaks[r]
        w = state.w + self.breaks.get(r, 1.0)
        return state._replace(w=w), Info.nobody(ONE) if r in self.empty else Info(ONE, ONE.clients)


def fed():
    return Still([1.0, 2.0, 4.0])


def test_no_rounds():
    f, steps = fed(), []
    result = run(Counter(), f, rounds=0, callbacks=[steps.append])
    assert [row.round for row in result.history.rows] == [0]
    assert result.rounds == 0
    assert f.evaluated == 1
    assert result.evaluation.loss.tolist() == [1, 2, 4]
    assert [(s.round, s.rounds, s.info, s.row.round) for s in steps] == [(0, 0, None, 0)]


@pytest.mark.parametrize(
    ("rounds", "every", "expected"),
    [(5, 1, [0, 1, 2, 3, 4, 5]), (6, 3, [0, 3, 6]), (7, 3, [0, 3, 6, 7]), (2, 10, [0, 2])],
)
def test_evaluation_rounds(rounds, every, expected):
    f, steps = fed(), []
    result = run(Counter(), f, rounds=rounds, evaluate_every=every, callbacks=[steps.append])
    assert [row.round for row in result.history.rows] == expected
    assert f.evaluated == len(expected)
    assert [s.round for s in steps] == list(range(rounds + 1))
    assert [s.round for s in steps if s.row is not None] == expected
    assert all(s.row.round == s.round for s in steps if s.row is not None)
    assert result.state.w.tolist() == [rounds] * 2
    assert result.rounds == rounds


def test_keys_of_rounds():
    algorithm = Counter()
    run(algorithm, fed(), rounds=3, seed=11)
    assert algorithm.keys == [Key(11).fold("round", r) for r in (1, 2, 3)]


@pytest.mark.parametrize(("at", "expected"), [(0, [0]), (1, [0, 1]), (4, [0, 3, 4]), (6, [0, 3, 6])])
def test_a_callback_stops_the_run(at, expected):
    """The last model is always evaluated, and every callback sees every step."""
    seen, f = [], fed()
    callbacks = [lambda s: s.round == at, lambda s: seen.append(s.round)]
    result = run(Counter(), f, rounds=9, evaluate_every=3, callbacks=callbacks)
    assert [row.round for row in result.history.rows] == expected
    assert seen == list(range(at + 1))
    assert result.rounds == at
    assert f.evaluated == len(expected)


@pytest.mark.parametrize(
    ("name", "value"), [("rounds", -1), ("rounds", 1.5), ("evaluate_every", 0), ("evaluate_every", -2)]
)
def test_impossible_numbers(name, value):
    with pytest.raises(InputError, match=f"{name} must be an integer of at least ., not {value}"):
        run(Counter(), fed(), **{"rounds": 3, name: value})


@pytest.mark.parametrize("trouble", [math.nan, math.inf, NonFiniteError("entry 3 is nan")], ids=str)
def test_divergence(trouble):
    with pytest.raises(DivergedError, match=r"Counter diverged in round 3 \(.*(holds NaN|entry 3)") as raised:
        run(Counter(breaks={3: trouble}), fed(), rounds=5)
    assert "\n" not in str(raised.value)


def test_other_errors_pass_through():
    with pytest.raises(ZeroDivisionError):
        run(Counter(breaks={2: ZeroDivisionError()}), fed(), rounds=5)


def test_skipped_rounds_are_counted():
    assert run(Counter(empty=(1, 4)), fed(), rounds=5).skipped == 2


@pytest.mark.parametrize(("metric", "value", "stops"), [("avg_loss", 2.4, True), ("avg_loss", 2.3, False)])
def test_target_on_a_loss(metric, value, stops):
    assert run(Counter(), fed(), rounds=2, callbacks=[Target(metric, value)]).rounds == (0 if stops else 2)


@pytest.mark.parametrize(("value", "stops"), [(0.5, True), (0.51, False)])
def test_target_on_an_accuracy(value, stops):
    assert run(Counter(), fed(), rounds=2, callbacks=[Target("avg_accuracy", value)]).rounds == (0 if stops else 2)


def test_target_on_the_spread():
    """The spread over clients is to be small: it is 0.41 here."""
    assert run(Counter(), fed(), rounds=2, callbacks=[Target("std_accuracy", 0.5)]).rounds == 0
    assert run(Counter(), fed(), rounds=2, callbacks=[Target("std_accuracy", 0.3)]).rounds == 2


def test_target_waits_for_an_evaluation():
    class Improving(Still):
        def evaluate(self, w):
            return super().evaluate(w)._replace(loss=self.values - w[0])

    result = run(Counter(), Improving([5.0, 5.0]), rounds=9, evaluate_every=4, callbacks=[Target("worst_loss", 2.5)])
    assert result.rounds == 4


def test_unknown_metric():
    with pytest.raises(InputError, match=r"unknown metric 'acuracy'.*avg_accuracy"):
        Target("acuracy", 0.5)
    for metric in Metrics._fields:
        Target(metric, 0.5)


def test_average():
    average = Average.start(torch.tensor([9.0]), torch.tensor([1.0]))
    for i, x in enumerate([1.0, 4.0, 7.0], start=1):
        average = average.add(torch.tensor([x]), torch.tensor([2 * x]))
        assert int(average.rounds) == i
    assert average.w.tolist() == pytest.approx([4.0])
    assert average.lam.tolist() == pytest.approx([8.0])


def test_result_into_a_module():
    f, module = federation(), task_of(seed=5).model
    result = run(FedAvg(local=LocalSGD(steps=1)), f, rounds=1)
    result.write_into(module)
    assert torch.equal(torch.cat([p.detach().flatten() for p in module.parameters()]), result.state.w)


def test_history_of_a_run():
    result = run(DRFA(m=2, local=LocalSGD(steps=1)), federation(), rounds=3)
    rows = result.history.rows
    assert all(b.ledger["bytes_up"] > a.ledger["bytes_up"] for a, b in itertools.pairwise(rows))
    assert all(b.seconds >= a.seconds for a, b in itertools.pairwise(rows))
    assert torch.equal(rows[-1].lam, result.state.lam)
    assert rows[-1].metrics == Metrics.of(result.evaluation)
    assert set(rows[0].ledger.values()) == {0}


def test_a_real_divergence_names_the_round():
    local = LocalSGD(steps=5, lr=1e3, weight_decay=10)
    with pytest.raises(DivergedError, match=r"DRFA diverged in round \d+ .*lr"):
        run(DRFA(m=3, local=local), federation(), rounds=40)


@pytest.mark.parametrize(
    ("name", "remedy"), [("FedAvg", "lr"), ("DRFA", "lr or gamma"), ("ScaffPD", "lr or server_lr or sigma")]
)
def test_a_divergence_names_the_step_sizes_that_there_are(name, remedy):
    local = LocalSGD(steps=5, lr=1e3, weight_decay=10)
    with pytest.raises(DivergedError, match=f": lower {remedy}$"):
        run(ALGORITHMS[name](m=3, local=local), federation(), rounds=40)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "AFL"])  # AFL asks everybody
@pytest.mark.parametrize("m", [0, -1, 7])
def test_impossible_cohorts(name, m):
    with pytest.raises(InputError, match="between 1 and the number of clients, 6"):
        run(ALGORITHMS[name](m=m), federation(), rounds=1)


@pytest.mark.parametrize("make", [DRFA, DRDM])
@pytest.mark.parametrize(
    "bad", [{"gamma": -0.1}, {"gamma": math.nan}, {"dual_batch": 0}, {"dual_batch": -3}, {"dual_batch": 1.5}], ids=str
)
def test_impossible_hyperparameters(make, bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        make(m=2, **bad)


@pytest.mark.parametrize("mu", [0, -1, math.nan, math.inf])
def test_impossible_mu(mu):
    with pytest.raises(InputError, match="mu"):
        DRDM(m=2, mu=mu)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_first_state(name):
    f = federation()
    state = (ALGORITHMS[name]() if name == "AFL" else ALGORITHMS[name](m=2)).init(f)
    assert torch.equal(state.w, f.w0)
    assert state.average is None
    by_samples = name in ("FedAvg", "FedProx", "DeltaFL")
    expected = f.shares if by_samples else torch.full((6,), 1 / 6, dtype=torch.float64)
    torch.testing.assert_close(state.lam, expected, rtol=0, atol=1e-15)
    if name == "DRDM":
        assert state.h.shape == (6, 15)
        assert not state.h.clients.numel()
        assert not state.c.any()
