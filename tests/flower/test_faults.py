"""Test clients behind a grid that fail, send wrong shapes, vanish and return."""

import re

import msgspec
import pytest
import torch
from flwr.app import Error, Message
from tests.support.refusals import logged, refused

import drfl
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.flower import messages, transport
from drfl.flower import nodes as roster
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import Answer
from drfl.flower.nodes import KeyRoster, NameRoster, Node, gather_members
from drfl.flower.records import read, write
from drfl.optim.local import LocalSGD
from drfl.resilience import Protected

from .conftest import federation, grid_of, simulation, site

LOCAL = LocalSGD(steps=2, lr=0.1, batch=8)
ALL = torch.arange(4)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(roster, "PAUSE", 0.01)
    monkeypatch.setattr(transport, "PAUSE", 0.01)


THIRD = ((15.0, 5.0, 5.0, 0.0, 0.0),)
"""The sums of a test of 15 rows, five of which are right."""


class Spoiling(InProcessGrid):
    """Change requests and replies of a node on their way."""

    spoil = staticmethod(lambda reply, node: reply)

    def answer(self, message, context):
        reply = super().answer(message, context)
        return self.spoil(reply, context.node_id) if message.metadata.message_type == "train" else reply


class SpoilingTests(InProcessGrid):
    """Change node 2's test result."""

    claim = None

    def answer(self, message, context):
        reply = super().answer(message, context)
        if self.claim is not None and context.node_id == 2:
            reply.content = write(msgspec.structs.replace(read(reply.content, Answer), test=self.claim))
        return reply


def spoiling(change, node=2):
    """Make a grid that changes a node's replies to training."""

    def spoil(reply, who):
        if who != node:
            return reply
        answer = read(reply.content, Answer)
        reply.content = write(msgspec.structs.replace(answer, parts=tuple(map(change, answer.parts))))
        return reply

    grid = grid_of(grid=Spoiling)
    grid.spoil = spoil
    return grid


def trained(fed, cohort=ALL):
    return fed.train(cohort, fed.w0, LOCAL, Key(0))


def test_failing_client_counts_as_silent_and_is_named(caplog):
    sites = {name: site(name) for name in "abcd"}

    def load(context):
        if context.node_config["name"] == "c" and load.broken:
            raise RuntimeError("the disk is broken")
        return sites[context.node_config["name"]]

    load.broken = False
    fed = federation(grid_of(load=load))
    load.broken = True
    reply = trained(fed)
    assert reply.clients.tolist() == [0, 1, 3]
    assert ("reply-failed", "c") in logged(caplog)
    assert "RuntimeError: the disk is broken" in caplog.text
    assert fed.ledger.messages == 4 + 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda part: torch.cat([part, part]), "wrong shape"),
        pytest.param(lambda part: part.double(), "wrong type", marks=pytest.mark.long),
        pytest.param(lambda part: part.sum(), "wrong shape", marks=pytest.mark.long),
    ],
)
def test_wrong_shape_or_type_is_rejected_with_a_reason(change, reason, caplog):
    reply = trained(federation(spoiling(change)))
    assert reply.clients.tolist() == [0, 2, 3]
    assert ("reply-rejected", "b") in logged(caplog)
    assert re.search(rf"b: reply rejected\b.*\b{reason}$", caplog.text, flags=re.MULTILINE)


def test_nan_is_passed_on_to_the_protection(caplog):
    fed = federation(spoiling(lambda part: part * torch.nan))
    assert trained(fed).w.isnan().any(1).tolist() == [False, True, False, False]
    result = drfl.run(Protected(drfl.DualDRDM(m=4, local=LOCAL), names=tuple("abcd")), fed, rounds=3)
    assert bool(torch.isfinite(result.state.w).all())
    assert int(result.state.memory.rejected) >= 3
    assert ("reply-rejected", "b") in logged(caplog)
    assert re.search(r"b: reply rejected\b.*\bNaN\b", caplog.text)


def test_foreign_replies_are_rejected(caplog):
    grid = grid_of(grid=Spoiling)
    grid.spoil = lambda reply, node: Message(type(reply.content)(), reply_to=reply) if node == 1 else reply
    with_id = grid.answer

    def answer(message, context):
        reply = with_id(message, context)
        reply.metadata.__dict__["_reply_to_message_id"] = message.metadata.message_id
        return reply

    grid.answer = answer
    assert trained(federation(grid)).clients.tolist() == [1, 2, 3]
    assert ("reply-rejected", "a") in logged(caplog)


def test_shift_is_sent_once_and_again_if_lost():
    grid = grid_of()
    fed = federation(grid)
    drdm = drfl.DRDM(m=4, local=LOCAL, sampling=sampling.all_clients)
    state = drdm.init(fed)
    state, _ = drdm.round(state, fed, Key(0).fold("round", 1))
    before = fed.traffic.bytes_down
    state, _ = drdm.round(state, fed, Key(0).fold("round", 2))
    kept = fed.traffic.bytes_down - before
    for context in grid.contexts.values():
        context.state.clear()  # as if all SuperNodes had restarted
    messages, before = fed.traffic.messages, fed.traffic.bytes_down
    state, _ = drdm.round(state, fed, Key(0).fold("round", 3))
    vector = state.w.numel() * 4
    assert fed.traffic.bytes_down - before > kept + 4 * vector  # the vectors, and the requests that found no shift
    assert fed.traffic.messages - messages == 2 * (4 + 4) + 2 * 4  # training twice, losses once
    alone = simulation()
    same = drdm.init(alone)
    for r in (1, 2, 3):
        same, _ = drdm.round(same, alone, Key(0).fold("round", r))
    assert torch.equal(state.w, same.w)


def test_absent_site_is_awaited_once_and_used_again(monkeypatch, caplog):
    grid = grid_of()
    fed = federation(grid, timeout=0.1)
    grid.offline.add(4)
    assert trained(fed).clients.tolist() == [0, 1, 2]
    assert "sites-missing" in [code for code, _ in logged(caplog)]
    assert "0.1 s: d" in caplog.text
    monkeypatch.setattr(transport.time, "sleep", lambda seconds: pytest.fail("it waited"))
    assert trained(fed).clients.tolist() == [0, 1, 2]
    grid.offline.clear()
    grid.contexts[9] = grid.contexts.pop(4)  # it returns under another id
    grid.contexts[9].node_id = 9
    assert trained(fed).clients.tolist() == [0, 1, 2, 3]


class Restarting(InProcessGrid):
    """Kill and restart a node before it answers its first training request."""

    starts = 0

    def get_nodes(self):
        nodes = super().get_nodes()
        for node in nodes:
            node.last_activated_at = str(self.starts if node.node_id == 2 else 0)
        return nodes

    def answer(self, message, context):
        reply = super().answer(message, context)
        if message.metadata.message_type == "train" and context.node_id == 2 and not self.starts:
            self.starts += 1
            reply.metadata.__dict__["_reply_to_message_id"] = "lost"
            self.lost = message.metadata.message_id
        return reply

    def pull_messages(self, message_ids):
        return [reply for reply in super().pull_messages(message_ids) if reply.metadata.reply_to_message_id != "lost"]


def test_restarted_site_is_asked_again_before_the_timeout(caplog):
    fed = federation(grid_of(grid=Restarting), timeout=3600.0)
    assert trained(fed).clients.tolist() == [0, 1, 2, 3]
    assert ("asked-again", "b") in logged(caplog)


def test_lost_message_is_sent_again(caplog):
    grid = grid_of(grid=Spoiling)
    lost = []

    def lose(reply, node):
        if node == 3 and not lost:
            lost.append(node)
            return Message(Error(5, "the node is gone"), reply_to=reply)
        return reply

    answer = grid.answer

    def again(message, context):
        reply = answer(message, context)
        reply.metadata.__dict__["_reply_to_message_id"] = message.metadata.message_id
        return reply

    grid.spoil, grid.answer = lose, again
    assert trained(federation(grid)).clients.tolist() == [0, 1, 2, 3]
    assert ("asked-again", "c") in logged(caplog)


def test_lost_description_is_requested_again():
    lost = []

    class Losing(InProcessGrid):
        def answer(self, message, context):
            if context.node_id == 3 and message.metadata.message_type == "query.identity" and len(lost) < 2:
                lost.append(message)
                return Message(Error(4, "Message Unavailable"), reply_to=message)
            return super().answer(message, context)

    members = gather_members(grid_of(grid=Losing), NameRoster("abcd", 5.0), 5.0, 5.0)
    assert [member.identity.name for member in members.values()] == ["a", "b", "c", "d"]
    assert len(lost) == 2


def test_site_that_does_not_answer_has_no_result_in_a_separate_test(caplog):
    grid = grid_of()
    fed = federation(grid, timeout=0.05)
    before = fed.evaluate(fed.w0)
    grid.offline.add(2)
    after = fed.evaluate(fed.w0 + 1)
    assert after.score.isnan().tolist() == [False, True, False, False]
    assert after.sums is not None
    assert after.sums.isnan().all((1, 2)).tolist() == [False, True, False, False]
    assert fed.untested == ("b",)
    assert not torch.equal(after.loss, before.loss)
    assert after.loss.isfinite().all()
    assert ("site-untested", "b") in logged(caplog)
    grid.offline.clear()
    assert fed.evaluate(fed.w0 + 1).score.isfinite().all()
    assert fed.untested == ()
    fresh = federation(grid, timeout=0.05)
    grid.offline.add(2)
    with refused("site-untested", "b"):
        fresh.evaluate(fed.w0)


def test_silent_site_keeps_its_last_result_in_a_test_with_a_request():
    grid = grid_of()
    fed = federation(grid, timeout=0.05)
    before = fed.evaluate(fed.w0)
    grid.offline.add(2)
    later = fed.evaluate_later([fed.w0])
    trained(fed)
    (after,) = later()
    assert float(after.score[1]) == float(before.score[1])
    assert fed.untested == ("b",)


@pytest.mark.parametrize(
    "found",
    [
        (float("nan"), 0.1, 15, (), THIRD),
        pytest.param((1.5, 0.1, 15, (), THIRD), marks=pytest.mark.long),
        (1 / 3, float("inf"), 15, (), THIRD),
        pytest.param((1 / 3, 0.1, 0, (), THIRD), marks=pytest.mark.long),
        pytest.param((1 / 3, 0.1, 15, (), ((15.0, 6.0, 6.0, 0.0, 0.0),)), marks=pytest.mark.long),
    ],
)
def test_impossible_test_result_is_rejected(found, caplog):
    grid = grid_of(grid=SpoilingTests)
    fed = federation(grid)
    before = fed.evaluate(fed.w0)
    grid.claim = messages.SiteTest(*found)
    later = fed.evaluate_later([fed.w0])
    trained(fed)
    (after,) = later()
    assert torch.equal(before.score, after.score)
    assert torch.equal(before.loss, after.loss)
    assert ("site-untested", "b") in logged(caplog)


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ("<class 'drfl.flower.client_app.HungError'>:<'it took 10 s'>", "it took 10 s"),
        ("<class 'builtins.TimeoutError'>:<'it took 10 s'>", "TimeoutError: it took 10 s"),
        ("<class 'KeyError'>:<''a''>", "KeyError: 'a'"),
        pytest.param("one\n  two \n", "two", marks=pytest.mark.long),
        pytest.param(" \n", "no reason given", marks=pytest.mark.long),
    ],
)
def test_informative_line_of_a_traceback(told, line, caplog):
    class Failing(InProcessGrid):
        def answer(self, message, context):
            if context.node_id == 2 and message.metadata.message_type == "train":
                return Message(Error(2, told), reply_to=message)
            return super().answer(message, context)

    assert trained(federation(grid_of(grid=Failing))).clients.tolist() == [0, 2, 3]
    assert caplog.text.splitlines()[-1].endswith(f" b failed: {line}")


def test_missing_sites_are_named():
    with refused("sites-missing", None, "0.05 s", "e, f"):
        gather_members(grid_of(), NameRoster("abef"), 0.05, 1.0)


def test_nodes_are_identified_by_key_and_strangers_excluded():
    grid = grid_of()
    grid.keys = {1: b"D", 2: b"nobody's", 3: b"B", 4: b"A"}
    assert KeyRoster(("a", "b", "c", "d"), (b"A", b"B", b"C", b"D")).nodes(grid) == {
        0: Node(4),
        1: Node(3),
        3: Node(1),
    }


def test_second_site_of_the_same_name_is_excluded():
    known, grid = NameRoster("ab", 1.0), grid_of("aba")
    assert known.nodes(grid) == {0: Node(1), 1: Node(2)}
    grid.offline.add(1)
    assert known.nodes(grid) == {0: Node(3), 1: Node(2)}
