"""Replies as the SuperLink has them, fetched so that one that cannot be read costs no other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from drfl.flower.schema import printable

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
