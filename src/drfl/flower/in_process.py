"""A Flower ``Grid`` in one process: a client app runs as soon as its message is pushed."""

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
"""Flower's error code for a client app that raised an exception."""


class InProcessGrid(Grid):
    """A grid that runs the client app of several nodes itself, for tests and to try out an app without a server.

    Messages and replies go through Flower's serialisation, so that a message that cannot be serialised fails here too.

    Args:
        app: The client app, the same at all nodes.
        nodes: The configuration of each node, as ``--node-config`` of a SuperNode would give it.
        keys: The public key of each node. By default nodes have no keys.

    Attributes:
        offline: IDs of nodes that are offline. Tests may change it.
    """

    def __init__(self, app: ClientApp, nodes: Sequence[UserConfig], keys: Sequence[bytes] = ()) -> None:
        self.app, self._run = app, Run.create_empty(1)
        self.contexts: dict[int, Context] = {
            node: Context(1, node, config, RecordDict(), {}) for node, config in enumerate(nodes, start=1)
        }
        self.keys: Mapping[int, bytes] = dict(enumerate(keys, start=1))
        self.offline: set[int] = set()
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
        """Return the IDs of all nodes that are not in ``away``."""
        return [node for node in self.contexts if node not in self.offline]

    def get_nodes(self) -> list[NodeInfo]:
        """Return the same nodes with their public keys."""
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Run the app on each message at once."""
        ids = []
        for message in messages:
            name = str(uuid.uuid4())
            # The SuperLink assigns the message ID, and Flower has no public way to set it.
            message.metadata.__dict__["_message_id"] = name
            node = message.metadata.dst_node_id
            self.count[node] += 1
            # Like the SuperLink, accept messages to nodes that are offline, and never answer them.
            if node not in self.offline:
                self._replies[name] = self.answer(_copy_by_bytes(message), self.contexts[node])
            ids.append(name)
        return ids

    def answer(self, message: Message, context: Context) -> Message:
        """Run the app and return its reply; an exception becomes an error reply, as in Flower."""
        try:
            return _copy_by_bytes(self.app(message, context))
        except Exception as error:
            return Message(Error(CRASHED, f"{type(error).__name__}: {error}"), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to these messages that have not been pulled yet."""
        return [self._replies.pop(name) for name in list(message_ids) if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Push the messages and pull the replies, which are available at once."""
        return self.pull_messages(self.push_messages(messages))


def _copy_by_bytes(message: Message) -> Message:
    """Return a copy of the message made from its bytes."""
    return message_from_proto(message_to_proto(message))
