"""Test how long an exchange lasts, which sites it skips, and how often a site is asked."""

import re
import time

import pytest
import torch
from tests.support.refusals import logged, refused

import drfl
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.federation import Ledger
from drfl.flower import nodes, transport
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import Answer, Ask
from drfl.flower.nodes import NameRoster, gather_members
from drfl.flower.records import read, write
from drfl.flower.site_health import LONGEST, SiteHealth
from drfl.flower.transport import PendingRequest
from drfl.optim.local import LocalSGD

from .conftest import federation, grid_of

LOCAL = LocalSGD(steps=2, lr=0.1, batch=8)
ALL = torch.arange(4)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    for module in (nodes, transport):
        monkeypatch.setattr(module, "PAUSE", 0.005)


class Asleep(InProcessGrid):
    """Some nodes receive messages and never reply."""

    asleep: frozenset[int] = frozenset()

    def answer(self, message, context):
        reply = super().answer(message, context)
        if context.node_id in self.asleep:
            reply.metadata.__dict__["_reply_to_message_id"] = "nobody's"
        return reply


class Forgetful(InProcessGrid):
    """Node 2 claims to lack the shift, for every request or for those that name a stored one."""

    always = True

    def answer(self, message, context):
        reply = super().answer(message, context)
        named = read(message.content, Ask).version if message.metadata.message_type == "train" else ""
        if context.node_id == 2 and named and (self.always or named != "zero"):
            reply.content = write(Answer(lacking=True))
        return reply


def sleepy(timeout, asleep=(4,), deadline=None):
    grid = grid_of(grid=Asleep)
    fed = federation(grid, timeout=timeout, deadline=deadline)
    fed.evaluate(fed.w0)
    grid.asleep = frozenset(asleep)
    return grid, fed


def trained(fed, r=0, who=ALL):
    return fed.train(who, fed.w0, LOCAL, Key(0).fold("round", r)).clients.tolist()


def asked(grid, node, call):
    before = grid.count[node]
    call()
    return grid.count[node] - before


@pytest.mark.long
def test_silent_site_costs_fewer_and_fewer_exchanges(caplog):
    grid, fed = sleepy(0.05)
    counts = [asked(grid, 4, lambda r=r: trained(fed, r)) for r in range(16)]
    assert counts == [1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert fed.site_health()["d"]["silent"] == 4
    assert fed.site_health()["d"]["left_out"] == 12
    assert ("reply-silent", "d") in logged(caplog)
    skipped = [r.getMessage() for r in caplog.records if getattr(r.msg, "code", None) == "site-skipped"]
    assert any(re.match(r"d\b.*\b4\b.*\b8\b", text) for text in skipped)
    assert re.match(r"d\b\D*\bexchange\Z", skipped[0])


def test_usable_reply_ends_the_backoff():
    grid, fed = sleepy(0.05)
    assert trained(fed) == [0, 1, 2]
    grid.asleep = frozenset()
    assert trained(fed, 1) == [0, 1, 2]
    assert trained(fed, 2) == [0, 1, 2, 3]
    assert trained(fed, 3) == [0, 1, 2, 3]


def test_with_a_quorum_the_server_waits_only_the_grace_period():
    _, fed = sleepy(60.0, deadline={"quorum": 3, "grace": 0.02})
    start = time.monotonic()
    assert trained(fed) == [0, 1, 2]
    assert time.monotonic() - start < 30  # far below the timeout, even on a busy machine
    assert fed.site_health()["d"]["silent"] == 1


def test_below_the_quorum_the_server_waits_for_all_sites():
    grid, fed = sleepy(0.05, asleep=(3, 4), deadline={"quorum": 3, "grace": 0.0})
    assert trained(fed) == [0, 1]
    assert asked(grid, 4, lambda: trained(fed, 1)) == 1  # though it was silent
    grid.asleep = frozenset()
    assert trained(fed, 2) == [0, 1, 2, 3]


@pytest.mark.long
def test_server_waits_if_all_sites_are_in_backoff():
    """If the server skipped all sites, the rest of a run would end at once without any result."""
    grid, fed = sleepy(0.05, asleep=(1, 2, 3, 4))
    for r in range(3):
        assert asked(grid, 1, lambda r=r: trained(fed, r)) == 1
    grid.asleep = frozenset()
    assert trained(fed, 3) == [0, 1, 2, 3]


def test_untested_site_is_awaited_despite_a_quorum():
    grid = grid_of(grid=Asleep)
    fed = federation(grid, timeout=0.05, deadline={"quorum": 1, "grace": 0.0})
    grid.asleep = frozenset({2})
    with refused("site-untested", "b"):
        fed.evaluate(fed.w0)
    before = grid.count[2]
    with refused("site-untested", "b"):
        fed.evaluate(fed.w0)
    assert grid.count[2] - before == 1  # though it was silent


@pytest.mark.parametrize(("always", "messages"), [pytest.param(True, 1, marks=pytest.mark.long), (False, 2)])
def test_site_that_denies_receiving_the_shift_is_rejected(always, messages, caplog):
    """It is asked again once, and only if the shift was not in the message."""
    grid = grid_of(grid=Forgetful)
    grid.always = False
    fed = federation(grid)
    drdm = drfl.DRDM(m=4, local=LOCAL, sampling=sampling.all_clients)
    state = drdm.init(fed)
    if not always:  # shifts are zero only in the first round
        state, _ = drdm.round(state, fed, Key(0).fold("round", 1))
    grid.always = always
    before = grid.count[2]
    state, info = drdm.round(state, fed, Key(0).fold("round", 2))
    assert info.answered.tolist() == [0, 2, 3]
    assert grid.count[2] - before == messages + 1  # the request for losses has no shift
    assert ("reply-rejected", "b") in logged(caplog)
    assert re.search(r"b: reply rejected: [^.]*\black\b", caplog.text)


def test_repetitions_have_growing_intervals():
    pending = PendingRequest(None, None)
    dues = []
    for sent in range(1, 12):
        pending.attempts = sent
        pending.schedule_retry()
        dues.append(max(0.0, pending.due - time.monotonic()))
    assert dues[0] == 0.0
    assert dues[1] == pytest.approx(0.01, abs=0.005)
    assert max(dues) <= transport.LONGEST_PAUSE


def test_oversized_reply_is_not_read(monkeypatch, caplog):
    seen = []
    monkeypatch.setattr(transport, "max_reply_bytes", lambda w: 10)
    monkeypatch.setattr(transport, "read", lambda *content: seen.append(content))
    assert trained(federation()) == []
    assert not seen
    assert "10 bytes" in caplog.text


class Malformed(InProcessGrid):
    """Flower cannot decode the reply of node 3."""

    def pull_messages(self, message_ids):
        found = super().pull_messages(message_ids)
        if any(reply.metadata.src_node_id == 3 and self.count[3] > 2 for reply in found):
            raise ValueError("Unsupported \x1b[2J record type: None")
        return found


def test_undecodable_message_does_not_affect_other_replies(caplog):
    grid = grid_of(grid=Malformed)
    fed = federation(grid)
    assert trained(fed) == [0, 1, 3]
    assert ("reply-rejected", "c") in logged(caplog)
    assert "(ValueError: Unsupported  [2J record type: None)" in caplog.text


class Impostor(InProcessGrid):
    """Node 2 answers in place of node 1, after some messages."""

    after = 2

    def pull_messages(self, message_ids):
        found = super().pull_messages(message_ids)
        for reply in found:
            if reply.metadata.src_node_id == 1 and self.count[1] > self.after:
                reply.metadata.__dict__["_src_node_id"] = 2
        return found


def test_reply_from_another_node_is_rejected(caplog):
    assert trained(federation(grid_of(grid=Impostor))) == [1, 2, 3]
    assert ("reply-rejected", "a") in logged(caplog)
    assert re.search(r"a: reply rejected: [^.]*\banother node\b", caplog.text)


def test_description_from_another_node_is_rejected(monkeypatch):
    monkeypatch.setattr(Impostor, "after", 0)
    with refused("sites-missing", None, "a"):
        gather_members(grid_of(grid=Impostor), NameRoster("abcd", 0.5, dict(enumerate("abcd", start=1))), 1.0, 0.5)


def test_backoff_schedule():
    one = SiteHealth()
    pauses = []
    for _ in range(5):
        one.record_unusable("rejected")
        pauses.append(one.backoff)
    assert pauses == [0, 0, 1, 2, 4]
    for _ in range(20):
        one.record_unusable("silent")
    assert one.backoff == LONGEST
    one.record_usable()
    assert (one.strikes, one.backoff, one.answered, one.rejected, one.silent) == (0, 0, 1, 5, 20)


def test_ledger_accepts_the_largest_counts_of_a_reply():
    ledger = Ledger()
    for _ in range(1000):
        ledger.add(Ledger(gradient_evaluations=2**40))
    torch.tensor([list(ledger.totals().values())])  # as a checkpoint keeps it
