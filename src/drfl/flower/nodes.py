"""Which nodes are online, which site each is, and whether it may take part."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from drfl.core.audit_log import AuditLog, Head
from drfl.core.audit_signatures import public_key
from drfl.core.errors import InputError, Notice
from drfl.flower.client_app import IDENTITY
from drfl.flower.messages import SiteIdentity, most_identity_bytes
from drfl.flower.records import (
    ProtocolError,
    digest_of_content,
    payload,
    printable,
    read,
    read_head,
    rejection_reason,
    write_head,
)
from drfl.flower.site_policy import UNAPPROVED

PAUSE = 0.5
"""Seconds between two polls for replies."""

RETRIED = (3, 4, 5)
"""Flower's codes for a message, a reply or a node that was lost on the way: asked again while there is time."""


class Received(NamedTuple):
    """A reply to a message.

    Args:
        message: the one that it replies to.
        reply: the reply; None where it cannot be read.
        problem: why it cannot, in one line.
    """

    message: str
    reply: Message | None
    problem: str = ""


def received(grid: Grid, messages: Iterable[str]) -> Iterator[Received]:
    """The replies to these messages that have arrived, at most one to each.

    Flower rebuilds a reply from what the node has sent, and raises where that is malformed. Asked for several at once,
    it would lose those that it had fetched before; so it is asked for one at a time.

    Raises:
        OSError: the SuperLink cannot be reached; so does httpx.HTTPError.
    """
    for message in messages:
        try:
            found = [reply for reply in grid.pull_messages([message]) if reply.metadata.reply_to_message_id == message]
        except (OSError, httpx.HTTPError):
            raise
        except Exception as error:  # Flower may raise anything on malformed bytes of a node
            yield Received(message, None, f"it cannot be rebuilt ({type(error).__name__}: {printable(error, 80)})")
            continue
        if found:
            yield Received(message, found[0])


LOG = logging.getLogger("drfl.flower")

SLOWEST = 10.0
"""Seconds at most between two questions to a node who it is."""


class Member(NamedTuple):
    """A site that has described itself.

    Args:
        identity: its description of itself.
        digest: of the message that this came in.
        head: of the site's audit log; None where it keeps none.
    """

    identity: SiteIdentity
    digest: str
    head: Head | None


class Node(NamedTuple):
    """Where a client is now.

    Args:
        id: the node's number.
        since: when it was last started, by the SuperLink's record; messages from before that are lost.
    """

    id: int
    since: str = ""


class Roster(Protocol):
    """Knows the nodes of the clients; nodes may come, go, and come back under another id."""

    @property
    def names(self) -> tuple[str, ...]:
        """(N,) what the clients are called."""
        ...

    def nodes(self, grid: Grid) -> dict[int, Node]:
        """Client → node, for those that are online."""
        ...

    def check_head(self, client: int, head: Head | None) -> None:
        """Verify the signature of the head of a client's audit log.

        Raises:
            ProtocolError: it is not signed with the client's key.
        """
        ...


@dataclass(frozen=True)
class Registered:
    """Nodes known by the public key with which the SuperLink has let them in.

    Args:
        names: (N,) what the clients are called.
        keys: (N,) their public keys, as the SuperLink has them.
    """

    names: tuple[str, ...]
    keys: tuple[bytes, ...]

    def nodes(self, grid: Grid) -> dict[int, Node]:
        """See :class:`Roster`."""
        # Identify nodes by key, as a node that restarts gets another id.
        known = {key: client for client, key in enumerate(self.keys)}
        there = (node for node in grid.get_nodes() if node.public_key in known)
        return {known[node.public_key]: Node(node.node_id, node.last_activated_at) for node in there}

    def check_head(self, client: int, head: Head | None) -> None:
        """See :class:`Roster`."""
        key = public_key(self.keys[client])
        if head is not None and (key is None or not head.is_signed_by(key)):
            raise ProtocolError("the head of its audit log is not signed with its key: see 'key' in its site.toml")


class Named:
    """Nodes identified by the names that they report.

    Args:
        names: (N,) the clients' names.
        timeout: seconds that a node may take to report its name.
        told: node → name, of those that have reported it already.
        audit: the server's log; None = none.
    """

    def __init__(
        self,
        names: Sequence[str],
        timeout: float = 60.0,
        told: Mapping[int, str] | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self.names, self.timeout, self.audit = tuple(names), timeout, audit
        self._named: dict[int, str | None] = dict(told or {})

    def nodes(self, grid: Grid) -> dict[int, Node]:
        """See :class:`Roster`. Of two nodes with one name the older keeps it while it is online."""
        since = {node.node_id: node.last_activated_at for node in grid.get_nodes()}
        present = sorted(since)
        # A node that left is forgotten: back under the same id, it is asked for its name again.
        self._named = {node: name for node, name in self._named.items() if node in present}
        new = [node for node in present if node not in self._named]
        # A node without a usable answer is not asked again while it stays online.
        found = identities(grid, new, self.timeout, self.audit) if new else {}
        self._named |= {node: found[node].identity.name if node in found else None for node in new}
        nodes: dict[int, Node] = {}
        for node, name in self._named.items():
            if name in self.names:
                # setdefault: the node that was asked first keeps the name.
                nodes.setdefault(self.names.index(name), Node(node, since[node]))
        return nodes

    def check_head(self, client: int, head: Head | None) -> None:
        """See :class:`Roster`. No key of a client is known here."""


class SelfNamed(Named):
    """Nodes that are not authenticated: for trials only.

    Args:
        names: (N,) what the clients are called.
        timeout: seconds that a node may take to tell its name.
        audit: the server's log; None = none.
    """

    def __init__(self, names: Sequence[str], timeout: float = 60.0, audit: AuditLog | None = None) -> None:
        super().__init__(names, timeout, audit=audit)
        text = "insecure: sites are not authenticated; anybody who can reach the server can join under any name"
        LOG.warning(Notice(text, "insecure-deployment"))


def identities(grid: Grid, nodes: Iterable[int], timeout: float, audit: AuditLog | None = None) -> dict[int, Member]:
    """The nodes' descriptions of themselves; nodes without a valid answer are left out and logged.

    Args:
        grid: of the nodes.
        nodes: which.
        timeout: seconds that they may take.
        audit: the server's log, whose head the questions carry; None = none.
    """
    end, found = time.monotonic() + timeout, {}
    asking, pause, unapproved = list(nodes), PAUSE, set()
    head = None if audit is None else audit.head()
    while asking and time.monotonic() < end:
        asking = _ask_once(grid, asking, end, found, unapproved, head)
        # Flower lost the message or the reply, or nobody has agreed yet: asked again at intervals that double.
        if asking:
            time.sleep(min(pause, SLOWEST, max(0.0, end - time.monotonic())))
            pause *= 2
    return found


def _ask_once(
    grid: Grid, nodes: Sequence[int], end: float, found: dict[int, Member], unapproved: set[int], head: Head | None
) -> list[int]:
    """Ask nodes once who they are, and note the answers and the nodes where nobody has agreed to the run; returns those
    that are to be asked again.
    """
    left, lost = max(1.0, end - time.monotonic()), []
    asked = [Message(write_head(RecordDict(), head), node, IDENTITY, ttl=left) for node in nodes]
    # Flower gives no id for a message that it did not take; that node is then left out.
    waiting = {i: one.metadata.dst_node_id for i, one in zip(grid.push_messages(asked), asked, strict=True) if i}
    while waiting:
        for message, reply, problem in list(received(grid, list(waiting))):
            node = waiting.pop(message)
            if reply is not None and reply.has_error() and reply.error.code in RETRIED:
                lost.append(node)
                continue
            if reply is not None and reply.has_error() and UNAPPROVED in (reply.error.reason or ""):
                if node not in unapproved:
                    LOG.warning(Notice(f"node {node}: the run {UNAPPROVED}", "run-not-approved", f"node {node}"))
                unapproved.add(node)
                lost.append(node)
                continue
            try:
                found[node] = member_of(reply, problem)
            except Exception as error:  # no answer of a single node may end the run, whatever error it causes
                LOG.warning(Notice(f"node {node}: {rejection_reason(error)}", "node-rejected", f"node {node}"))
        if not waiting or time.monotonic() >= end:
            break
        time.sleep(PAUSE)
    return lost


def member_of(reply: Message | None, problem: str = "") -> Member:
    """A site's description of itself.

    Args:
        reply: to the request for it; None where it cannot be read.
        problem: why it cannot.

    Raises:
        ProtocolError: there is no reply in this version of drfl's protocol.
    """
    if reply is None:
        raise ProtocolError(f"its identity is rejected, as {problem}")
    if reply.has_error():
        raise ProtocolError(f"it cannot say who it is: {printable(reply.error.reason or f'error {reply.error.code}')}")
    # Check the size before parsing, as a site may send anything.
    if not reply.has_content() or payload(reply.content) > most_identity_bytes():
        raise ProtocolError("its identity is rejected, as it is empty or too long")
    try:
        identity, head = read(reply.content, SiteIdentity), read_head(reply.content)
    except ProtocolError as error:
        raise ProtocolError(f"its identity is rejected, as {error}") from None
    return Member(identity, digest_of_content(reply.content), head)


def gathered(
    grid: Grid, roster: Roster, wait: float, timeout: float, audit: AuditLog | None = None
) -> dict[int, Member]:
    """Wait until all clients are online and have described themselves.

    Args:
        grid: of the nodes.
        roster: who they are.
        wait: seconds until all must be online.
        timeout: seconds that a client may take to answer.
        audit: the server's log; None = none.

    Raises:
        InputError: some are not online in time, or their audit logs are not signed with their keys; names them.
    """
    end = time.monotonic() + wait
    while True:
        nodes = roster.nodes(grid)
        missing = [name for client, name in enumerate(roster.names) if client not in nodes]
        if not missing:
            break
        if time.monotonic() >= end:
            raise InputError(
                f"after {wait:g} s these sites are not there: {', '.join(missing)}; see that their SuperNodes run and "
                "are registered (drfl deploy check), or leave them out of server.toml",
                code="sites-missing",
            )
        time.sleep(PAUSE)
    told = identities(grid, [node.id for node in nodes.values()], timeout, audit)
    silent = [roster.names[client] for client, node in nodes.items() if node.id not in told]
    if silent:
        raise InputError(
            f"these sites do not say who they are: {', '.join(silent)}; the log has the reason of each: fix it there, "
            "or leave them out of server.toml",
            code="sites-missing",
        )
    # Every random draw depends on the order of the clients.
    members = {client: told[node.id] for client, node in sorted(nodes.items())}
    for client, member in members.items() if audit is not None else ():
        try:
            roster.check_head(client, member.head)
        except ProtocolError as error:
            raise InputError(f"{roster.names[client]}: {error}", code="bad-signature", field="key") from None
    return members


def enrolled(grid: Grid, least: int, wait: float, timeout: float) -> dict[int, SiteIdentity]:
    """Wait until so many sites have described themselves.

    Args:
        grid: where the nodes are.
        least: how many sites.
        wait: seconds until they must be online.
        timeout: seconds that a node may take to answer.

    Returns:
        Node → its description, of all that are online by then.

    Raises:
        InputError: they are too few, or two have one name.
    """
    end, told = time.monotonic() + wait, {}
    while True:
        present = set(grid.get_node_ids())
        # Nodes may leave again before enough have come: only those that are online count.
        told = {node: member for node, member in told.items() if node in present}
        left = max(PAUSE, min(timeout, end - time.monotonic()))
        # Ask only nodes that have not answered yet.
        told |= identities(grid, sorted(present - told.keys()), left)
        if len(told) >= least:
            break
        if time.monotonic() >= end:
            raise InputError(
                f"after {wait:g} s {len(told)} of at least {least} sites have told their names, of {len(present)} "
                'nodes: see that they run, and that their ClientApp answers @app.query("identity") with identity(site)',
                code="sites-missing",
            )
        time.sleep(PAUSE)
    names = [member.identity.name for member in told.values()]
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"two sites call themselves '{name}': give each Site a name of its own",
                code="duplicate-name",
                field=name,
            )
    return {node: member.identity for node, member in told.items()}
