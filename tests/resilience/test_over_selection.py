"""Test that over-selection uses the first replies."""

from __future__ import annotations

import pytest
import torch
from tests.resilience.subjects import EVERYBODY, N, algorithm, rounds, same, small
from tests.support.marks import long_except
from tests.support.refusals import refused

from drfl import run
from drfl.algorithms import ALGORITHMS
from drfl.core.key import Key
from drfl.federation.requests import select_rows
from drfl.resilience import FailureModel, Faulty, FirstK, OverSelection
from drfl.testing import DropoutFederation, Recording
from drfl.testing.state import leaves


def test_first_replies_in_order_are_used():
    for seed in range(4):
        whole, few = DropoutFederation(small(), seed=seed), FirstK(DropoutFederation(small(), seed=seed), 3)
        for ask in ("losses", "gradients"):
            mine, theirs = (getattr(fed, ask)(EVERYBODY, fed.w0, Key(1)) for fed in (few, whole))
            assert all(torch.equal(a, b[:3]) for a, b in zip(mine, theirs, strict=True))
        assert few.ledger == whole.ledger


def test_fewer_replies_than_wanted_are_all_used():
    fed = FirstK(DropoutFederation(small(), losses=range(6), seed=None), 3)
    assert fed.losses(EVERYBODY, fed.w0, Key(1)).clients.tolist() == [6, 7]


def test_distinct_clients_are_counted():
    class Stuttering(DropoutFederation):
        """Deliver every reply twice."""

        def ask(self, request):
            once = super().ask(request)
            return select_rows(once, torch.arange(len(once.clients)).repeat_interleave(2))

    fed = FirstK(Stuttering(small(), seed=None), 2)
    assert fed.losses(EVERYBODY, fed.w0, Key(1)).clients.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("name", long_except(["FedAvg", "SCAFFOLD", "DRFA", "ScaffPD", "DualDRDM"], ALGORITHMS))
def test_every_algorithm_continues_with_the_first_replies(name):
    many = OverSelection(algorithm(name, m=N), 3)
    faulty, fed = Faulty(many, FailureModel(slow=0.25)), Recording(small())
    result = run(faulty, fed, rounds=3, seed=2, evaluate_every=3)
    assert bool(torch.isfinite(result.state.w).all())
    assert not torch.equal(result.state.w, fed.w0)
    assert max(len(call.answered) for call in fed.calls) > 3  # below the wrapper, all clients answer
    assert all(len(info.answered) <= 3 for _, _, info in rounds(faulty, small(), 3))


@pytest.mark.parametrize("name", ["FedAvg", "DRDM", "ScaffPD"])
def test_keeping_all_replies_changes_nothing(name):
    few, alone = algorithm(name), algorithm(name)
    for (_, one, _), (_, other, _) in zip(
        rounds(OverSelection(few, 6), small(), 3), rounds(alone, small(), 3), strict=True
    ):
        assert same(one, other)


def test_state_is_that_of_the_algorithm():
    fed = small()
    many, alone = OverSelection(algorithm("DRDM"), 2), algorithm("DRDM")
    assert leaves(many.init(fed)).keys() == leaves(alone.init(fed)).keys()
    assert many.ambiguity is many.algorithm.ambiguity


@pytest.mark.long
def test_slow_clients_are_used_less_often():
    faulty = Faulty(OverSelection(algorithm("FedAvg", m=N), 3), FailureModel(slow=0.25, slowdown=20.0))
    slow = faulty.faults.pace(N, Key(0)) > 1
    heard = torch.zeros(N)
    for _, _, info in rounds(faulty, small(), 30):
        heard[info.answered] += 1
    assert heard[slow].sum() == 0
    assert heard[~slow].min() > 0.3 * heard[~slow].max()  # each 15 times on average


@pytest.mark.parametrize("keep", [0, 1.5, True])
def test_impossible_values_are_refused(keep):
    with refused("out-of-range", "keep"):
        OverSelection(algorithm("FedAvg"), keep)
