"""Test that rounds with too few replies are skipped or repeated, and leave only their cost."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from tests.resilience.subjects import N, algorithm, rounds, same, small
from tests.support.marks import long_except
from tests.support.refusals import refused

from drfl import run
from drfl.algorithms import ALGORITHMS
from drfl.core.key import Key
from drfl.federation.algorithm import Info
from drfl.federation.sampling import all_clients
from drfl.resilience import FailureModel, Faulty, Quorum

HALF = FailureModel(drop=0.5)


class Keys(NamedTuple):
    w: torch.Tensor
    rounds: torch.Tensor
    call: torch.Tensor


class Scripted:
    """Make a round in which the number of answering clients follows a script; the state counts rounds and calls."""

    local = None

    def __init__(self, *answers):
        self.answers, self.keys = list(answers), []

    def init(self, fed):
        return Keys(fed.w0, torch.tensor(0), torch.tensor(0))

    def round(self, state, fed, key):
        self.keys.append(key)
        cohort = all_clients(torch.full((N,), 1 / N), N, key)
        return Keys(state.w, state.rounds + 1, torch.tensor(len(self.keys))), Info(
            cohort, torch.arange(self.answers.pop(0))
        )


KEY = Key(5).fold("round", 2)
AGAIN = [KEY.fold("again", k) for k in (1, 2, 3)]


@pytest.mark.parametrize(
    ("options", "answers", "keys", "used"),
    [
        ({}, [4], [KEY], KEY),
        ({}, [3], [KEY], None),
        ({"max_repeats": 2}, [0], [KEY], None),
        ({"action": "repeat"}, [5], [KEY], KEY),
        ({"action": "repeat"}, [3, 0, 4], [KEY, *AGAIN[:2]], AGAIN[1]),
        ({"action": "repeat"}, [3, 0, 1, 4], [KEY, *AGAIN], AGAIN[2]),
        ({"action": "repeat"}, [3, 0, 1, 2], [KEY, *AGAIN], None),
        ({"action": "repeat", "max_repeats": 1}, [3, 2], [KEY, AGAIN[0]], None),
    ],
)
def test_repeated_and_skipped_rounds(options, answers, keys, used):
    script, fed = Scripted(*answers), small()
    before = script.init(fed)
    state, info = Quorum(script, 4, **options).round(before, fed, KEY)
    assert script.keys == keys
    assert (int(state.rounds), int(state.call)) == ((0, 0) if used is None else (1, keys.index(used) + 1))
    assert (state is before) == (used is None)
    assert info.is_empty == (used is None)
    assert len(info.answered) == (0 if used is None else answers[-1])
    assert len(info.cohort.clients) == N


@pytest.mark.parametrize("name", long_except(["FedAvg", "SCAFFOLD", "DRFA", "DRDM", "ScaffPD"], ALGORITHMS))
def test_run_without_faults_is_unchanged(name):
    pairs = zip(
        rounds(Quorum(algorithm(name), 1, action="repeat"), small(), 2),
        rounds(algorithm(name), small(), 2),
        strict=True,
    )
    for (_, one, _), (_, other, _) in pairs:
        assert same(one, other)


def test_skipped_rounds_keep_state_and_cost():
    fed, skipped = small(), 0
    for before, after, info in rounds(Quorum(Faulty(algorithm("SCAFFOLD", m=N), HALF), 5), fed, 12):
        skipped += info.is_empty
        assert (after is before) == info.is_empty
        assert info.is_empty or len(info.answered) >= 5
    assert 0 < skipped < 12
    plain = small()
    for _ in rounds(Faulty(algorithm("SCAFFOLD", m=N), HALF), plain, 12):
        pass
    assert fed.ledger.messages == plain.ledger.messages


def test_repetition_costs_and_helps():
    skip, again = (
        run(Quorum(Faulty(algorithm("DRFA"), HALF), 3, action=then), small(), rounds=12, seed=1, evaluate_every=12)
        for then in ("skip", "repeat")
    )
    assert again.skipped < skip.skipped
    assert again.history.last.ledger["messages"] > skip.history.last.ledger["messages"]


def test_state_of_inner_wrappers_is_kept():
    faulty = Faulty(algorithm("FedAvg", m=N), FailureModel(outage=0.5, groups=2, outage_rounds=4))
    kept = 0
    for before, after, info in rounds(Quorum(faulty, N), small(), 8):
        assert info.is_empty or not after.memory.down.any()
        kept += after is before
    assert 0 < kept < 8


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"min_replies": 0}, ("out-of-range", "min_replies")),
        ({"min_replies": 1, "max_repeats": 0}, ("out-of-range", "max_repeats")),
        ({"min_replies": 1, "action": "stop"}, ("invalid-value", "action")),
    ],
)
def test_impossible_values_are_refused(options, error):
    with refused(*error):
        Quorum(algorithm("FedAvg"), **options)


def test_min_replies_above_the_number_of_clients_is_refused():
    with refused("out-of-range", "min_replies", "min_replies=9"):
        Quorum(algorithm("FedAvg"), 9).init(small())
