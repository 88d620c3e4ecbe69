"""One exchange: a message to each of some clients, and what has come back when its time is over."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from drfl.federation import SCALAR_BYTES, Ledger
from drfl.flower.roster import PAUSE, Node, Roster
from drfl.flower.traffic import Traffic
from drfl.flower.wire import Answer, Ask, ProtocolError, array_of, read_answer, write_ask

LOG = logging.getLogger("drfl.flower")

RETRIED = (3, 4, 5)
"""Flower's codes for a message, a reply or a node that was lost on the way: asked again while there is time."""


class Question(NamedTuple):
    """What a client is to be asked.

    Args:
        ask: the message.
        shift: (d,) the shift it means; None where there is none.
    """

    ask: Ask
    shift: Tensor | None


class Sent(NamedTuple):
    """A message on its way.

    Args:
        question: what it asks.
        node: whom it went to.
    """

    question: Question
    node: Node


class Exchanged(NamedTuple):
    """How an exchange went.

    Args:
        answers: by client, of those that gave one in time.
        cost: vectors and losses that travelled for requests; tests alone are not in it.
    """

    answers: dict[int, Answer]
    cost: Ledger


class Post:
    """Carries messages to the clients of a deployment and back, and remembers what it has learnt of them.

    Args:
        grid: Flower's.
        roster: who the nodes are.
        timeout: seconds that an exchange may take.
    """

    def __init__(self, grid: Grid, roster: Roster, timeout: float) -> None:
        self.grid, self.roster, self.timeout = grid, roster, timeout
        self.traffic = Traffic()
        self.held: dict[int, str] = {}  # client → the version of the shift that it keeps
        self.gone: set[int] = set()  # clients that were not there at the end of an exchange

    def exchange(self, questions: Mapping[int, Question]) -> Exchanged:
        """Ask clients, again where a message or a node was lost, until all have answered or the time is over."""
        start = time.monotonic()
        self.gone.difference_update(self.roster.nodes(self.grid))
        waiting = {client: asked for client, asked in questions.items() if client not in self.gone}
        on_way: dict[str, Sent] = {}
        found = Exchanged({}, Ledger())
        while waiting or on_way:
            left = start + self.timeout - time.monotonic()
            on_way |= self._send(waiting, left, found.cost)
            replies = list(self.grid.pull_messages(list(on_way))) if on_way else []
            for reply in replies:
                sent = on_way.pop(reply.metadata.reply_to_message_id, None)
                if sent is not None:
                    self._receive(reply, sent.question, found, waiting)
            if left <= 0:
                break
            if not replies and (waiting or on_way):
                time.sleep(PAUSE)
                self._recall(on_way, waiting)
        self._give_up({sent.question.ask.client for sent in on_way.values()}, set(waiting))
        self.traffic.exchanges += 1
        self.traffic.seconds += time.monotonic() - start
        return found

    def _send(self, waiting: dict[int, Question], left: float, cost: Ledger) -> dict[str, Sent]:
        """Send what waits to those that are there, and take it off the list."""
        nodes = self.roster.nodes(self.grid) if waiting else {}
        ready = [client for client in waiting if client in nodes]
        packed = {"w": array_of(waiting[ready[0]].ask.w)} if ready else {}
        messages, sent = [], []
        for client in ready:
            question = waiting.pop(client)
            ask, shift = question
            known = ask.version in ("", "zero") or self.held.get(client) == ask.version
            content = write_ask(ask, None if known else shift, packed)
            only_test = ask.request is None
            messages.append(
                Message(content, nodes[client].id, "evaluate" if only_test else "train", ttl=max(1.0, left))
            )
            sent.append(Sent(question, nodes[client]))
            self.traffic.down(content, only_test)
            if not only_test:
                cost.down(1, ask.w.numel() * ask.w.element_size() * (1 if known else 2))
        ids = list(self.grid.push_messages(messages)) if messages else []
        return {message: one for message, one in zip(ids, sent, strict=True) if message}

    def _receive(self, reply: Message, question: Question, found: Exchanged, waiting: dict[int, Question]) -> None:
        """Take a reply in, or put its client back on the list where it is to be asked again."""
        client, only_test = question.ask.client, question.ask.request is None
        name = self.roster.names[client]
        if reply.has_error():
            told = _last_line(reply.error.reason or f"error {reply.error.code}")
            if reply.error.code in RETRIED:
                LOG.warning("%s: %s; it is asked again", name, told)
                self._again(client, question, waiting)
            else:
                LOG.warning("%s failed: %s", name, told)
            return
        self.traffic.up(reply.content, only_test)
        try:
            answer = read_answer(reply.content)
        except ProtocolError as error:
            LOG.warning("%s: reply rejected, as %s", name, error)
            return
        if not only_test:
            _book(answer, found.cost)
        if answer.lacking:  # it was started anew and has forgotten its shift
            self._again(client, question, waiting)
            return
        self.traffic.worked(answer.seconds)
        if answer.version:
            self.held[client] = answer.version
        found.answers[client] = answer

    def _again(self, client: int, question: Question, waiting: dict[int, Question]) -> None:
        self.held.pop(client, None)
        waiting[client] = question

    def _recall(self, on_way: dict[str, Sent], waiting: dict[int, Question]) -> None:
        """Put clients back on the list whose node was started anew since they were asked: it knows nothing of it."""
        nodes = self.roster.nodes(self.grid)
        for message, sent in list(on_way.items()):
            client = sent.question.ask.client
            if client in nodes and nodes[client] != sent.node:
                LOG.warning("%s was started anew; it is asked again", self.roster.names[client])
                del on_way[message]
                self._again(client, sent.question, waiting)

    def _give_up(self, silent: set[int], absent: set[int]) -> None:
        """Say who did not answer in time. Nobody waits again for those that are not even there, until they are."""
        for clients, how in ((silent, "gave no reply"), (absent, "were not there")):
            if clients:
                names = ", ".join(self.roster.names[client] for client in sorted(clients))
                LOG.warning("these sites %s in %g s: %s", how, self.timeout, names)
        self.gone |= absent


def _book(answer: Answer, cost: Ledger) -> None:
    """Book a reply as a simulation does."""
    sizes = (part.numel() * part.element_size() if part.ndim else SCALAR_BYTES for part in answer.parts)
    cost.up(1, sum(sizes))
    cost.gradient_evaluations += answer.gradients
    cost.loss_evaluations += answer.losses


def _last_line(text: str) -> str:
    """The line of an exception's text that says what is wrong."""
    flower = re.fullmatch(r"<class '([^']*)'>:<'(.*)'>", text.strip(), flags=re.DOTALL)
    if flower is not None:
        text = f"{flower[1].rpartition('.')[2]}: {flower[2]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
