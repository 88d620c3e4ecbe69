"""Send requests to sites over Flower and collect the replies, with deadlines, repetitions and backoff."""

from __future__ import annotations

import logging
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
from drfl.flower.messages import Answer, Ask, max_reply_bytes
from drfl.flower.nodes import (
    PAUSE,
    RETRIED_ERRORS,
    Node,
    ReceivedReply,
    Roster,
    digest_and_head,
    error_reason,
    pull_replies,
)
from drfl.flower.records import (
    ProtocolError,
    digest_of_content,
    payload_size,
    read,
    read_head,
    rejection_reason,
    write,
    write_head,
)
from drfl.flower.site_health import SiteHealth
from drfl.flower.traffic import Traffic
from drfl.resilience.reply_log import name_of
from drfl.resilience.validation import Reason, misfit

LOG = logging.getLogger("drfl.flower")

LONGEST_PAUSE = 30.0
"""Longest pause in seconds between two messages to a site that is asked again."""


class Deadline(NamedTuple):
    """The time limits of an exchange.

    Args:
        timeout: Maximum duration in seconds.
        quorum: Number of replies after which the exchange does not wait for the others; None to wait for all.
        grace: Seconds for the others to reply after that.
    """

    timeout: float
    quorum: int | None = None
    grace: float = 0.0


@dataclass
class PendingRequest:
    """A request to a client that is not answered yet.

    Args:
        ask: The message, including the shift. The shift is sent only if the site does not hold it.
        request: The request, with a cohort of this client only; None if the message only requests a test.
        node: The node to which the message was sent; None while the request waits to be sent.
        attempts: Number of messages sent for it.
        due: Earliest time of the next message, on the monotonic clock.
        has_shift: Whether the message contained the shift.
        line: Line of the audit log that records the message; None without a log.
    """

    ask: Ask
    request: Request | None
    node: Node | None = None
    attempts: int = 0
    due: float = 0.0
    has_shift: bool = False
    line: int | None = None

    def schedule_retry(self) -> None:
        """Schedule another message: the first time at once, then after pauses that double."""
        self.node = None
        if self.attempts > 1:
            # Several messages in a row are lost while a machine restarts. The pauses give it time.
            self.due = time.monotonic() + min(LONGEST_PAUSE, PAUSE * 2 ** (self.attempts - 1))


class ExchangeResult(NamedTuple):
    """The result of an exchange.

    Args:
        answers: Answers that arrived in time, by client.
        cost: Cost of the requests, each counted once, without tests and repetitions.
    """

    answers: dict[int, Answer]
    cost: Ledger


class Transport:
    """Exchanges messages with the clients of a deployment, and tracks their health and the shifts that they hold."""

    def __init__(self, grid: Grid, roster: Roster, deadline: Deadline, audit: AuditLog | None = None) -> None:
        self.grid, self.roster, self.deadline, self.audit = grid, roster, deadline, audit
        self.traffic = Traffic()
        self.health = {client: SiteHealth() for client in range(len(roster.names))}
        self.held_shifts: dict[int, str] = {}  # for each client, the version of the shift that it holds
        self.offline: set[int] = set()  # clients that were offline at the end of an exchange

    def exchange(
        self, questions: Mapping[int, PendingRequest], *, wait_for_all: bool = False, wait_for_online: bool = False
    ) -> ExchangeResult:
        """Send requests and collect the answers until enough clients have answered or the time is over.

        A request is sent again if a message or a node was lost.

        Args:
            questions: The request to each client.
            wait_for_all: Whether to ask all clients and wait for all answers, regardless of backoff and ``quorum``.
            wait_for_online: The same for the clients that are online.
        """
        start = time.monotonic()
        end, period = start + self.deadline.timeout, f"{self.deadline.timeout:g} s"
        # Only clients that get more than a test count for the quorum. If there are none, all count.
        working = {client for client, question in questions.items() if question.request is not None}
        counting, quorum = working or set(questions), None
        if wait_for_online:
            for health in self.health.values():
                health.backoff = 0
        elif self.deadline.quorum is not None and not wait_for_all:
            quorum = min(self.deadline.quorum, len(counting))
        waiting = self._chosen(questions, wait_for_all)
        in_transit: dict[str, int] = {}  # message ID → client
        exchanged = ExchangeResult({}, Ledger())
        # Poll, because Flower's own send_and_receive waits for all replies and never sends a lost message again.
        while waiting:
            self._send(waiting, in_transit, end, exchanged.cost)
            arrived = list(pull_replies(self.grid, list(in_transit)))
            for received_reply in arrived:
                self._receive(received_reply, in_transit.pop(received_reply.message), waiting, exchanged)
            # Do this only once: the deadline moves to the end of the grace period. Replies until then still count.
            if quorum is not None and len(counting & exchanged.answers.keys()) >= quorum:
                end, quorum = min(end, time.monotonic() + self.deadline.grace), None
                period = f"{self.deadline.grace:g} s after enough others had answered"
            if time.monotonic() >= end:
                break
            if not arrived and waiting:
                time.sleep(PAUSE)
                nodes = self.roster.nodes(self.grid)
                for message, client in list(in_transit.items()):
                    # A node that was restarted has lost the message.
                    if client in nodes and nodes[client] != waiting[client].node:
                        name = self.roster.names[client]
                        LOG.warning(Notice(f"{name} was restarted and is asked again", "asked-again", name))
                        self._log("lost", client, waiting[client], reason="its node was restarted")
                        del in_transit[message]
                        self.held_shifts.pop(client, None)
                        waiting[client].schedule_retry()
        online = self.roster.nodes(self.grid) if waiting else {}
        offline = sorted(client for client, pending in waiting.items() if pending.node is None and client not in online)
        if offline:
            names = ", ".join(self.roster.names[client] for client in offline)
            LOG.warning(Notice(f"these sites were offline for {period}: {names}", "sites-missing"))
        # They get no strike, because the server does not wait for them anyway until they are back.
        self.offline |= set(offline)
        for client in sorted(waiting.keys() - set(offline)):
            if waiting[client].node is not None:
                self._log("silent", client, waiting[client], reason=f"no reply within {period}")
            self.record_unusable(client, "silent", f" gave no reply within {period}")
        self.traffic.exchanges += 1
        self.traffic.seconds += time.monotonic() - start
        return exchanged

    def record_unusable(self, client: int, how: str, reason: str) -> None:
        """Record that a client gave no usable reply.

        ``how`` is "silent", "failed" or "rejected", and ``reason`` the text that follows the client's name in the log.
        """
        health, name = self.health[client], self.roster.names[client]
        health.record_unusable(how)
        LOG.warning(Notice(f"{name}{reason}", f"reply-{how}", name))
        if health.backoff:
            often = f" {health.strikes} times in a row" if health.strikes > 1 else ""
            exchanges = f"{health.backoff} exchanges" if health.backoff > 1 else "exchange"
            text = f"{name} gave no usable reply{often} and is skipped in the next {exchanges}"
            LOG.warning(Notice(text, "site-skipped", name))

    def _chosen(self, questions: Mapping[int, PendingRequest], wait_for_all: bool) -> dict[int, PendingRequest]:
        """Select the clients to ask: those that are neither offline nor in backoff.

        All clients are asked if too few would remain for the quorum, or none in the whole federation. Otherwise rounds
        without an answer would follow each other at once and be lost.
        """
        back = self.offline.intersection(self.roster.nodes(self.grid))
        self.offline -= back
        for client in back:
            # A site that was offline gave no bad reply, so it is asked as soon as it is back.
            self.health[client].backoff = 0
        # Skip sites in backoff, so that an unreachable site does not cost a timeout in every exchange.
        skipped = {client for client, health in self.health.items() if health.backoff}
        chosen = {c: question for c, question in questions.items() if c not in self.offline | skipped}
        too_few = len(chosen) < min(len(questions), self.deadline.quorum or 0)
        if wait_for_all or too_few or len(self.offline | skipped) == len(self.health):
            return dict(questions)
        for client in skipped & questions.keys() - self.offline:
            # Offline clients are not skipped for a number of exchanges, but until they are back.
            self.health[client].left_out += 1
            self.health[client].backoff -= 1
        return chosen

    def _send(
        self, waiting: Mapping[int, PendingRequest], in_transit: dict[str, int], end: float, cost: Ledger
    ) -> None:
        """Send the messages that are due to sites that are online."""
        now = time.monotonic()
        due = {client: pending for client, pending in waiting.items() if pending.node is None and pending.due <= now}
        nodes = self.roster.nodes(self.grid) if due else {}
        due = {client: pending for client, pending in due.items() if client in nodes}
        # All messages of an exchange contain the same models, which are encoded once instead of once per client.
        packed: dict[Tensor, Array] = {}
        messages = []
        for client, pending in due.items():
            ask, request = pending.ask, pending.request
            # A shift is as long as the model: without this check, each round would send twice the bytes.
            is_held = ask.version in ("", "zero") or self.held_shifts.get(client) == ask.version
            content = write(msgspec.structs.replace(ask, shift=None) if is_held else ask, packed)
            is_only_test = request is None
            if self.audit is not None:
                # Log the request before sending it, and send the head of this line: the site keeps it as proof.
                what, stream = ("test", None) if request is None else (request.kind, name_of(request.key))
                values = {"what": what, "stream": stream, "digest": digest_of_content(content)}
                head = self.audit.add("asked", site=self.roster.names[client], **values)
                write_head(content, head)
                pending.line = head.n
            kind, ttl = "evaluate" if is_only_test else "train", max(1.0, end - now)
            # Flower drops a message after its ttl, so that no site starts work for an exchange that is over.
            messages.append(Message(content, nodes[client].id, kind, ttl=ttl))
            # Only this node may answer, see _read.
            pending.node, pending.has_shift = nodes[client], not is_held
            pending.attempts += 1
            size = payload_size(content)
            # A second model is always sent for a test, even if the first one is sent for training.
            second = 0 if ask.also is None else ask.also.numel() * ask.also.element_size()
            self.traffic.down(size, size if is_only_test else second)
            if not is_only_test and pending.attempts == 1:
                # Count the cost as a simulation does, with the shift even if the site holds it. A resumed server does
                # not know which shifts the sites hold, and must count the same cost. Private parameters are in the
                # message, for a site that has lost its own, but are not counted either.
                cost.down(1, ask.w.element_size() * request.sent_numbers)
        ids = list(self.grid.push_messages(messages)) if messages else []
        for message, (client, pending) in zip(ids, due.items(), strict=True):
            if message:
                in_transit[message] = client
            else:
                self._log("lost", client, pending, reason="the SuperLink did not accept the message")
                pending.schedule_retry()

    def _receive(
        self, received_reply: ReceivedReply, client: int, waiting: dict[int, PendingRequest], exchanged: ExchangeResult
    ) -> None:
        """Process a reply; remove its client from ``waiting`` unless it has to be asked again."""
        pending, reply = waiting[client], received_reply.reply
        request = pending.request
        if reply is not None and reply.has_error():
            cause = error_reason(reply)
            # It is unknown now whether the site holds its shift, so the next message contains it.
            if reply.error.code in RETRIED_ERRORS:
                name = self.roster.names[client]
                LOG.warning(Notice(f"{name} is asked again: {cause}", "asked-again", name))
                self._log("lost", client, pending, reason=cause)
                self.held_shifts.pop(client, None)
                pending.schedule_retry()
                return
            del waiting[client]
            self._log("failed", client, pending, reason=cause)
            self.record_unusable(client, "failed", f" failed: {cause}")
            return
        try:
            answer = self._read(received_reply, pending)
        except Exception as error:  # an error of a single site must not end the run
            del waiting[client]
            self._log_reply("unusable", client, pending, received_reply, reason=rejection_reason(error))
            self.record_unusable(client, "rejected", f": reply rejected: {rejection_reason(error)}")
            return
        if answer.lacking:  # the site was restarted and has lost its shift
            self._log_reply("lacking", client, pending, received_reply)
            self.held_shifts.pop(client, None)
            pending.schedule_retry()
            return
        del waiting[client]
        if request is not None:
            # Count the cost as a simulation does, so that the ledgers agree.
            size = sum(part.numel() * part.element_size() if part.ndim else SCALAR_BYTES for part in answer.parts)
            if isinstance(request, TrainRequest) and request.work is not None:
                # Private parameters and states do not count: in a simulation, no client sends them.
                work = request.work
                private = int(work.layout.private.sum()) * request.w.element_size()
                size -= _models(request) * private + (0 if work.states is None else work.states.nbytes)
            exchanged.cost.up(1, size)
            exchanged.cost.gradient_evaluations += answer.gradients
            exchanged.cost.loss_evaluations += answer.losses
        self.traffic.answers += 1
        self.traffic.site_seconds += answer.seconds
        if answer.version:
            # A site keeps one shift, which replaces the one before.
            self.held_shifts[client] = answer.version
        self.health[client].record_usable()
        self._log_reply("received", client, pending, received_reply)
        exchanged.answers[client] = answer

    def _read(self, received_reply: ReceivedReply, pending: PendingRequest) -> Answer:
        """Count the bytes of a client's reply, and read the answer in it.

        Raises:
            ProtocolError: If it cannot be read, or does not answer the request.
        """
        reply = received_reply.reply
        if reply is None or not reply.has_content():
            raise ProtocolError(received_reply.problem or "it is empty")
        ask, request, content = pending.ask, pending.request, reply.content
        size = payload_size(content)
        self.traffic.up(size, size if request is None else 0)
        # Any node can send a reply that refers to this message.
        if pending.node is not None and reply.metadata.src_node_id != pending.node.id:
            raise ProtocolError("another node sent it")
        # Check the size before converting any of it to tensors.
        most = max_reply_bytes(ask.w)
        work = request.work if isinstance(request, TrainRequest) else None
        if work is not None:
            most += work.layout.message_size * ask.w.element_size()
        if size > most:
            raise ProtocolError(f"it exceeds the {most} bytes of the largest reply to this request")
        answer = read(content, Answer)
        if self.audit is not None:
            self.roster.check_head(ask.client, read_head(content))
        if answer.lacking:
            if pending.has_shift or ask.version in ("", "zero"):  # the site would be asked forever
                raise ProtocolError("it claims to lack the shift, which was sent with the request")
            return answer
        answer = msgspec.structs.replace(answer, parts=_with_private(request, answer.parts))
        if (answer.test is not None) != ask.test:
            raise ProtocolError(
                "the test result is missing" if ask.test else "it has a test result that was not requested"
            )
        if (answer.also is not None) != (ask.also is not None):
            raise ProtocolError("the second test result is missing, or was not requested")
        if (answer.validation is not None) != ask.validates:
            raise ProtocolError("the test result on validation rows is missing, or was not requested")
        if request is None:
            if answer.parts:
                raise ProtocolError("it has vectors, although only a test was requested")
            return answer
        # A part that the request does not need has a place in Replies, but is not sent.
        rest, wanted = iter(answer.parts), request.empty_reply()[1:]
        parts = (*(None if part is None else next(rest, None) for part in wanted), *rest)
        # NaN and outliers are left to drfl.resilience.Protected.
        reason = misfit(request, parts)
        if reason is not None:
            raise ProtocolError(str(reason))
        return answer

    def _log(self, event: str, client: int, pending: PendingRequest, **what: Value) -> None:
        if self.audit is not None:
            self.audit.add(event, site=self.roster.names[client], request=pending.line, **what)

    def _log_reply(
        self, event: str, client: int, pending: PendingRequest, received_reply: ReceivedReply, **what: str
    ) -> None:
        """Log the digest and head of a reply."""
        if self.audit is not None:
            self._log(event, client, pending, **digest_and_head(received_reply), **what)


def _models(request: TrainRequest) -> int:
    """Return the number of models in a reply to one client's request."""
    return 1 + (request.snapshot is not None) + request.average


def _with_private(request: Request | None, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Put the server's numbers in place of the private parameters, which are not in the models that a site sends."""
    if not isinstance(request, TrainRequest) or request.work is None:
        return parts
    private, count = request.work.layout.private, _models(request)
    if not bool(private.any()):
        return parts
    if any(part.shape != (int((~private).sum()),) or part.dtype != request.w.dtype for part in parts[:count]):
        raise ProtocolError(str(Reason.SHAPE))
    return *(request.w.masked_scatter(~private, part) for part in parts[:count]), *parts[count:]
