"""Test that clients in outage do not answer."""

from __future__ import annotations

import pytest
import torch
from tests.papers.energy.jobs import ALGORITHMS, LOCAL, digits
from tests.support.marks import long_beyond

from drfl import Key, run
from drfl.resilience import LostReplies, UnreliableFederation
from drfl.testing import Recording
from drfl_papers.energy import Channel, Metered, OverChannel, Rayleigh

EVERYBODY = torch.arange(8)
VECTOR = 650 * 4


def absent(*clients):
    return torch.isin(EVERYBODY, torch.tensor(clients, dtype=torch.int64))


def some_fading(rate_min=7e5, n=8):
    return Rayleigh(Channel.uniform(n, 1e6, 0.0), rate_min)


def test_absent_clients_do_not_answer_and_others_are_unaffected():
    fed, key = digits(), Key(1)
    lossy = UnreliableFederation(fed, lost=LostReplies(absent(2, 5)))
    up = lossy.train(EVERYBODY, fed.w0, LOCAL, key, snapshot=1)
    full = fed.train(EVERYBODY, fed.w0, LOCAL, key, snapshot=1)
    there = [0, 1, 3, 4, 6, 7]
    assert up.clients.tolist() == there
    assert torch.equal(up.w, full.w[there])
    assert torch.equal(up.snapshot, full.snapshot[there])
    assert up.average is None
    f, g = lossy.losses(EVERYBODY, fed.w0, key), lossy.gradients(EVERYBODY, fed.w0, key)
    assert f.clients.tolist() == g.clients.tolist() == there
    assert torch.equal(f.values, fed.losses(EVERYBODY, fed.w0, key).values[there])
    assert len(g.values) == len(g.losses) == 6


def test_ledger_counts_downloads_but_not_lost_uploads():
    fed = digits()
    UnreliableFederation(fed, lost=LostReplies(absent(2, 5))).train(
        EVERYBODY, fed.w0, LOCAL, Key(1), shift=torch.zeros(8, 650), snapshot=1
    )
    found = fed.ledger
    assert (found.bytes_down, found.bytes_up, found.messages) == (8 * 2 * VECTOR, 6 * 2 * VECTOR, 14)
    assert found.gradient_evaluations == 8 * 2 * 8  # absent clients also computed
    UnreliableFederation(fed, lost=LostReplies(absent(2, 5))).losses(EVERYBODY, fed.w0, Key(1), batch=4)
    assert found.bytes_up == 6 * 2 * VECTOR + 6 * 8
    UnreliableFederation(fed, lost=LostReplies(absent(*range(8)))).gradients(EVERYBODY, fed.w0, Key(1), batch=4)
    assert found.bytes_up == 6 * 2 * VECTOR + 6 * 8
    assert found.bytes_down == 8 * 2 * VECTOR + 2 * 8 * VECTOR


def test_wrapper_without_absences_equals_the_wrapped_federation():
    fed, other, key = digits(), digits(), Key(1)
    full = UnreliableFederation(fed, lost=LostReplies(absent()))
    for f in (full, other):
        f.train(EVERYBODY, fed.w0, LOCAL, key, average=True)
    pairs = [(f.losses(EVERYBODY, fed.w0, key), f.gradients(EVERYBODY, fed.w0, key)) for f in (full, other)]
    assert all(torch.equal(a, b) for mine, his in zip(*pairs, strict=True) for a, b in zip(mine, his, strict=True))
    assert full.ledger == other.ledger
    assert (full.n, full.w0.tolist()) == (other.n, other.w0.tolist())
    assert torch.equal(full.shares, other.shares)
    assert torch.equal(full.evaluate(fed.w0).loss, other.evaluate(fed.w0).loss)


@pytest.mark.parametrize("name", long_beyond(2, ALGORITHMS))
def test_every_algorithm_continues_with_absent_clients(name):
    fading, log, answers = some_fading(), [], []
    algorithm = OverChannel(Metered(ALGORITHMS[name], log), fading)

    def note(step):
        if step.info is not None:
            answers.append(step.info)

    result = run(algorithm, digits(), rounds=12, seed=3, evaluate_every=12, callbacks=[note])
    again = run(OverChannel(ALGORITHMS[name], fading), digits(), rounds=12, seed=3, evaluate_every=12)
    assert torch.equal(result.state.w, again.state.w)
    assert torch.equal(result.lam, again.lam)
    assert result.history.last.ledger == again.history.last.ledger
    assert result.history.last.metrics.avg_loss < result.history.rows[0].metrics.avg_loss
    for r, info in enumerate(answers, start=1):
        gone = fading.absent(Key(3).fold("round", r))
        assert info.answered.tolist() == [i for i in info.cohort.clients.tolist() if not gone[i]]
        if info.losses is not None:
            assert not gone[info.losses.clients].any()
        assert not log[r - 1].up[gone[log[r - 1].clients]].any()
    assert 0 < sum(len(info.answered) for info in answers) < sum(len(info.cohort.clients) for info in answers)


def test_draw_applies_to_the_whole_round():
    recording = Recording(digits())
    run(OverChannel(ALGORITHMS["DRDM"], some_fading()), recording, rounds=5, seed=1)
    assert [call.kind for call in recording.calls].count("losses") == 5  # requests reach the inner federation

    class Spy:
        """Record which clients answer which requests."""

        def __init__(self):
            self.seen = []

        @property
        def local(self):
            return LOCAL

        def init(self, fed):
            return ALGORITHMS["FedAvg"].init(fed)

        def round(self, state, fed, key):
            for purpose in ("a", "b"):
                reports = fed.losses(EVERYBODY, state.w, key.fold(purpose, purpose))
                self.seen.append(reports.clients.tolist())
            self.seen.append(fed.train(EVERYBODY, state.w, LOCAL, key.fold("c")).clients.tolist())
            return ALGORITHMS["FedAvg"].round(state, fed, key)

    spy = Spy()
    run(OverChannel(spy, some_fading()), digits(), rounds=6)
    rounds = [spy.seen[3 * r : 3 * r + 3] for r in range(6)]
    assert all(one == two == three for one, two, three in rounds)
    assert len({str(one) for one, _, _ in rounds}) > 1


def test_two_algorithms_lose_the_same_clients_in_a_round():
    fading = some_fading()
    seen = []
    for name in ("FedAvg", "ScaffPD"):
        infos = []
        run(OverChannel(ALGORITHMS[name], fading), digits(), rounds=4, callbacks=[lambda s, i=infos: i.append(s.info)])
        seen.append([info.answered.tolist() for info in infos[1:]])
    assert seen[0] == seen[1]


def test_permanent_outage_leaves_the_model_unchanged():
    fed = digits()
    result = run(OverChannel(ALGORITHMS["DRDM"], some_fading(1e12)), fed, rounds=3)
    assert result.skipped == 3
    assert torch.equal(result.state.w, fed.w0)
    assert result.history.last.ledger["bytes_up"] == 0
    assert result.history.last.ledger["bytes_down"] > 0


def test_attributes_of_the_algorithm_are_visible():
    wrapped = OverChannel(ALGORITHMS["DRFA"], some_fading())
    assert wrapped.local is LOCAL
    assert wrapped.ambiguity is ALGORITHMS["DRFA"].ambiguity
    assert OverChannel(ALGORITHMS["FedAvg"], some_fading()).ambiguity is None
