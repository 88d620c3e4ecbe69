"""Test federations that record, drop, poison, permute or freeze replies, or compute in closed form."""

from __future__ import annotations

import math

import pytest
import torch
from tests.support.problems import federation
from tests.support.replies import parts

from drfl.core.key import Key
from drfl.engine import Loop
from drfl.federation.federation import WrappedFederation
from drfl.optim.local import LocalSGD
from drfl.testing import (
    ConstantFederation,
    ConstantLosses,
    DropoutFederation,
    PermutedClients,
    Recording,
    least_squares,
)
from drfl.testing.federations import first_asked
from drfl.testing.problems import curved_quadratics, logistic
from drfl.testing.toy_problem import exact

KEY, EVERYBODY = Key(3), torch.arange(5)
LOCAL = LocalSGD(steps=3, lr=0.1, batch=None)


@pytest.fixture
def fed():
    return exact(least_squares())


def all_requests(fed, cohort=EVERYBODY):
    shift = torch.linspace(-1, 1, 3 * len(cohort), dtype=torch.float64).view(-1, 3)
    up = fed.train(cohort, fed.w0, LOCAL, KEY, prox=0.3, shift=shift, snapshot=2, average=True)
    return up, fed.losses(cohort, fed.w0, KEY, batch=2), fed.gradients(cohort, fed.w0, KEY, batch=2)


def test_wrapper_passes_everything_on(fed):
    fed.table_dir, fed.averaged = "somewhere", True
    inside = WrappedFederation(fed)
    for mine, theirs in zip(all_requests(inside), all_requests(fed), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(parts(mine), parts(theirs), strict=True))
    assert (inside.n, inside.ledger, inside.table_dir, inside.averaged) == (fed.n, fed.ledger, "somewhere", True)
    assert torch.equal(inside.w0, fed.w0)
    assert torch.equal(inside.shares, fed.shares)
    assert torch.equal(inside.evaluate(fed.w0).loss, fed.evaluate(fed.w0).loss)


def test_recording_stores_requests(fed):
    recording = Recording(DropoutFederation(fed, train=[1], seed=None))
    all_requests(recording)
    assert [call.kind for call in recording.calls] == ["train", "losses", "gradients"]
    (train,) = recording.of("train")
    assert train.cohort.tolist() == [0, 1, 2, 3, 4]
    assert train.answered.tolist() == [0, 2, 3, 4]
    assert (train.prox, train.snapshot, train.average, train.local, train.key) == (0.3, 2, True, LOCAL, KEY)
    assert train.shift.shape == (5, 3)
    assert recording.of("losses")[0].batch == 2
    assert len(recording.take()) == 3
    assert recording.calls == []


def test_cohort_of_a_round_can_be_asked_in_parts(fed):
    recording = Recording(fed)
    for i in (3, 1):
        recording.train(torch.tensor([i]), fed.w0, LOCAL, KEY)
    recording.losses(EVERYBODY, fed.w0, KEY)
    recording.train(torch.tensor([0]), fed.w0, LOCAL, KEY)
    assert first_asked(recording.calls).tolist() == [3, 1]
    assert first_asked([]).tolist() == []


@pytest.mark.parametrize("kind", ["train", "losses", "gradients"])
def test_dropout_federation_drops_rows_and_shuffles(fed, kind):
    whole = dict(zip(("train", "losses", "gradients"), all_requests(fed), strict=True))
    replies = dict(zip(whole, all_requests(DropoutFederation(fed, **{kind: [2, 4]})), strict=True))
    for name, reply in replies.items():
        expected = {0, 1, 3} if name == kind else {0, 1, 2, 3, 4}
        assert set(reply.clients.tolist()) == expected
        for mine, theirs in zip(parts(reply[1:]), parts(whole[name][1:]), strict=True):
            assert torch.equal(mine, theirs[reply.clients])
    orders = [all_requests(DropoutFederation(fed, seed=seed))[0].clients.tolist() for seed in range(5)]
    assert len({tuple(order) for order in orders}) > 1


def test_clients_can_be_removed_permanently(fed):
    for reply in all_requests(DropoutFederation.without(fed, range(5))):
        assert all(part.shape[0] == 0 for part in parts(reply))


def test_unrequested_parts_stay_none(fed):
    reply = DropoutFederation(fed, train=[0]).train(EVERYBODY, fed.w0, LOCAL, KEY)
    assert reply.w.shape == (4, 3)
    assert reply.snapshot is None
    assert reply.average is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_only_losses_are_poisoned(fed, value):
    poisoned = ConstantLosses(fed, [3], value)
    for mine, theirs in zip(all_requests(poisoned)[1:], all_requests(fed)[1:], strict=True):
        losses, clean = mine[-1], theirs[-1]
        assert torch.equal(losses[:3], clean[:3])
        assert not math.isfinite(losses[3])
    assert torch.equal(all_requests(poisoned)[2].values, all_requests(fed)[2].values)


def test_permuted_clients_swap_places(fed):
    order = [2, 0, 1, 4, 3]
    moved = PermutedClients(fed, order)
    assert torch.equal(moved.shares, fed.shares[order])
    cohort = torch.tensor([3, 0])
    shift = torch.tensor([[1.0, 0, 0], [0, 2.0, 0]], dtype=torch.float64)
    mine = moved.train(cohort, fed.w0, LOCAL, KEY, shift=shift)
    theirs = fed.train(torch.tensor([4, 2]), fed.w0, LOCAL, KEY, shift=shift)
    assert mine.clients.tolist() == [3, 0]
    assert torch.equal(mine.w, theirs.w)
    for part, whole in ((moved.losses(EVERYBODY, fed.w0, KEY), fed.losses(EVERYBODY, fed.w0, KEY)),):
        assert torch.equal(part.values, whole.values[order])
    assert torch.equal(
        moved.gradients(EVERYBODY, fed.w0, KEY).values, fed.gradients(EVERYBODY, fed.w0, KEY).values[order]
    )
    assert torch.equal(moved.evaluate(fed.w0).loss, fed.evaluate(fed.w0).loss[order])


def test_constant_federation():
    still = ConstantFederation([1.0, 3.0], d=3, start=2.0)
    up = still.train(torch.tensor([1]), still.w0, LOCAL, KEY, snapshot=1)
    assert up.w.tolist() == up.snapshot.tolist() == [[3.0, 3.0, 3.0]]
    assert up.average is None
    assert still.losses(torch.tensor([1, 0]), still.w0, KEY).values.tolist() == [3.0, 1.0]
    assert still.train(torch.tensor([1]), still.w0, LOCAL, KEY, average=True).average.tolist() == [[3.0, 3.0, 3.0]]
    assert not still.gradients(torch.tensor([0]), still.w0, KEY).values.any()
    assert still.evaluate(still.w0).score.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("problem", [least_squares(), least_squares((3, 1, 8), d=4, seed=2), curved_quadratics()])
@pytest.mark.parametrize(
    "local",
    [LOCAL, LocalSGD(4, 0.02, None, momentum=0.7, weight_decay=0.3), LocalSGD(4, 0.02, None, radius=0.3)],
    ids=["plain", "momentum", "radius"],
)
def test_closed_form_equals_the_simulation(problem, local):
    closed, simulated = exact(problem), problem.federation(Loop())
    torch.testing.assert_close(closed.w0, simulated.w0)
    torch.testing.assert_close(closed.shares, simulated.shares)
    cohort = torch.tensor([problem.N - 1, 0])
    w = closed.w0 + 0.4
    shift = torch.linspace(-1, 1, 2 * problem.d, dtype=torch.float64).view(2, -1)
    for options in ({}, {"prox": 0.5, "shift": shift, "snapshot": 3, "average": True}):
        mine, theirs = (fed.train(cohort, w, local, KEY, **options) for fed in (closed, simulated))
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
    mine, theirs = (fed.gradients(cohort, w, KEY) for fed in (closed, simulated))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
    values = [fed.losses(cohort, w, KEY).values for fed in (closed, simulated)]
    torch.testing.assert_close(*values, rtol=0, atol=1e-11)


def test_other_problems_are_simulated():
    problem = logistic()
    assert type(exact(problem)) is type(problem.federation())


def test_function_that_makes_federations_is_a_problem():
    class Maker:
        def federation(self, engine=None, dtype=torch.float64):
            return federation((3, 4), engine=engine, dtype=dtype)

    assert exact(Maker()).n == 2
