"""Which nodes are there, which site each is, and whether it may take part."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from drfl.errors import InputError
from drfl.flower.client_app import IDENTITY
from drfl.flower.schema import MOST_TEXT, ProtocolError, SiteIdentity, payload, printable, read_note, rejection_reason
from drfl.flower.settings import SiteEntry

PAUSE = 0.5
"""Seconds between two looks at what has come."""

RETRIED = (3, 4, 5)
"""Flower's codes for a message, a reply or a node that was lost on the way: asked again while there is time."""


class Received(NamedTuple):
    """What has come in reply to a message.

    Args:
        message: the one that it replies to.
        reply: the reply; None where it cannot be read.
        problem: why it cannot, in one line.
    """

    message: str
    reply: Message | None
    problem: str = ""


def received(grid: Grid, messages: Iterable[str]) -> Iterator[Received]:
    """The replies to these messages that are there now, at most one to each.

    Flower rebuilds a reply from what the node has sent, and raises where that is malformed. Had it been asked for
    several at once, those it had fetched before would be lost; so it is asked for one at a time.

    Raises:
        OSError: the SuperLink cannot be reached; so does httpx.HTTPError.
    """
    for message in messages:
        try:
            found = [reply for reply in grid.pull_messages([message]) if reply.metadata.reply_to_message_id == message]
        except (OSError, httpx.HTTPError):
            raise
        except Exception as error:  # whatever the bytes that a node has sent make Flower raise
            yield Received(message, None, f"it cannot be rebuilt ({type(error).__name__}: {printable(error, 80)})")
            continue
        if found:
            yield Received(message, found[0])


LOG = logging.getLogger("drfl.flower")


@dataclass(frozen=True)
class Member:
    """What a site has told of itself.

    Args:
        name: what it is called.
        shape: of an input.
        classes: as many as its labels need.
        train: number of training samples.
        test: number of test samples.
        digest: names its data.
        versions: of drfl and torch there.
    """

    name: str
    shape: tuple[int, ...]
    classes: int
    train: int
    test: int
    digest: str
    versions: Mapping[str, str]


class Node(NamedTuple):
    """Where a client is now.

    Args:
        id: the node's number.
        since: when it was started last, as the SuperLink tells; a message that it got before is lost.
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
        """Client → node, for those that are there now."""
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
        known = {key: client for client, key in enumerate(self.keys)}
        there = (node for node in grid.get_nodes() if node.public_key in known)
        return {known[node.public_key]: Node(node.node_id, node.last_activated_at) for node in there}


class Named:
    """Nodes known by the names that they tell.

    Args:
        names: (N,) what the clients are called.
        timeout: seconds that a node may take to tell its name.
        told: node → name, of those that have told it already.
    """

    def __init__(self, names: Sequence[str], timeout: float = 60.0, told: Mapping[int, str] | None = None) -> None:
        self.names, self.timeout = tuple(names), timeout
        self._named: dict[int, str | None] = dict(told or {})

    def nodes(self, grid: Grid) -> dict[int, Node]:
        """See :class:`Roster`. Of two nodes with one name the older keeps it, as long as it is there."""
        since = {node.node_id: node.last_activated_at for node in grid.get_nodes()}
        present = sorted(since)
        self._named = {node: name for node, name in self._named.items() if node in present}
        new = [node for node in present if node not in self._named]
        # one that does not tell is not asked again until it is started anew
        found = identities(grid, new, self.timeout) if new else {}
        self._named |= {node: found[node].name if node in found else None for node in new}
        nodes: dict[int, Node] = {}
        for node, name in self._named.items():
            if name in self.names:
                nodes.setdefault(self.names.index(name), Node(node, since[node]))
        return nodes


class SelfNamed(Named):
    """Nodes that are believed who they are: for trials only.

    Args:
        names: (N,) what the clients are called.
        timeout: seconds that a node may take to tell its name.
    """

    def __init__(self, names: Sequence[str], timeout: float = 60.0) -> None:
        super().__init__(names, timeout)
        LOG.warning("insecure: sites are taken for who they say they are; anybody who can reach the server can join")


def identities(grid: Grid, nodes: Iterable[int], timeout: float) -> dict[int, Member]:
    """What nodes tell of themselves; those that do not answer, or not in drfl's language, are left out and logged."""
    end, found = time.monotonic() + timeout, {}
    asking, pause = list(nodes), PAUSE
    while asking and time.monotonic() < end:
        asking = _told(grid, asking, end, found)
        if asking:  # Flower lost the message or the reply: at ever longer intervals they are asked again
            time.sleep(min(pause, max(0.0, end - time.monotonic())))
            pause *= 2
    return found


def _told(grid: Grid, nodes: Sequence[int], end: float, found: dict[int, Member]) -> list[int]:
    """Ask nodes once who they are, and note what they tell; gives those whose message or reply was lost on the way."""
    left, lost = max(1.0, end - time.monotonic()), []
    asked = [Message(RecordDict(), node, IDENTITY, ttl=left) for node in nodes]
    waiting = {i: one.metadata.dst_node_id for i, one in zip(grid.push_messages(asked), asked, strict=True) if i}
    while waiting:
        for message, reply, problem in list(received(grid, list(waiting))):
            node = waiting.pop(message)
            if reply is not None and reply.has_error() and reply.error.code in RETRIED:
                lost.append(node)
                continue
            try:
                found[node] = member_of(reply, problem)
            except Exception as error:  # whatever it makes raise, what a node says must not end everybody's run
                LOG.warning("node %d: %s", node, rejection_reason(error))
        if not waiting or time.monotonic() >= end:
            break
        time.sleep(PAUSE)
    return lost


def member_of(reply: Message | None, problem: str = "") -> Member:
    """What a site has told of itself.

    Args:
        reply: to the question who it is; None where it cannot be read.
        problem: why it cannot.

    Raises:
        ProtocolError: there is no reply in this version of drfl's language.
    """
    if reply is None:
        raise ProtocolError(f"its identity is rejected, as {problem}")
    if reply.has_error():
        raise ProtocolError(f"it cannot say who it is: {printable(reply.error.reason or f'error {reply.error.code}')}")
    if not reply.has_content() or payload(reply.content) > MOST_TEXT:
        raise ProtocolError("its identity is rejected, as it is empty or too long")
    try:
        about = read_note(reply.content, "identity", SiteIdentity)
    except ProtocolError as error:
        raise ProtocolError(f"its identity is rejected, as {error}") from None
    versions = {"drfl": about.drfl, "torch": about.torch}
    return Member(about.name, tuple(about.shape), about.classes, about.train, about.test, about.digest, versions)


def gathered(grid: Grid, roster: Roster, wait: float, timeout: float) -> dict[int, Member]:
    """Wait until all clients are there and have told of themselves.

    Args:
        grid: where the nodes are.
        roster: who they are.
        wait: seconds until they must all be there.
        timeout: seconds that a client may take to answer.

    Raises:
        InputError: some are not there in time; names them.
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
                "are registered (drfl deploy check), or leave them out of server.toml"
            )
        time.sleep(PAUSE)
    told = identities(grid, [node.id for node in nodes.values()], timeout)
    silent = [roster.names[client] for client, node in nodes.items() if node.id not in told]
    if silent:
        raise InputError(
            f"these sites do not say who they are: {', '.join(silent)}; the log has the reason of each: mend it there, "
            "or leave them out of server.toml"
        )
    return {client: told[node.id] for client, node in sorted(nodes.items())}


def enrolled(grid: Grid, least: int, wait: float, timeout: float) -> dict[int, Member]:
    """Wait until so many sites have told of themselves.

    Args:
        grid: where the nodes are.
        least: how many sites.
        wait: seconds until they must be there.
        timeout: seconds that a node may take to answer.

    Returns:
        Node → what it told, of all that are there by then.

    Raises:
        InputError: they are too few, or two have one name.
    """
    end, told = time.monotonic() + wait, {}
    while True:
        present = set(grid.get_node_ids())
        told = {node: member for node, member in told.items() if node in present}
        left = max(PAUSE, min(timeout, end - time.monotonic()))
        told |= identities(grid, sorted(present - told.keys()), left)
        if len(told) >= least:
            break
        if time.monotonic() >= end:
            raise InputError(
                f"after {wait:g} s {len(told)} of at least {least} sites have told their names, of {len(present)} "
                'nodes: see that they run, and that their ClientApp answers @app.query("identity") with identity(site)'
            )
        time.sleep(PAUSE)
    names = [member.name for member in told.values()]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two sites call themselves '{name}': give each Site a name of its own")
    return told


def admit(members: Mapping[int, Member], entries: Sequence[SiteEntry]) -> None:
    """Refuse a deployment in which a site claims more than it was granted.

    The number of its rows is a site's weight under FedAvg, and its labels decide how large everybody's model is; both
    are the site's own word.

    Args:
        members: client → what it tells.
        entries: (N,) what the server's file says of the sites.

    Raises:
        InputError: a site has too many rows or classes, or too large a share of all rows; names it.
    """
    total = sum(member.train for member in members.values())
    for client, entry in enumerate(entries):
        member = members[client]
        if member.name != entry.name:
            LOG.warning(
                "%s calls itself '%s'; results have the name in server.toml", entry.name, printable(member.name)
            )
        share = member.train / total
        for what, told, most in (
            ("rows", member.train, entry.rows),
            ("classes", member.classes, entry.classes),
            ("max_share", share, entry.max_share),
        ):
            if most is not None and told > most:
                claim = f"{told:.4g} of all training rows" if what == "max_share" else f"{told} {what}"
                raise InputError(
                    f"site '{entry.name}' claims {claim}, and server.toml allows it {what} = {most:g}: ask the site, "
                    f"then raise {what} or leave the site out"
                )
