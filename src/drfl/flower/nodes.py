"""Identify the sites behind Flower's nodes, and read their descriptions of themselves."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from drfl.core.audit_log import AuditLog, Head
from drfl.core.audit_signatures import public_key
from drfl.core.errors import InputError, Notice, printable
from drfl.flower.client_app import IDENTITY, QUERY
from drfl.flower.messages import MOST_IDENTITY_BYTES, AskIdentity, HoldOut, SiteIdentity
from drfl.flower.records import (
    MOST_SHOWN,
    ProtocolError,
    digest_of_content,
    payload_size,
    read,
    read_head,
    rejection_reason,
    write,
    write_head,
)
from drfl.flower.site_policy import UNAPPROVED

PAUSE = 0.5
"""Seconds between two polls for replies."""

RETRIED_ERRORS = (3, 4, 5)
"""Flower's error codes for a lost message, reply or node, after which the site is asked again if there is time."""


class ReceivedReply(NamedTuple):
    """A reply to a message.

    Args:
        message: ID of the message.
        reply: The reply; None if it cannot be read.
        problem: The reason why it cannot be read, in one line.
    """

    message: str
    reply: Message | None
    problem: str = ""


def pull_replies(grid: Grid, messages: Iterable[str]) -> Iterator[ReceivedReply]:
    """Yield the replies to these messages that have arrived, at most one for each.

    Flower raises an exception for a malformed reply, and would lose the other replies of the same call. Therefore the
    replies are pulled one at a time.

    Raises:
        OSError: If the SuperLink cannot be reached.
        httpx.HTTPError: If the SuperLink cannot be reached.
    """
    for message in messages:
        try:
            replies = [
                reply for reply in grid.pull_messages([message]) if reply.metadata.reply_to_message_id == message
            ]
        except (OSError, httpx.HTTPError):
            raise
        except Exception as error:  # Flower may raise any exception for a malformed reply
            yield ReceivedReply(message, None, f"it is malformed ({type(error).__name__}: {printable(error, 80)})")
            continue
        if replies:
            yield ReceivedReply(message, replies[0])


def digest_and_head(received: ReceivedReply) -> dict[str, str | None]:
    """Return the digest and head of a reply for a log; each is None if the reply is too malformed to have it."""
    # Record as much as can be read: even a malformed reply gets a line in the log.
    digest = head = None
    try:
        reply = received.reply
        if reply is not None and reply.has_content():
            digest = digest_of_content(reply.content)
            parsed = read_head(reply.content)
            head = None if parsed is None else str(parsed)
    except Exception as error:  # a site may send anything, and a reply of a single site must not end the run
        LOG.debug("a reply without a digest: %r", error)
    return {"digest": digest, "head": head}


def error_reason(reply: Message) -> str:
    """Return the reason in a reply that reports an error, in one line."""
    # The site controls this text and its length, so cut it before the regular expression runs over it.
    text = (reply.error.reason or f"error {reply.error.code}")[-10_000:].strip()
    # Flower formats the type and text of the app's exception in this way. The last line has the reason.
    match = re.fullmatch(r"<class '([^']*)'>:<'(.*)'>", text, flags=re.DOTALL)
    if match is not None:
        kind = "" if match[1].startswith("drfl.") else f"{match[1].rpartition('.')[2]}: "
        text = f"{kind}{match[2]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return printable(lines[-1], MOST_SHOWN) if lines else "no reason given"


LOG = logging.getLogger("drfl.flower")

LONGEST_PAUSE = 10.0
"""Longest pause in seconds between two requests to a node for its description."""


class JoinedSite(NamedTuple):
    """A site that has described itself.

    Args:
        identity: The site's description of itself.
        digest: Digest of the message with the description.
        head: Head of the site's audit log; None if it keeps none.
    """

    identity: SiteIdentity
    digest: str
    head: Head | None


class Node(NamedTuple):
    """The node of a client.

    Args:
        id: Node ID.
        since: Time at which the node was last started, as recorded by the SuperLink. Earlier messages to it are lost.
    """

    id: int
    since: str = ""


class Roster(Protocol):
    """The mapping from clients to nodes. Nodes may leave and return with another ID."""

    @property
    def names(self) -> tuple[str, ...]:
        """(N,) names of the clients."""
        ...

    def nodes(self, grid: Grid) -> dict[int, Node]:
        """Return the node of each client that is online."""
        ...

    def check_head(self, client: int, head: Head | None) -> None:
        """Verify the signature of the head of a client's audit log.

        Raises:
            ProtocolError: If it is not signed with the client's key.
        """
        ...


@dataclass(frozen=True)
class KeyRoster:
    """A roster that identifies nodes by the public key with which the SuperLink authenticated them."""

    names: tuple[str, ...]
    keys: tuple[bytes, ...]

    def nodes(self, grid: Grid) -> dict[int, Node]:
        """See :class:`Roster`."""
        # Identify nodes by key, because a node that restarts gets another ID.
        clients = {key: client for client, key in enumerate(self.keys)}
        online = (node for node in grid.get_nodes() if node.public_key in clients)
        return {clients[node.public_key]: Node(node.node_id, node.last_activated_at) for node in online}

    def check_head(self, client: int, head: Head | None) -> None:
        """See :class:`Roster`."""
        key = public_key(self.keys[client])
        if head is not None and (key is None or not head.is_signed_by(key)):
            raise ProtocolError("the head of its audit log is not signed with its key. See 'key' in its site.toml")


class NameRoster:
    """A roster that identifies nodes by the names that they report.

    ``known_names`` are those of nodes that have reported them already, by node ID.
    """

    def __init__(
        self,
        names: Sequence[str],
        timeout: float = 60.0,
        known_names: Mapping[int, str] | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self.names, self.timeout, self.audit = tuple(names), timeout, audit
        self._name_by_node: dict[int, str | None] = dict(known_names or {})

    def nodes(self, grid: Grid) -> dict[int, Node]:
        """See :class:`Roster`. If two nodes have the same name, the first one keeps it while it is online."""
        since = {node.node_id: node.last_activated_at for node in grid.get_nodes()}
        present = sorted(since)
        # Forget a node that left: if it returns with the same ID, it is asked for its name again.
        self._name_by_node = {node: name for node, name in self._name_by_node.items() if node in present}
        new = [node for node in present if node not in self._name_by_node]
        # A node without a usable answer is not asked again while it stays online.
        members = query_identities(grid, new, self.timeout, self.audit) if new else {}
        self._name_by_node |= {node: members[node].identity.name if node in members else None for node in new}
        nodes: dict[int, Node] = {}
        for node, name in self._name_by_node.items():
            if name in self.names:
                # Use setdefault, because the node that was asked first keeps the name.
                nodes.setdefault(self.names.index(name), Node(node, since[node]))
        return nodes

    def check_head(self, client: int, head: Head | None) -> None:
        """Do nothing, because the clients' keys are unknown. See :class:`Roster`."""


def exchange_once(grid: Grid, requests: Sequence[Message], end: float) -> Iterator[tuple[int, ReceivedReply]]:
    """Send each node a message once, and yield the replies by node ID as they arrive, until all have or time is over.

    ``end`` is the time on the monotonic clock after which not to wait.
    """
    # Flower returns no ID for a message that it did not accept. Its node is skipped.
    ids = zip(grid.push_messages(requests), requests, strict=True)
    waiting = {i: request.metadata.dst_node_id for i, request in ids if i}
    while waiting:
        for received in list(pull_replies(grid, list(waiting))):
            node, reply = waiting.pop(received.message), received.reply
            # Any node can send a reply that refers to this message.
            if reply is not None and reply.has_content() and reply.metadata.src_node_id != node:
                received = ReceivedReply(received.message, None, "another node sent it")
            yield node, received
        if not waiting or time.monotonic() >= end:
            return
        time.sleep(PAUSE)


def query_identities(
    grid: Grid,
    nodes: Iterable[int],
    timeout: float,
    audit: AuditLog | None = None,
    holdout: HoldOut | None = None,
    names: Mapping[int, str] | None = None,
) -> dict[int, JoinedSite]:
    """Ask nodes for their descriptions of themselves.

    The head of the audit log is sent with the requests. ``names`` are the names of the nodes' sites by node ID, if they
    are known.

    Returns:
        The descriptions by node ID. Nodes without a valid answer are missing and logged.
    """
    end, pause = time.monotonic() + timeout, PAUSE
    members: dict[int, JoinedSite] = {}
    pending, unapproved = list(nodes), set[int]()
    labels = {node: f"node {node}" for node in pending} | dict(names or {})
    # With this head, every site holds a proof of the log before its first request.
    head = None if audit is None else audit.head()
    while pending and time.monotonic() < end:
        ttl, again = max(1.0, end - time.monotonic()), []
        contents = (write_head(write(AskIdentity(holdout)), head) for _ in pending)
        kind = f"{QUERY}{IDENTITY}"
        requests = [Message(content, node, kind, ttl=ttl) for content, node in zip(contents, pending, strict=True)]
        for node, (_, reply, problem) in exchange_once(grid, requests, end):
            if reply is not None and reply.has_error() and reply.error.code in RETRIED_ERRORS:
                again.append(node)
            elif reply is not None and reply.has_error() and UNAPPROVED in (reply.error.reason or ""):
                if node not in unapproved:
                    LOG.warning(Notice(f"{labels[node]}: the run {UNAPPROVED}", "run-not-approved", labels[node]))
                unapproved.add(node)
                again.append(node)
            else:
                try:
                    members[node] = member_of(reply, problem)
                except Exception as error:  # an error of a single node must not end the run
                    LOG.warning(Notice(f"{labels[node]}: {rejection_reason(error)}", "node-rejected", labels[node]))
        pending = again
        # Flower lost the message or the reply, or the run is not approved yet: ask again at intervals that double.
        if pending:
            time.sleep(min(pause, LONGEST_PAUSE, max(0.0, end - time.monotonic())))
            pause *= 2
    return members


def member_of(reply: Message | None, problem: str = "") -> JoinedSite:
    """Read a site's description of itself.

    Raises:
        ProtocolError: If there is no valid reply in this version of drfl's protocol.
    """
    if reply is None:
        raise ProtocolError(f"its description is rejected: {problem}")
    if reply.has_error():
        raise ProtocolError(f"cannot describe itself: {error_reason(reply)}")
    # Check the size before parsing, because a site may send anything.
    if not reply.has_content() or payload_size(reply.content) > MOST_IDENTITY_BYTES:
        raise ProtocolError("its description is rejected: it is empty or too long")
    try:
        identity, head = read(reply.content, SiteIdentity), read_head(reply.content)
    except ProtocolError as error:
        raise ProtocolError(f"its description is rejected: {error}") from None
    return JoinedSite(identity, digest_of_content(reply.content), head)


def gather_members(
    grid: Grid,
    roster: Roster,
    wait: float,
    timeout: float,
    audit: AuditLog | None = None,
    holdout: HoldOut | None = None,
) -> dict[int, JoinedSite]:
    """Wait until all clients are online and have described themselves.

    They must be online within ``wait`` seconds, and answer within ``timeout``.

    Returns:
        The descriptions by client.

    Raises:
        InputError: If some clients are not online in time, or do not sign their audit logs with their keys.
    """
    end, reported = time.monotonic() + wait, list[str]()
    while True:
        nodes = roster.nodes(grid)
        missing = [name for client, name in enumerate(roster.names) if client not in nodes]
        if not missing:
            break
        if time.monotonic() >= end:
            raise InputError(
                f"these sites are not online after {wait:g} s: {', '.join(missing)}. Check that their SuperNodes run "
                "and are registered (drfl deploy check), wait longer (drfl deploy run --wait), or remove them (drfl "
                "deploy remove-site)",
                code="sites-missing",
            )
        if missing != reported:
            left = max(0.0, end - time.monotonic())
            text = f"waiting up to {left:.0f} s for these sites, which are not online: {', '.join(missing)}"
            LOG.warning(Notice(text, "sites-missing"))
            reported = missing
        time.sleep(PAUSE)
    # Every site is needed: the clients' weights and shares have one entry per site, which stays fixed in a run.
    names = {node.id: roster.names[client] for client, node in nodes.items()}
    answers = query_identities(grid, list(names), timeout, audit, holdout, names)
    silent = [roster.names[client] for client, node in nodes.items() if node.id not in answers]
    if silent:
        raise InputError(
            f"these sites did not describe themselves: {', '.join(silent)}. See the log for the reasons and correct "
            "them at the sites, or remove the sites from server.toml",
            code="sites-missing",
        )
    # Sort, because every random draw depends on the order of the clients.
    members = {client: answers[node.id] for client, node in sorted(nodes.items())}
    for client, member in members.items() if audit is not None else ():
        try:
            roster.check_head(client, member.head)
        except ProtocolError as error:
            raise InputError(f"{roster.names[client]}: {error}", code="bad-signature", field="key") from None
    return members


def gather_sites(grid: Grid, count: int, wait: float, timeout: float) -> dict[int, SiteIdentity]:
    """Wait until at least ``count`` sites have described themselves.

    They must be online within ``wait`` seconds, and answer within ``timeout``.

    Returns:
        The descriptions of all sites that are online, by node ID.

    Raises:
        InputError: If there are too few sites, or two have the same name.
    """
    end, members = time.monotonic() + wait, {}
    while True:
        present = set(grid.get_node_ids())
        # Nodes may leave before enough have joined, so count only those that are online.
        members = {node: member for node, member in members.items() if node in present}
        # Pause at least once, so that nodes that joined at the last moment are asked too.
        remaining = max(PAUSE, min(timeout, end - time.monotonic()))
        # Ask only nodes that have not answered yet.
        members |= query_identities(grid, sorted(present - members.keys()), remaining)
        if len(members) >= count:
            break
        if time.monotonic() >= end:
            raise InputError(
                f"only {len(members)} of the required {count} sites described themselves within {wait:g} s "
                f"({len(present)} nodes are online). Check that the sites run, and that their ClientApp answers "
                '@app.query("identity") with identity(site)',
                code="sites-missing",
            )
        time.sleep(PAUSE)
    names = [member.identity.name for member in members.values()]
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"two sites have the name '{name}'. Give each Site another name",
                code="duplicate-name",
                field=name,
            )
    return {node: member.identity for node, member in members.items()}
