"""Test algorithms with client failures: they finish, lose the same clients, and keep state between rounds."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from tests.resilience.subjects import N, algorithm, rounds, same, small, who
from tests.support.marks import crossed, long_except
from tests.support.refusals import refused

from drfl import run
from drfl.algorithms import ALGORITHMS
from drfl.engine import Threads
from drfl.federation import sampling
from drfl.federation.algorithm import Info
from drfl.resilience import FailureModel, Faulty

FAULTS = {
    "drop": FailureModel(drop=0.5),
    "crash": FailureModel(crash=0.5),
    "outage": FailureModel(outage=0.4, groups=3, outage_rounds=2),
    "deadline": FailureModel(slow=0.25, deadline=3.5),
    "all": FailureModel(drop=0.2, crash=0.2, outage=0.2, groups=4, slow=0.25, slowdown=3.0, deadline=5.0),
    "nobody": FailureModel(drop=1.0),
}


@pytest.mark.parametrize("name", long_except(["FedAvg", "SCAFFOLD", "DRFA", "DRDM", "ScaffPD"], ALGORITHMS))
def test_zero_probabilities_change_nothing(name):
    alone, faulty, mine, theirs = algorithm(name), Faulty(algorithm(name)), small(), small()
    pairs = zip(rounds(alone, mine, 3), rounds(faulty, theirs, 3), strict=True)
    for (_, expected, _), (_, found, _) in pairs:
        assert same(expected, found.inner)
        assert found.memory.down.tolist() == [0]
    assert mine.ledger == theirs.ledger


@pytest.mark.parametrize(("kind", "name"), crossed(list(FAULTS), list(ALGORITHMS)))
def test_every_algorithm_continues(name, kind):
    fed, heard = small(), []
    faulty = Faulty(algorithm(name), FAULTS[kind])
    result = run(faulty, fed, rounds=5, seed=3, evaluate_every=5, callbacks=[lambda step: heard.append(step.info)])
    lam = result.lam
    assert bool(torch.isfinite(result.state.w).all() and torch.isfinite(lam).all())
    assert abs(float(lam.sum()) - 1) < 1e-9
    asked = sum(len(info.cohort.clients) for info in heard[1:])
    answered = sum(len(info.answered) for info in heard[1:])
    assert answered < asked or name in ("DeltaFL", "ScaffPD")  # these train only clients that have already answered
    assert (answered == 0) == (kind == "nobody") == (result.skipped == 5) == torch.equal(result.state.w, fed.w0)


TABLES = [
    pytest.param(name, table, id=name)
    for name, table in {"SCAFFOLD": "c_i", "FedDyn": "h", "DRDM": "h", "DualDRDM": "h", "ScaffPD": "reports"}.items()
]


@pytest.mark.parametrize(("kind", "name", "table"), crossed(["drop", "crash", "all"], TABLES))
def test_rows_of_silent_clients_are_unchanged(name, table, kind):
    missed = changed = 0
    for before, after, info in rounds(Faulty(algorithm(name), FAULTS[kind]), small(), 8):
        old, new = (getattr(state.inner, table) for state in (before, after))
        if name == "ScaffPD":
            moved = (old.c.dense() != new.c.dense()).any(1) | (old.losses != new.losses)
        else:
            moved = (old.dense() != new.dense()).any(1)
        assert moved.nonzero().flatten().tolist() == info.answered.sort().values.tolist()
        changed += int(moved.sum())
        missed += len(info.cohort.clients) - len(info.answered)
        if name in ("SCAFFOLD", "FedDyn", "DRDM"):  # c is the mean of all rows, including silent clients
            torch.testing.assert_close(after.inner.c, new.dense().mean(0))
    assert changed > 0
    assert missed > 0 or (name, kind) == ("ScaffPD", "crash")  # it trains only clients that reported, which may be all


def test_wrapper_state_has_fixed_names_and_shapes():
    fed = small()
    for faults in (FailureModel(), FailureModel(outage=0.5, groups=3, outage_rounds=4)):
        state = Faulty(algorithm("FedAvg"), faults).init(fed)
        assert state.memory._fields == ("down",)
        assert (state.memory.down.shape, state.memory.down.dtype) == ((faults.groups,), torch.int64)
    with refused("out-of-range", "groups", "groups=9"):
        Faulty(algorithm("FedAvg"), FailureModel(groups=9)).init(fed)


def test_outage_silences_a_group_for_its_duration():
    faults = FailureModel(outage=0.3, groups=3, outage_rounds=3)
    group = torch.arange(N) % 3
    ages, whole = [0, 0, 0], []
    for before, after, info in rounds(Faulty(algorithm("FedAvg", m=N), faults), small(), 30):
        down = ~torch.isin(torch.arange(N), info.answered)
        struck = [bool(down[group == g].all()) for g in range(3)]
        assert [bool(down[group == g].any()) for g in range(3)] == struck
        for g in range(3):
            assert struck[g] or before.memory.down[g] == 0
            ages[g] = ages[g] + 1 if struck[g] else 0
            assert int(after.memory.down[g]) == (-ages[g]) % 3 if struck[g] else int(after.memory.down[g]) == 0
        whole += struck
    assert 0 < sum(whole) < len(whole)


@pytest.mark.long
def test_same_seed_gives_the_same_run_on_another_engine():
    runs = [run(Faulty(algorithm("DualDRDM"), FAULTS["all"]), small(), rounds=6, seed=s) for s in (1, 1, 2)]
    assert same(runs[0].state, runs[1].state)
    assert runs[0].history.last.ledger == runs[1].history.last.ledger
    assert not torch.equal(runs[0].state.w, runs[2].state.w)
    threads = run(Faulty(algorithm("DualDRDM"), FAULTS["all"]), small(Threads()), rounds=6, seed=1)
    torch.testing.assert_close(threads.state.w, runs[0].state.w)
    assert threads.history.last.ledger == runs[0].history.last.ledger


def test_run_resumes_where_it_stopped():
    faulty, kept = Faulty(algorithm("DRDM"), FAULTS["outage"]), []
    whole = run(faulty, small(), rounds=8, seed=4, keep=lambda progress, stopping: kept.append(progress))
    middle = next(progress for progress in kept if progress.state.memory.down.any())
    again = run(faulty, small(), rounds=8, seed=4, start=middle)
    assert same(whole.state, again.state)


def test_two_algorithms_lose_the_same_clients():
    seen = []
    for name in ("FedAvg", "DRDM", "AFL"):
        parameters = {"sampling": sampling.all_clients} if name == "DRDM" else {}
        faulty = Faulty(algorithm(name, m=N, **parameters), FAULTS["all"])
        seen.append([info.answered.tolist() for _, _, info in rounds(faulty, small(), 6)])
    assert seen[0] == seen[1] == seen[2]
    assert len({str(one) for one in seen[0]}) > 3


class Recorded(NamedTuple):
    w: torch.Tensor
    answered: torch.Tensor


class AsksForEverything:
    """Ask all clients for everything, and record which answer."""

    local = None

    def init(self, fed):
        return Recorded(fed.w0, torch.zeros(3, N, dtype=torch.bool))

    def round(self, state, fed, key):
        everybody, kinds = torch.arange(N), (fed.losses, fed.gradients)
        up = fed.train(everybody, fed.w0, algorithm("FedAvg").local, key)
        replies = [up, *(ask(everybody, fed.w0, key) for ask in kinds)]
        cohort = sampling.all_clients(torch.full((N,), 1 / N), N, key)
        answered = torch.stack([torch.isin(everybody, reply.clients) for reply in replies])
        return Recorded(fed.w0, answered), Info(cohort, everybody)


@pytest.mark.parametrize("kind", ["drop", "crash"])
def test_dropout_applies_to_a_round_and_crash_to_training(kind):
    found = [answered for _, answered, _ in rounds(Faulty(AsksForEverything(), FAULTS[kind]), small(), 6)]
    for train, losses, gradients in (state.inner.answered.tolist() for state in found):
        assert losses == gradients
        assert (train == losses != [True] * N) if kind == "drop" else (train != losses == [True] * N)


def test_tuple_of_probabilities():
    drop = tuple(float(hit) for hit in who(1, 6).tolist())
    for _, _, info in rounds(Faulty(algorithm("FedAvg", m=N), FailureModel(drop=drop)), small(), 3):
        assert info.answered.tolist() == [0, 2, 3, 4, 5, 7]
    with refused("count-mismatch", "drop"):
        Faulty(algorithm("FedAvg"), FailureModel(drop=(0.1,))).init(small())
