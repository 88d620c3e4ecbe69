"""Test the wrappers of a round's federation: which clients answer, in which order, and the ledger."""

from __future__ import annotations

import pytest
import torch
from tests.resilience.subjects import EVERYBODY, LOCAL, VECTOR, N, small, who
from tests.support.replies import parts

from drfl.core.key import Key
from drfl.federation.requests import LossRequest, TrainRequest
from drfl.resilience import DuplicateReplies, LostReplies, Stragglers, UnreliableFederation
from drfl.testing import ConstantFederation, DropoutFederation, Recording

KEY = Key(3)
WORK = sum(min(4, size) * 3 for size in range(5, 13))  # samples of a training request to all clients


def ask(fed, kind, cohort=EVERYBODY, **options):
    if kind == "train":
        return fed.train(cohort, fed.w0, LOCAL, KEY, **options)
    return getattr(fed, kind)(cohort, fed.w0, KEY, batch=4)


def shifts(k=N):
    return torch.linspace(-1, 1, 15 * k, dtype=torch.float64).view(k, 15)


FULL = {"shift": shifts(), "snapshot": 2, "average": True}


@pytest.mark.parametrize("options", [{}, FULL, {"snapshot": 1}], ids=["plain", "full", "snapshot"])
def test_empty_round_equals_a_round_with_all_replies_lost(options):
    lost, nobody = (
        DropoutFederation.without(small(), range(N)),
        UnreliableFederation(small(), unavailable=who(*range(N))),
    )
    for kind in ("train", "losses", "gradients"):
        given = options if kind == "train" else {}
        theirs, mine = ask(lost, kind, **given), ask(nobody, kind, **given)
        assert type(mine) is type(theirs)
        for a, b in zip(parts(mine), parts(theirs), strict=True):
            assert (a is None) == (b is None)
            assert a is None or (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
        assert nobody.ledger.bytes_down == lost.ledger.bytes_down
    assert (nobody.ledger.bytes_up, nobody.ledger.gradient_evaluations, nobody.ledger.loss_evaluations) == (0, 0, 0)
    assert nobody.ledger.messages == 3 * N
    before = nobody.ledger.totals()
    ask(nobody, "train", EVERYBODY[:0], shift=shifts(0))
    assert nobody.ledger.totals() == before


def test_unreached_clients_do_nothing_and_others_are_unaffected():
    inside = Recording(small())
    fed, full, there = UnreliableFederation(inside, unavailable=who(2, 5)), small(), [0, 1, 3, 4, 6, 7]
    for kind, given in (("train", FULL), ("losses", {}), ("gradients", {})):
        mine, theirs = ask(fed, kind, **given), ask(full, kind, **given)
        assert all(torch.equal(a, b[there]) for a, b in zip(parts(mine), parts(theirs), strict=True))
        assert [call.cohort.tolist() for call in inside.take()] == [there]
        assert fed.ledger.bytes_down == full.ledger.bytes_down
    up = 6 * (3 * VECTOR + 8 + VECTOR + 8)
    assert (fed.ledger.bytes_up, fed.ledger.messages) == (up, 3 * (8 + 6))
    assert fed.ledger.gradient_evaluations == WORK - 2 * 3 * 4 + 6 * 4
    assert fed.ledger.loss_evaluations == 6 * 4


def test_empty_cohort_never_reaches_the_inner_federation():
    inside = Recording(small())
    fed = UnreliableFederation(inside, unavailable=who(1, 2))
    for kind, shift in (("train", shifts(2)), ("losses", None), ("gradients", None)):
        reply = ask(fed, kind, torch.tensor([2, 1]), **({} if shift is None else {"shift": shift}))
        assert reply.clients.tolist() == []
    assert inside.calls == []
    assert (fed.ledger.bytes_down, fed.ledger.messages) == (2 * (2 + 1 + 1) * VECTOR, 6)


def test_absence_for_one_kind_of_request():
    fed = UnreliableFederation(small(), lost=LostReplies(who(0, 3), kinds=("train",)))
    assert ask(fed, "train", snapshot=1).clients.tolist() == [1, 2, 4, 5, 6, 7]
    assert (fed.ledger.bytes_down, fed.ledger.bytes_up, fed.ledger.messages) == (N * VECTOR, 6 * 2 * VECTOR, 14)
    assert fed.ledger.gradient_evaluations == WORK
    assert len(ask(fed, "losses").clients) == len(ask(fed, "gradients").clients) == N


@pytest.mark.parametrize("kind", ["train", "losses", "gradients"])
def test_second_reply_follows_the_first(kind):
    inside, fed = small(), small()
    once, twice = ask(inside, kind), ask(UnreliableFederation(fed, duplicates=DuplicateReplies(0.5, KEY)), kind)
    again = [i for i in range(N) if twice.clients.tolist().count(i) == 2]
    assert 0 < len(again) < N
    assert twice.clients.tolist() == sorted([*range(N), *again])
    parts = [(mine, theirs) for mine, theirs in zip(twice, once, strict=True) if theirs is not None]
    assert all(torch.equal(mine, theirs[twice.clients]) for mine, theirs in parts)
    assert all((mine is None) == (theirs is None) for mine, theirs in zip(twice, once, strict=True))
    assert fed.ledger.bytes_up * N == inside.ledger.bytes_up * (N + len(again))
    assert fed.ledger.messages == inside.ledger.messages + len(again)


def test_no_second_reply_without_a_first():
    fed = UnreliableFederation(small(), unavailable=who(*range(N)), duplicates=DuplicateReplies(1.0, KEY))
    assert ask(fed, "train").clients.tolist() == []
    assert fed.ledger.bytes_up == 0


def test_replies_are_ordered_by_time():
    pace = torch.tensor([1.0, 5.0, 2.0, 1.0, 3.0, 1.0, 8.0, 1.0], dtype=torch.float64)
    exact = UnreliableFederation(small(), stragglers=Stragglers(pace, 0.0, None, KEY))
    assert ask(exact, "train").clients.tolist() == [0, 3, 5, 7, 2, 4, 1, 6]
    assert ask(exact, "losses", torch.tensor([6, 5, 4, 0])).clients.tolist() == [5, 0, 4, 6]
    full = ask(small(), "train", **FULL)
    mine = ask(exact, "train", **FULL)
    assert all(torch.equal(a, b[mine.clients]) for a, b in zip(parts(mine), parts(full), strict=True))


def test_late_reply_is_counted_and_not_delivered():
    pace = torch.tensor([1.0, 5.0, 2.0, 1.0, 3.0, 1.0, 8.0, 1.0], dtype=torch.float64)
    fed, full = UnreliableFederation(small(), stragglers=Stragglers(pace, 0.0, 6.0, KEY)), small()
    assert ask(fed, "train").clients.tolist() == [0, 3, 5, 7, 2]  # deadline 6; a client of pace 1 needs 3
    assert ask(fed, "losses").clients.tolist() == [0, 3, 5, 7, 2, 4, 1]
    assert ask(fed, "gradients").clients.tolist() == [0, 3, 5, 7, 2, 4, 1]
    for kind in ("train", "losses", "gradients"):
        ask(full, kind)
    assert fed.ledger == full.ledger
    assert ask(UnreliableFederation(small(), stragglers=Stragglers(pace, 0.0, 0.5, KEY)), "train").w.shape == (0, 15)


def test_second_reply_has_the_time_of_the_first():
    pace = torch.arange(8, 0, -1, dtype=torch.float64)
    fed = UnreliableFederation(
        small(), duplicates=DuplicateReplies(1.0, KEY), stragglers=Stragglers(pace, 0.0, 4.0, KEY)
    )
    assert ask(fed, "losses").clients.tolist() == [7, 7, 6, 6, 5, 5, 4, 4]


def test_mean_time_follows_the_pace():
    fed = ConstantFederation(torch.zeros(200_000))
    timed = Stragglers(torch.full((fed.n,), 2.0, dtype=torch.float64), 0.5, None, KEY)
    times = timed.times(TrainRequest(EVERYBODY, fed.w0, KEY, LOCAL, 0.0, None, None, False))
    assert abs(float(times.mean()) - 3 * 2.0) < 4 * float(times.std()) / fed.n**0.5
    assert abs(float(times.log().std()) - 0.5) < 0.01
    other = timed.times(LossRequest(EVERYBODY, fed.w0, KEY, None))
    assert abs(float(torch.corrcoef(torch.stack([times, other]))[0, 1])) < 0.02
