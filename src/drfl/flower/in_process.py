"""A Flower ``Grid`` without Flower's processes: every client app runs here, when its message is pushed."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

CRASHED = 2
"""Flower's code for a client app that raised."""


class InProcessGrid(Grid):
    """Runs a client app for each of several nodes: for tests, and to try an app out before there is a server.

    Messages and replies go through Flower's own serialisation, so that what cannot travel fails here too.

    Args:
        app: the client app, the same at all nodes.
        nodes: each node's configuration, as a SuperNode's --node-config would give it.
        keys: each node's public key; none = they have none.
    """

    def __init__(self, app: ClientApp, nodes: Sequence[UserConfig], keys: Sequence[bytes] = ()) -> None:
        self.app, self._run = app, Run.create_empty(1)
        self.contexts: dict[int, Context] = {
            place + 1: Context(1, place + 1, config, RecordDict(), {}) for place, config in enumerate(nodes)
        }
        self.keys: Mapping[int, bytes] = {place + 1: key for place, key in enumerate(keys)}
        self.away: set[int] = set()
        self.count: defaultdict[int, int] = defaultdict(int)
        self._replies: dict[str, Message] = {}
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 0

    def set_run(self, run: Run) -> None:
        """See Flower's ``Grid``."""
        self._run = run

    @property
    def run(self) -> Run:
        """See Flower's ``Grid``."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """See Flower's ``Grid``."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Nodes that are there: all but those in ``away``."""
        return [node for node in self.contexts if node not in self.away]

    def get_nodes(self) -> list[NodeInfo]:
        """The same, with what is known of them."""
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Run the app on each message at once."""
        ids = []
        for message in messages:
            name = str(uuid.uuid4())
            # The SuperLink numbers messages, and Flower has no public way to set the number.
            message.metadata.__dict__["_message_id"] = name
            node = message.metadata.dst_node_id
            self.count[node] += 1
            # Like the SuperLink, accept messages to nodes that are away, and never answer them.
            if node not in self.away:
                self._replies[name] = self.answer(_travelled(message), self.contexts[node])
            ids.append(name)
        return ids

    def answer(self, message: Message, context: Context) -> Message:
        """The app's reply; an error where it raises, as Flower does it."""
        try:
            return _travelled(self.app(message, context))
        except Exception as error:
            # Flower turns an exception of the app into a reply with an error.
            return Message(Error(CRASHED, f"{type(error).__name__}: {error}"), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to these messages that have not been pulled yet."""
        return [self._replies.pop(name) for name in list(message_ids) if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Both; there is nothing to wait for."""
        return self.pull_messages(self.push_messages(messages))


def _travelled(message: Message) -> Message:
    """The message as it is after a journey: a copy made from its bytes."""
    return message_from_proto(message_to_proto(message))
