"""Send every site one message outside a round, and read the replies."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from flwr.app import Message as FlowerMessage
from flwr.app import RecordDict

from drfl.flower.client_app import QUERY
from drfl.flower.nodes import digest_and_head, error_reason, exchange_once
from drfl.flower.records import (
    Message,
    ProtocolError,
    digest_of_content,
    payload_size,
    read,
    read_head,
    rejection_reason,
    write_head,
)
from drfl.flower.session import Session

M = TypeVar("M", bound=Message)


class RepliesOnce(NamedTuple, Generic[M]):
    """The replies to messages that were sent once.

    Args:
        valid: The valid replies by client.
        reasons: Why each of the other clients has none: it is offline, silent, refused, or its reply is invalid.
    """

    valid: dict[int, M]
    reasons: dict[int, str]


def ask_once(session: Session, contents: Mapping[int, RecordDict], what: str, reply: type[M]) -> RepliesOnce[M]:
    """Send clients one message each, and wait for the replies.

    The head of the audit log is added to the contents. ``what`` is the name of the request.
    """
    grid, roster, audit, timeout = session.grid, session.roster, session.audit, session.settings.timeout
    end = time.monotonic() + timeout
    nodes = {client: node for client, node in roster.nodes(grid).items() if client in contents}
    reasons = {client: "it is offline" for client in contents if client not in nodes}
    lines, messages = dict[int, int](), []
    for client, node in nodes.items():
        # Copy, because clients may share a content, and each gets another head.
        content = RecordDict(dict(contents[client]))
        if audit is not None:
            values = {"what": what, "stream": None, "digest": digest_of_content(content)}
            head = audit.add("asked", site=roster.names[client], **values)
            write_head(content, head)
            lines[client] = head.n
        messages.append(FlowerMessage(content, node.id, f"{QUERY}{what}", ttl=max(1.0, timeout)))

    def log(event: str, client: int, **fields: str | None) -> None:
        if audit is not None:
            audit.add(event, site=roster.names[client], request=lines[client], **fields)

    clients = {node.id: client for client, node in nodes.items()}
    silent, valid = set(nodes), dict[int, M]()
    for node, received in exchange_once(grid, messages, end):
        client = clients[node]
        silent.discard(client)
        try:
            answer = received.reply
            if answer is not None and answer.has_error():
                raise ProtocolError(error_reason(answer))
            if answer is None or not answer.has_content():
                raise ProtocolError(received.problem or "it is empty")
            # Check the size before parsing, because a site may send anything.
            if payload_size(answer.content) > reply.limit + 2**12:
                raise ProtocolError("it is too long")
            try:
                message, head = read(answer.content, reply), read_head(answer.content)
            except Exception as error:  # an error of a single site must not end the run
                raise ProtocolError(rejection_reason(error)) from None
            if audit is not None:
                roster.check_head(client, head)
            valid[client] = message
            log("received", client, **digest_and_head(received))
        except ProtocolError as error:
            reasons[client] = str(error)
            log("unusable", client, reason=str(error), **digest_and_head(received))
    for client in sorted(silent):
        reasons[client] = f"no answer in {timeout:g} s"
        log("silent", client, reason=reasons[client])
    return RepliesOnce(valid, reasons)
