"""Test updates that are too long because of the determined step size, and false updates of the same length."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from tests.support.refusals import quotes

from drfl import LocalSGD, run
from drfl.algorithms import FedAvg
from drfl.federation.federation import WrappedFederation
from drfl.federation.requests import Replies, select_rows
from drfl.optim.schedules import Constant
from drfl.resilience import Protected
from drfl.testing import QuadraticFederation, Recording
from drfl.testing.attacks import ScaledUpdates
from drfl.testing.state import bits_differ
from drfl.training.checkpoint import Checkpoints, resume_point

CURVATURES = (1.0, 1.0, 1.0, 1.0, 3.0)
STEEP = 4
"""The steep client. Its curvature counts as 2, because a client's answer counts at most twice the others'."""
FACTOR = 3.6
"""η in units of 1/L̂. η·L is 5.4, 2.7 and 1.35 for the steep client at η, η/2 and η/4, and below 2 for the others."""
ROUNDS = 5


def fed_of():
    H = torch.tensor(CURVATURES, dtype=torch.float64)[:, None, None] * torch.eye(2, dtype=torch.float64)
    b = torch.tensor([[1.0, 0.5], [0.9, 0.4], [1.1, 0.6], [1.0, 0.3], [3.0, 0.0]], dtype=torch.float64)
    return QuadraticFederation(H, b, torch.full((len(CURVATURES),), 10.0, dtype=torch.float64))


def fedavg(steps=10, lr=None, factor=FACTOR):
    local = LocalSGD(steps=steps, lr=lr, lr_schedule=Constant(factor))
    return Protected(FedAvg(local=local), quarantine=None)


def trained(algorithm, fed, rounds=ROUNDS, **options):
    return run(algorithm, fed, rounds=rounds, evaluate_every=rounds, **options)


def trainings(fed):
    return sum(call.kind == "train" for call in fed.calls)


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (10, 2),  # half the step size helps, and a quarter helps again
        pytest.param(2000, 1, marks=pytest.mark.long),  # models overflow even at half the step size
    ],
)
def test_smaller_step_size_keeps_an_honest_client(steps, told, caplog):
    """The result is bitwise that of the smaller step size from the start, and no client is excluded."""
    result = trained(fedavg(steps), fed := Recording(fed_of()))
    size = result.step_size
    assert int(size.lowered) == 2
    assert (result.rollbacks, result.effective_rounds) == (0, ROUNDS), "a round that is done again is none"
    assert not size.unaffected.any()
    assert int(result.state.memory.rejected) == 0
    assert trainings(fed) == ROUNDS + 2  # the first round runs three times, always from its start
    same = trained(fedavg(steps, lr=float(size.eta)), fed_of())
    assert bits_differ(result.state.inner, same.state.inner) == []
    said = [record.msg for record in caplog.records if record.name == "drfl"]
    assert said[-1].code == "step-size-lowered"
    assert quotes(said[-1], f"{float(size.eta):.3g}", "round 1", f"client {STEEP}")
    assert len(said) == told


class Far(WrappedFederation):
    """Move client 1's models far away, by a factor that grows each time."""

    def __init__(self, fed, times):
        super().__init__(fed)
        self.far, self.times = 1e30, times

    def ask(self, request):
        reply = super().ask(request)
        if not isinstance(reply, Replies):
            return reply
        self.far *= self.times
        return reply._replace(w=reply.w + self.far * (reply.clients == 1)[:, None])


class FarThenSilent(Far):
    """Move client 1's models far away, and drop them if a round is repeated."""

    def __init__(self, fed):
        super().__init__(fed, 1.0)
        self.rounds = set()

    def ask(self, request):
        reply = super().ask(request)
        if not isinstance(reply, Replies):
            return reply
        again = request.key.round in self.rounds
        self.rounds.add(request.key.round)
        return select_rows(reply, reply.clients != 1) if again else reply


def test_silent_client_was_not_helped_by_the_smaller_step(caplog):
    caplog.set_level(logging.ERROR)
    size = trained(fedavg(factor=1.0), FarThenSilent(fed_of())).step_size
    assert int(size.lowered) == 0
    assert size.unaffected.tolist() == [client == 1 for client in range(len(CURVATURES))]


@pytest.mark.parametrize("factor", [1e30, -1e12, math.inf])
def test_malicious_client_does_not_lower_the_step_size(factor, caplog):
    """One round is repeated once; the model is bitwise that without the client."""
    caplog.set_level(logging.ERROR)
    result = trained(fedavg(factor=1.0), fed := Recording(ScaledUpdates(fed_of(), [1], factor)))
    size = result.step_size
    assert int(size.lowered) == 0
    assert size.unaffected.tolist() == [client == 1 for client in range(fed.n)]
    assert trainings(fed) == ROUNDS + 1
    same = trained(fedavg(lr=float(size.eta), factor=1.0), ScaledUpdates(fed_of(), [1], factor))
    assert bits_differ(result.state.inner, same.state.inner) == []


def test_malicious_client_does_not_hide_an_honest_one(caplog):
    caplog.set_level(logging.ERROR)
    size = trained(fedavg(), Far(fed_of(), 1.0)).step_size
    assert int(size.lowered) == 2
    assert size.unaffected.tolist() == [client == 1 for client in range(len(CURVATURES))]


@pytest.mark.parametrize(("factor", "most"), [(0.5, 0), (1.0, 1), (2.0, 2), (FACTOR, 3)])
def test_false_replies_lower_the_step_size_to_at_most_a_quarter(factor, most, caplog):
    caplog.set_level(logging.ERROR)
    size = trained(fedavg(factor=factor), Far(fed_of(), 0.1), rounds=20).step_size
    assert int(size.lowered) == most
    assert factor * float(size.eta) > size.first / 4


def test_user_step_size_is_unchanged(caplog):
    caplog.set_level(logging.ERROR)
    result = trained(fedavg(lr=1.0), fed := Recording(fed_of()))
    assert result.step_size is None
    assert trainings(fed) == ROUNDS
    assert int(result.state.memory.rejected) >= 1


@pytest.mark.parametrize("stop", [1, 3])
def test_resumed_run_remembers_clients_that_were_not_helped(stop, tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    algorithm = fedavg()
    whole = trained(algorithm, ScaledUpdates(fed_of(), [1], 1e30))
    keep = Checkpoints(tmp_path, dict, 100)
    trained(algorithm, ScaledUpdates(fed_of(), [1], 1e30), keep=keep, callbacks=[lambda step: step.round == stop])
    start = resume_point(tmp_path, algorithm, fed_of(), rounds=ROUNDS).progress
    fed = Recording(ScaledUpdates(fed_of(), [1], 1e30))
    again = trained(algorithm, fed, start=start)
    assert trainings(fed) == ROUNDS - stop
    assert bits_differ(again.state, whole.state) == []
    assert bits_differ(again.step_size, whole.step_size) == []
