"""Requests to sites and their replies over Flower: deadlines, repeats, and sites that are skipped for a while."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from flwr.app import Array, Message
from flwr.serverapp import Grid
from torch import Tensor

from drfl.core.audit_log import AuditLog, Value
from drfl.core.errors import Notice
from drfl.federation.federation import SCALAR_BYTES, Ledger
from drfl.federation.requests import Request, TrainRequest
from drfl.flower.messages import Answer, Ask, most_bytes
from drfl.flower.nodes import PAUSE, RETRIED, Node, Received, Roster, received
from drfl.flower.records import (
    ProtocolError,
    digest_of_content,
    payload,
    printable,
    read,
    read_head,
    rejection_reason,
    write,
    write_head,
)
from drfl.flower.site_health import SiteHealth
from drfl.flower.traffic import Traffic
from drfl.resilience.reply_log import name_of
from drfl.resilience.validation import misfit

LOG = logging.getLogger("drfl.flower")

SLOWEST = 30.0
"""Seconds at most between two messages to a site that is asked repeatedly."""


class Deadline(NamedTuple):
    """How long an exchange lasts.

    Args:
        timeout: seconds at most.
        least: how many replies are enough to go on without the others; None = wait for all.
        grace: seconds that the others still have once so many have arrived.
    """

    timeout: float
    least: int | None = None
    grace: float = 0.0


class ClientRequest(NamedTuple):
    """A message to a client.

    Args:
        ask: the message, with the shift that it refers to, which travels only if the site does not hold it.
        request: the request that it is for, of a cohort of this client alone; None = only the test.
    """

    ask: Ask
    request: Request | None


@dataclass
class PendingRequest:
    """A request to a client that has not been answered.

    Args:
        question: the request.
        node: the node that the message went to; None while it waits.
        sent: how many messages have gone out for it.
        due: when the next may be sent, on the monotonic clock.
        whole: whether the shift went with the message.
        request: the line of the audit log that the message was written to; None where there is no log.
    """

    question: ClientRequest
    node: Node | None = None
    sent: int = 0
    due: float = 0.0
    whole: bool = False
    request: int | None = None

    def again(self) -> None:
        """Ask once more: at once the first time, then after pauses that double."""
        self.node = None
        if self.sent > 1:
            # Several messages in a row are lost while a machine restarts: pauses give it time.
            self.due = time.monotonic() + min(SLOWEST, PAUSE * 2 ** (self.sent - 1))


class Exchanged(NamedTuple):
    """How an exchange went.

    Args:
        answers: by client, of those that gave one in time.
        cost: vectors and losses of requests, each once; neither tests nor repetitions are in it.
    """

    answers: dict[int, Answer]
    cost: Ledger


class Transport:
    """Carries messages to the clients of a deployment and back, and keeps their health and the shifts that they hold.

    Args:
        grid: Flower's.
        roster: who the nodes are.
        deadline: of every exchange.
        audit: the server's log; None = none.
    """

    def __init__(self, grid: Grid, roster: Roster, deadline: Deadline, audit: AuditLog | None = None) -> None:
        self.grid, self.roster, self.deadline, self.audit = grid, roster, deadline, audit
        self.traffic = Traffic()
        self.health = {client: SiteHealth() for client in range(len(roster.names))}
        self.held: dict[int, str] = {}  # client → the version of the shift that it keeps
        self.gone: set[int] = set()  # clients that were offline at the end of an exchange

    def exchange(self, questions: Mapping[int, ClientRequest], *, all_of_them: bool = False) -> Exchanged:
        """Ask clients, again where a message or a node was lost, until enough have answered or the time is over.

        Args:
            questions: by client.
            all_of_them: ask and wait for all: skip no client for its health, and accept no quorum.
        """
        start = time.monotonic()
        end, given = start + self.deadline.timeout, f"{self.deadline.timeout:g} s"
        # A quorum counts only clients that get more than a test; if there are none, it counts all.
        working = {client for client, question in questions.items() if question.request is not None}
        counting, enough = working or set(questions), None
        if self.deadline.least is not None and not all_of_them:
            enough = min(self.deadline.least, len(counting))
        waiting = {
            client: PendingRequest(question) for client, question in self._chosen(questions, all_of_them).items()
        }
        on_way: dict[str, int] = {}  # message → client
        found = Exchanged({}, Ledger())
        while waiting:
            self._send(waiting, on_way, end, found.cost)
            came = list(received(self.grid, list(on_way)))
            for one in came:
                self._receive(one, on_way.pop(one.message), waiting, found)
            # Once only: the deadline moves up to the end of the grace, and replies until then still count.
            if enough is not None and len(counting & found.answers.keys()) >= enough:
                end, enough = min(end, time.monotonic() + self.deadline.grace), None
                given = f"the {self.deadline.grace:g} s after enough others had answered"
            if time.monotonic() >= end:
                break
            if not came and waiting:
                time.sleep(PAUSE)
                nodes = self.roster.nodes(self.grid)
                for message, client in list(on_way.items()):
                    # A node that was restarted has lost the message.
                    if client in nodes and nodes[client] != waiting[client].node:
                        name = self.roster.names[client]
                        LOG.warning(Notice(f"{name} was restarted; it is asked again", "asked-again", name))
                        self._log("lost", client, waiting[client], reason="its node was restarted")
                        del on_way[message]
                        self.held.pop(client, None)
                        waiting[client].again()
        self._give_up(waiting, given)
        self.traffic.exchanges += 1
        self.traffic.seconds += time.monotonic() - start
        return found

    def bad(self, client: int, how: str, reason: str) -> None:
        """A client gave no usable reply: "silent", "failed" or "rejected"."""
        health, name = self.health[client], self.roster.names[client]
        health.bad(how)
        LOG.warning(Notice(f"{name}{reason}", f"reply-{how}", name))
        if health.backoff:
            text = (
                f"{name}: no usable reply {health.strikes} times in a row, it is not asked in the next "
                f"{health.backoff} exchanges"
            )
            LOG.warning(Notice(text, "site-skipped", name))

    def _chosen(self, questions: Mapping[int, ClientRequest], all_of_them: bool) -> dict[int, ClientRequest]:
        """Who is asked: not those that are offline, nor those skipped for a while.

        All are asked where too few would remain for the quorum, or none in the whole federation: rounds without an
        answer would otherwise follow each other at once and be lost.
        """
        back = self.gone.intersection(self.roster.nodes(self.grid))
        self.gone -= back
        for client in back:
            # A site that was offline gave no bad reply: back, it is asked at once.
            self.health[client].backoff = 0
        # Skip sites in backoff, so that an unreachable site does not cost a timeout in every exchange.
        left_out = {client for client, health in self.health.items() if health.backoff}
        chosen = {c: question for c, question in questions.items() if c not in self.gone | left_out}
        too_few = len(chosen) < min(len(questions), self.deadline.least or 0)
        if all_of_them or too_few or len(self.gone | left_out) == len(self.health):
            return dict(questions)
        for client in left_out & questions.keys() - self.gone:
            self.health[client].skip()
        return chosen

    def _send(self, waiting: Mapping[int, PendingRequest], on_way: dict[str, int], end: float, cost: Ledger) -> None:
        """Send the messages that are due to the sites that are online."""
        now = time.monotonic()
        due = {client: pending for client, pending in waiting.items() if pending.node is None and pending.due <= now}
        nodes = self.roster.nodes(self.grid) if due else {}
        due = {client: pending for client, pending in due.items() if client in nodes}
        # All messages of an exchange carry the same models: serialised once, not once a client.
        packed: dict[Tensor, Array] = {}
        messages = []
        for client, pending in due.items():
            ask, request = pending.question
            known = ask.version in ("", "zero") or self.held.get(client) == ask.version
            content = write(msgspec.structs.replace(ask, shift=None) if known else ask, packed)
            only_test = request is None
            if self.audit is not None:
                # Before the message is sent, and with its line as the head that goes along: a site holds the proof.
                what, stream = ("test", None) if request is None else (request.kind, name_of(request.key))
                own = {"what": what, "stream": stream, "digest": digest_of_content(content)}
                head = self.audit.add("asked", site=self.roster.names[client], **own)
                write_head(content, head)
                pending.request = head.n
            kind, left = "evaluate" if only_test else "train", max(1.0, end - now)
            # Flower drops a message after its ttl: no site is to start work for an exchange that is over.
            messages.append(Message(content, nodes[client].id, kind, ttl=left))
            pending.node, pending.whole = nodes[client], not known
            pending.sent += 1
            size = payload(content)
            # A second model is there to be tested, also where the first is trained from.
            second = 0 if ask.also is None else ask.also.numel() * ask.also.element_size()
            self.traffic.down(size, size if only_test else second)
            if not only_test and pending.sent == 1:
                # As a simulation books it, whatever the site holds: a server that is resumed has forgotten that.
                cost.down(1, ask.w.numel() * ask.w.element_size() * request.vectors)
        ids = list(self.grid.push_messages(messages)) if messages else []
        for message, (client, pending) in zip(ids, due.items(), strict=True):
            if message:
                on_way[message] = client
            else:
                self._log("lost", client, pending, reason="the SuperLink did not take the message")
                pending.again()

    def _receive(self, one: Received, client: int, waiting: dict[int, PendingRequest], found: Exchanged) -> None:
        """Process a reply; its client is done, unless it has to be asked again."""
        pending, reply = waiting[client], one.reply
        only_test = pending.question.request is None
        if reply is not None and reply.has_error():
            text = (reply.error.reason or f"error {reply.error.code}")[-10_000:].strip()
            # Flower gives the type and the text of the app's exception in this form; the last line has the reason.
            raised = re.fullmatch(r"<class '([^']*)'>:<'(.*)'>", text, flags=re.DOTALL)
            if raised is not None:
                text = f"{raised[1].rpartition('.')[2]}: {raised[2]}"
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            told = printable(lines[-1]) if lines else "no reason given"
            # Whether the site has kept its shift is unknown then: the next message brings it along.
            if reply.error.code in RETRIED:
                name = self.roster.names[client]
                LOG.warning(Notice(f"{name}: {told}; it is asked again", "asked-again", name))
                self._log("lost", client, pending, reason=told)
                self.held.pop(client, None)
                pending.again()
                return
            del waiting[client]
            self._log("failed", client, pending, reason=told)
            self.bad(client, "failed", f" failed: {told}")
            return
        try:
            answer = self._read(one, pending)
        except Exception as error:  # no reply of a single site may end the run, whatever error it causes
            del waiting[client]
            self._log_reply("unusable", client, pending, one, reason=rejection_reason(error))
            self.bad(client, "rejected", f": reply rejected, as {rejection_reason(error)}")
            return
        if answer.lacking:  # it was restarted and has lost its shift
            self._log_reply("lacking", client, pending, one)
            self.held.pop(client, None)
            pending.again()
            return
        del waiting[client]
        if not only_test:
            # Count the cost as a simulation does, so that the ledgers agree.
            sizes = (part.numel() * part.element_size() if part.ndim else SCALAR_BYTES for part in answer.parts)
            found.cost.up(1, sum(sizes))
            found.cost.gradient_evaluations += answer.gradients
            found.cost.loss_evaluations += answer.losses
        self.traffic.worked(answer.seconds)
        if answer.version:
            self.held[client] = answer.version
        self.health[client].good()
        self._log_reply("received", client, pending, one)
        found.answers[client] = answer

    def _read(self, one: Received, pending: PendingRequest) -> Answer:
        """Count a client's reply, and read the answer in it.

        Raises:
            ProtocolError: it cannot be read, or does not answer the request.
        """
        if one.reply is None or not one.reply.has_content():
            raise ProtocolError(one.problem or "there is nothing in it")
        (ask, request), content = pending.question, one.reply.content
        size = payload(content)
        self.traffic.up(size, size if request is None else 0)
        # A reply names the message that it answers, which another node could do as well.
        if pending.node is not None and one.reply.metadata.src_node_id != pending.node.id:
            raise ProtocolError("another node sent it")
        # Before any of it is turned into tensors.
        if size > most_bytes(ask.w):
            raise ProtocolError(f"it is larger than any reply to this request, {most_bytes(ask.w)} bytes")
        answer = read(content, Answer)
        if self.audit is not None:
            self.roster.check_head(ask.client, read_head(content))
        if answer.lacking and (pending.whole or ask.version in ("", "zero")):  # asking again would never end
            raise ProtocolError("it says that it lacks what was sent with the request")
        if not answer.lacking:
            _check(ask, request, answer)
        return answer

    def _log(self, event: str, client: int, pending: PendingRequest, **what: Value) -> None:
        if self.audit is not None:
            self.audit.add(event, site=self.roster.names[client], request=pending.request, **what)

    def _log_reply(self, event: str, client: int, pending: PendingRequest, one: Received, **what: str) -> None:
        """Log a reply by its digest and the head in it; None of either if the reply is too malformed to have one."""
        if self.audit is None:
            return
        # Record what can be read: even a broken reply gets a line in the log.
        digest = head = None
        try:
            if one.reply is not None and one.reply.has_content():
                digest = digest_of_content(one.reply.content)
                found = read_head(one.reply.content)
                head = None if found is None else str(found)
        except Exception as error:  # a site may have sent anything, and no reply of a single site may end the run
            LOG.debug("%s: a reply without a digest: %r", self.roster.names[client], error)
        self._log(event, client, pending, digest=digest, head=head, **what)

    def _give_up(self, waiting: Mapping[int, PendingRequest], given: str) -> None:
        """Log who did not answer in time. Sites that are offline are not waited for again until they are back."""
        there = self.roster.nodes(self.grid) if waiting else {}
        absent = sorted(client for client, pending in waiting.items() if pending.node is None and client not in there)
        if absent:
            names = ", ".join(self.roster.names[client] for client in absent)
            LOG.warning(Notice(f"these sites were not there in {given}: {names}", "sites-missing"))
        # No strike: being in `gone` already keeps the server from waiting for them.
        self.gone |= set(absent)
        for client in sorted(waiting.keys() - set(absent)):
            if waiting[client].node is not None:
                self._log("silent", client, waiting[client], reason=f"no reply in {given}")
            self.bad(client, "silent", f" gave no reply in {given}")


def _check(ask: Ask, request: Request | None, answer: Answer) -> None:
    """Make sure that an answer has the parts, shapes and types that were asked for.

    Raises:
        ProtocolError: it has not. NaN and distance are for :class:`drfl.resilience.Protected` to judge.
    """
    if (answer.test is not None) != ask.test:
        raise ProtocolError("the result of the test is missing" if ask.test else "it has a test that was not asked for")
    if (answer.also is not None) != (ask.also is not None):
        raise ProtocolError("the second test is missing, or was not asked for")
    if request is None:
        if answer.parts:
            raise ProtocolError("only a test was asked for")
        return
    reason = misfit(request, in_place(request, answer.parts))
    if reason is not None:
        raise ProtocolError(str(reason))


def in_place(request: Request, parts: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """The parts in the places of :class:`drfl.federation.requests.Replies`: an average may come without a snapshot."""
    if isinstance(request, TrainRequest) and request.snapshot is None and len(parts) == 2:
        return parts[0], None, parts[1]
    return parts
