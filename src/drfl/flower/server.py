"""The clients of a deployment, as the server's algorithm sees them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from drfl.errors import InputError
from drfl.federation import SCALAR_BYTES, Evaluation, Ledger
from drfl.flower.roster import PAUSE, Member, Node, Roster
from drfl.flower.wire import Answer, Ask, Model, ProtocolError, array_of, payload, read_answer, version, write_ask
from drfl.protection.validation import Reason, check_row
from drfl.request import Exchanges, R, Request, TrainRequest

LOG = logging.getLogger("drfl.flower")

RETRIED = (3, 4, 5)
"""Flower's codes for a message, a reply or a node that was lost on the way: asked again while there is time."""


class Sent(NamedTuple):
    """A message on its way.

    Args:
        ask: what it asks.
        shift: (d,) the shift it means; None where there is none.
        node: whom it went to.
    """

    ask: Ask
    shift: Tensor | None
    node: Node


@dataclass
class Traffic:
    """Bytes of all messages, tests and repetitions included, without what Flower and HTTP add.

    Args:
        down: from the server to the sites.
        up: from the sites to the server.
        messages: both ways.
    """

    down: int = 0
    up: int = 0
    messages: int = 0


class FlowerFederation(Exchanges):
    """A :class:`drfl.federation.Federation` of the nodes behind a Flower ``Grid``.

    A request is one message to each client. A test of the model and the request after it go in one, see
    :class:`drfl.algorithm.Announced`. A client that fails, is not there or takes too long counts as silent, and so does
    one whose reply has the wrong shape or type; NaN and distance are for :class:`drfl.protection.Protected` to judge. A
    late or second reply is not looked at. The ledger counts vectors and losses as a simulation does; ``traffic`` counts
    what really travels.

    Args:
        grid: Flower's.
        roster: who the nodes are.
        members: what each client has told of itself.
        model: what is trained.
        w0: (d,) the initial model.
        timeout: seconds that an exchange may take.

    Raises:
        InputError: the sites' data do not have one shape.
    """

    def __init__(
        self, grid: Grid, roster: Roster, members: Mapping[int, Member], model: Model, w0: Tensor, timeout: float
    ) -> None:
        first = members[0]
        for other in members.values():
            if other.shape != first.shape:
                raise InputError(
                    f"inputs have shape {first.shape} at site '{first.name}' and {other.shape} at site '{other.name}': "
                    "all sites must have the same columns, or pictures of one size"
                )
        sizes = torch.tensor([members[client].train for client in range(len(members))], dtype=torch.float64)
        self.n, self.shares, self.w0 = len(members), sizes / sizes.sum(), w0
        self.ledger, self.traffic = Ledger(), Traffic()
        self._grid, self._roster, self._model, self._timeout = grid, roster, model, timeout
        self._held: dict[int, str] = {}  # client → the version of the shift that it keeps
        self._gone: set[int] = set()  # clients that were not there at the end of an exchange
        self._tested: dict[int, tuple[float, float, int]] = {}
        self._next: Request | None = None
        self._early: tuple[Request, dict[int, Answer]] | None = None

    def announce(self, request: Request) -> None:
        """The request that will follow the next test, if the run goes on."""
        self._next = request

    def exchange(self, request: Request[R]) -> R:
        """Put a request to its cohort."""
        early, self._early = self._early, None
        if early is not None and _equal(early[0], request):
            answers = early[1]
        else:
            answers = self._ask(request.cohort.tolist(), request.w, request)
        self._count(request, answers)
        usable = {client: answer for client, answer in answers.items() if _fits(request, client, answer)}
        return _stacked(request, usable)

    def evaluate(self, w: Tensor) -> Evaluation:
        """Score and loss of w (d,) at every client; one that is silent counts as it did at its last test.

        Raises:
            InputError: a client has never been tested.
        """
        request, self._next = self._next, None
        together = request if request is not None and torch.equal(request.w, w) else None
        answers = self._ask(list(range(self.n)), w, together, test=True)
        if together is not None:
            mine = set(together.cohort.tolist())
            self._early = together, {client: answer for client, answer in answers.items() if client in mine}
        for client in range(self.n):
            test = answers[client].test if client in answers else None
            if test is not None and _possible(*test):
                self._tested[client] = test
            elif client in self._tested:
                LOG.warning("%s was not tested: its last result stands", self._roster.names[client])
            else:
                raise InputError(f"site '{self._roster.names[client]}' could not be tested: see the log for the reason")
        accuracy, loss, samples = zip(*(self._tested[client] for client in range(self.n)), strict=True)
        double = torch.float64
        return Evaluation(torch.tensor(accuracy, dtype=double), torch.tensor(loss, dtype=double), torch.tensor(samples))

    def _ask(self, clients: list[int], w: Tensor, request: Request | None, test: bool = False) -> dict[int, Answer]:
        """Answers by client, of those that gave one in time."""
        nodes = self._roster.nodes(self._grid)
        self._gone.difference_update(nodes)
        waiting = {client: self._to(client, w, request, test) for client in clients if client not in self._gone}
        arrays = {"w": array_of(w)}
        answers: dict[int, Answer] = {}
        on_way: dict[str, Sent] = {}
        end = time.monotonic() + self._timeout
        while waiting or on_way:
            on_way |= self._send(waiting, arrays, end)
            replies = list(self._grid.pull_messages(list(on_way))) if on_way else []
            for reply in replies:
                sent = on_way.pop(reply.metadata.reply_to_message_id, None)
                if sent is not None:
                    self._receive(reply, sent, answers, waiting)
            if time.monotonic() >= end:
                break
            if not replies and (waiting or on_way):
                time.sleep(PAUSE)
                self._recall(on_way, waiting)
        self._give_up({sent.ask.client for sent in on_way.values()}, set(waiting))
        return answers

    def _recall(self, on_way: dict[str, Sent], waiting: dict[int, tuple[Ask, Tensor | None]]) -> None:
        """Put clients back on the list whose node was started anew since they were asked: it knows nothing of it."""
        nodes = self._roster.nodes(self._grid)
        for message, sent in list(on_way.items()):
            client = sent.ask.client
            if client in nodes and nodes[client] != sent.node:
                LOG.warning("%s was started anew; it is asked again", self._roster.names[client])
                del on_way[message]
                self._held.pop(client, None)
                waiting[client] = sent.ask, sent.shift

    def _give_up(self, silent: set[int], absent: set[int]) -> None:
        """Say who did not answer in time. Nobody waits again for those that are not even there, until they are."""
        for clients, how in ((silent, "gave no reply"), (absent, "were not there")):
            if clients:
                names = ", ".join(self._roster.names[client] for client in sorted(clients))
                LOG.warning("these sites %s in %g s: %s", how, self._timeout, names)
        self._gone |= absent

    def _to(self, client: int, w: Tensor, request: Request | None, test: bool) -> tuple[Ask, Tensor | None]:
        """What one client is asked, and its shift."""
        places = [] if request is None else (request.cohort == client).nonzero().flatten().tolist()
        if request is None or not places:
            return Ask(client, self._model, w, None, test), None
        own = request.only(torch.tensor(places[:1]))
        shift = own.shift[0] if isinstance(own, TrainRequest) and own.shift is not None else None
        if isinstance(own, TrainRequest):
            own = replace(own, shift=None)
        return Ask(client, self._model, w, own, test, "" if shift is None else version(shift)), shift

    def _send(self, waiting: dict[int, tuple[Ask, Tensor | None]], arrays: dict, end: float) -> dict[str, Sent]:
        """Send what waits to those that are there, and take it off the list."""
        nodes = self._roster.nodes(self._grid) if waiting else {}
        ready = [client for client in waiting if client in nodes]
        messages, sent = [], []
        for client in ready:
            ask, shift = waiting.pop(client)
            known = ask.version in ("", "zero") or self._held.get(client) == ask.version
            content = write_ask(ask, None if known else shift, arrays)
            kind = "evaluate" if ask.request is None else "train"
            messages.append(Message(content, nodes[client].id, kind, ttl=max(1.0, end - time.monotonic())))
            sent.append(Sent(ask, shift, nodes[client]))
            self.traffic.down += payload(content)
            self.traffic.messages += 1
        ids = list(self._grid.push_messages(messages)) if messages else []
        return {message: one for message, one in zip(ids, sent, strict=True) if message}

    def _receive(
        self,
        reply: Message,
        sent: Sent,
        answers: dict[int, Answer],
        waiting: dict[int, tuple[Ask, Tensor | None]],
    ) -> None:
        """Take a reply in, or put its client back on the list where it is to be asked again."""
        client, name = sent.ask.client, self._roster.names[sent.ask.client]
        if reply.has_error():
            told = reply.error.reason or f"error {reply.error.code}"
            if reply.error.code in RETRIED:
                LOG.warning("%s: %s; it is asked again", name, _last_line(told))
                self._held.pop(client, None)
                waiting[client] = sent.ask, sent.shift
            else:
                LOG.warning("%s failed: %s", name, _last_line(told))
            return
        self.traffic.up += payload(reply.content)
        self.traffic.messages += 1
        try:
            answer = read_answer(reply.content)
        except ProtocolError as error:
            LOG.warning("%s: reply rejected, as %s", name, error)
            return
        if answer.lacking:  # it was started anew and has forgotten its shift
            self._held.pop(client, None)
            waiting[client] = sent.ask, sent.shift
            return
        if answer.version:
            self._held[client] = answer.version
        answers[client] = answer

    def _count(self, request: Request, answers: Mapping[int, Answer]) -> None:
        """Book an exchange as a simulation does."""
        vector = request.w.numel() * request.w.element_size()
        self.ledger.down(len(request.cohort), vector * request.vectors)
        for answer in answers.values():
            self.ledger.up(1, sum(vector if part.ndim else SCALAR_BYTES for part in answer.parts))
            self.ledger.gradient_evaluations += answer.gradients
            self.ledger.loss_evaluations += answer.losses


def _possible(score: float, loss: float, samples: int) -> bool:
    """Whether a test can have come out so."""
    return 0 <= score <= 1 and math.isfinite(loss) and samples > 0


def _last_line(text: str) -> str:
    """The line of an exception's text that says what is wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def _fits(request: Request, client: int, answer: Answer) -> bool:
    """Whether an answer has the shapes and types that the request asks for; says so where it has not."""
    reason = check_row(request, client, _spread(request, answer.parts)) if answer.parts else Reason.SHAPE
    if reason in (Reason.SHAPE, Reason.DTYPE):
        LOG.warning("client %d: reply rejected, as %s", client, reason)
        return False
    return True


def _spread(request: Request, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The parts in the places of :class:`drfl.federation.Replies`: an average may come without a snapshot."""
    if isinstance(request, TrainRequest) and request.snapshot is None and len(parts) == 2:
        return parts[0], parts[1].new_empty(0), parts[1]
    return parts


def _stacked(request: Request[R], answers: Mapping[int, Answer]) -> R:
    """The reply of a cohort, in its order, whatever the order in which the answers came."""
    clients = [client for client in request.cohort.tolist() if client in answers]
    empty = request.nobody()
    if not clients:
        return empty
    columns = zip(*(answers[client].parts for client in clients), strict=True)
    asked = [bool(part.ndim and part.shape[-1]) or part.dtype == torch.float64 for part in empty[1:]]
    filled = (torch.stack(column) for column in columns)
    parts = [next(filled) if wanted else part for wanted, part in zip(asked, empty[1:], strict=True)]
    return empty._make((torch.tensor(clients), *parts))


def _equal(a: Request, b: Request) -> bool:
    """Whether two requests ask for the same."""
    if type(a) is not type(b) or a.key != b.key:
        return False
    for name, value in a.__dict__.items():
        other = b.__dict__[name]
        same = torch.equal(value, other) if isinstance(value, Tensor) and isinstance(other, Tensor) else value == other
        if not same:
            return False
    return True
