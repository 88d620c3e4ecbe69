"""Test that replies far longer than usual are rejected, and all others are unchanged."""

from __future__ import annotations

import logging

import pytest
import torch
from tests.resilience.federations import EVERYBODY, N, algorithm_of, fed_of
from tests.support.marks import crossed
from tests.support.refusals import refused

from drfl import Key, LocalSGD, run
from drfl.algorithms import ALGORITHMS
from drfl.federation.federation import WrappedFederation
from drfl.federation.requests import GradientRequest, Gradients, Losses, LossRequest, Replies, TrainRequest, select_rows
from drfl.resilience import Protected, StepBound
from drfl.resilience import step_bound as module
from drfl.testing.attacks import ScaledUpdates
from drfl.testing.state import bits_differ

D = 5
W = torch.linspace(-1, 1, D)
TRAIN = TrainRequest(EVERYBODY, W, Key(0), LocalSGD(steps=2, lr=0.1))
GRADIENTS = GradientRequest(EVERYBODY, W, Key(0))
ONE = torch.zeros(D).index_fill(0, torch.tensor([2]), 1.0)
BOUND = StepBound()
NOTHING = BOUND.start()


def steps(*lengths, snapshots=None):
    """Make models at given distances from W, with snapshots on request."""
    models = [None if found is None else W + torch.tensor(found)[:, None] * ONE for found in (lengths, snapshots)]
    return Replies(torch.arange(len(lengths)), models[0], models[1])


def gradients(*lengths):
    values = torch.tensor(lengths)[:, None] * ONE
    return Gradients(torch.arange(len(lengths)), values, torch.ones(len(lengths), dtype=torch.float64))


def judged(request, reply, usual):
    """Return which replies are within the bound, and the usual lengths afterwards."""
    excess, usual = BOUND.judge(request, reply, usual)
    return excess == 0, usual


def test_excess_is_reported_in_multiples_of_the_usual_length():
    excess, _ = BOUND.judge(TRAIN, steps(1.0, 2.0, 2.0, 199.0, 300.0, 3e38), NOTHING)
    assert excess.tolist() == pytest.approx([0, 0, 0, 0, 150, torch.inf])


def test_replies_above_a_hundred_medians_are_rejected():
    kept, usual = judged(TRAIN, steps(1.0, 2.0, 3.0, 199.0, 201.0), NOTHING)
    assert kept.tolist() == [True] * 5  # the median is 3
    assert usual.tolist() == pytest.approx([3, 0])
    kept, usual = judged(TRAIN, steps(1.0, 2.0, 2.0, 199.0, 201.0), NOTHING)
    assert kept.tolist() == [True, True, True, True, False]
    assert usual.tolist() == pytest.approx([2, 0])


def test_lower_of_two_middle_lengths_is_the_median():
    kept, _ = judged(TRAIN, steps(1.0, 1.0, 1e30, 1e30), NOTHING)
    assert kept.tolist() == [True, True, False, False]


def test_lengths_with_overflowing_squares_are_rejected():
    kept, usual = judged(TRAIN, steps(1.0, 2.0, 3e38), NOTHING)
    assert kept.tolist() == [True, True, False]
    assert torch.isfinite(usual).all()


def test_early_rounds_leave_room_for_slow_learners():
    _, usual = judged(TRAIN, steps(1.0, 1.0, 1.0), NOTHING)
    kept, after = judged(TRAIN, steps(1e-6, 1e-6, 1.0), usual)
    assert kept.all()
    assert torch.equal(after, usual)
    kept, _ = judged(TRAIN, steps(1e-6, 1e-6, 1.0), NOTHING)
    assert kept.tolist() == [True, True, False]


def test_gradients_and_updates_have_separate_bounds():
    _, usual = judged(TRAIN, steps(1.0, 1.0, 1.0), NOTHING)
    kept, usual = judged(GRADIENTS, gradients(1e-3, 1e-3, 1.0), usual)
    assert kept.tolist() == [True, True, False]
    assert usual.tolist() == pytest.approx([1, 1e-3])


def test_snapshot_is_judged_like_the_model():
    kept, _ = judged(TRAIN, steps(1.0, 1.0, 1.0, snapshots=[1.0, 1e9, 1.0]), NOTHING)
    assert kept.tolist() == [True, False, True]


def test_two_clients_use_only_an_earlier_bound():
    kept, usual = judged(TRAIN, steps(1e-9, 1.0), NOTHING)
    assert kept.all()
    assert torch.equal(usual, NOTHING)
    _, usual = judged(TRAIN, steps(1.0, 1.0, 1.0), NOTHING)
    assert judged(TRAIN, steps(99.0, 101.0), usual)[0].tolist() == [True, False]


@pytest.mark.parametrize("lengths", [(0.0, 0.0, 0.0, 5.0), (0.0, 5.0, 5.0)])
def test_unchanged_models_are_not_judged(lengths):
    """If the median update is 0, there is nothing to compare with, and no unchanged model is rejected."""
    assert judged(TRAIN, steps(*lengths), NOTHING)[0].all()


def test_losses_are_not_judged():
    request = LossRequest(EVERYBODY, W, Key(0))
    reply = Losses(torch.arange(3), torch.tensor([1.0, 1.0, 1e30], dtype=torch.float64))
    kept, usual = judged(request, reply, NOTHING)
    assert kept.all()
    assert torch.equal(usual, NOTHING)


def test_large_models_are_measured_row_by_row(monkeypatch):
    reply = steps(1.0, 2.0, 3.0, 1e6, snapshots=[0.5, 1.0, 1.5, 2.0])
    kept, usual = judged(TRAIN, reply, NOTHING)
    monkeypatch.setattr(module, "MAX_ENTRIES", 1)
    again, same = judged(TRAIN, reply, NOTHING)
    assert torch.equal(kept, again)
    assert torch.equal(usual, same)


@pytest.mark.parametrize("values", [{"factor": 1.0}, {"factor": float("nan")}, {"least": 2}])
def test_impossible_bounds_are_refused(values):
    with refused("out-of-range", next(iter(values))):
        StepBound(**values)


class Silent(WrappedFederation):
    """A client without models and gradients."""

    def __init__(self, fed, client):
        super().__init__(fed)
        self.client = client

    def ask(self, request):
        reply = super().ask(request)
        return reply if isinstance(reply, Losses) else select_rows(reply, reply.clients != self.client)


@pytest.mark.parametrize(("name", "factor"), crossed(list(ALGORITHMS), [1e30, -1e3]))
def test_absurd_client_counts_as_silent_for_every_algorithm(name, factor, caplog):
    caplog.set_level(logging.WARNING, "drfl")
    protected = Protected(algorithm_of(name), quarantine=None)
    feds = ScaledUpdates(fed_of(), [2], factor), Silent(fed_of(), 2)
    absurd, silent = (run(protected, fed, rounds=3, evaluate_every=3).state for fed in feds)
    assert bits_differ(absurd.inner, silent.inner) == []
    assert int(absurd.memory.rejected) >= 1
    said = [record.getMessage() for record in caplog.records if record.name == "drfl.resilience"]
    assert [text.partition(":")[0] for text in said] == ["client 2"]


def test_without_the_bound_the_client_ruins_the_model():
    fed = ScaledUpdates(fed_of(), [3], 1e30)
    result = run(Protected(algorithm_of("FedAvg"), bound=None), fed, rounds=1, evaluate_every=1)
    assert result.state.w.abs().max() > 1e20
    assert not result.state.memory.usual.any()


def test_memory_survives_a_round_without_replies():
    protected = Protected(algorithm_of("FedAvg"))
    state = protected.init(fed_of())
    state, _ = protected.round(state, fed_of(), Key(0))
    usual = state.memory.usual
    assert float(usual[0]) > 0
    assert state.memory.describe_fault() is None
    assert state.memory._replace(usual=-usual).describe_fault()
    assert bits_differ(protected.init(fed_of()).memory.usual, usual) != []
    assert N == 8
