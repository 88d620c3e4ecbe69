"""The frame of a run in the server's audit log: its start, and its end, of which every site is told."""

from __future__ import annotations

import logging
import time
from types import TracebackType

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from drfl.core.audit_log import AuditLog, Head
from drfl.core.errors import DrflError
from drfl.flower.client_app import CLOSING
from drfl.flower.nodes import PAUSE, Roster, received
from drfl.flower.records import MOST_FIELDS, ProtocolError, payload, read_head, rejection_reason, write_head

LOG = logging.getLogger("drfl.flower")

SERVER = "server"
"""The owner's name in the log of a server."""

LONGEST = 30.0
"""Seconds at most that the sites have to answer the last message of a run."""


class AuditedRun:
    """Marks a run's start in the server's log when it is entered; a run that fails is closed when it is left.

    A server that is killed leaves a run open, which the next start in the log ends.

    Args:
        audit: The server's log; None = nothing is done.
        grid: Flower's.
        roster: Who the nodes are.
        timeout: Seconds that an exchange may take.
    """

    def __init__(self, audit: AuditLog | None, grid: Grid, roster: Roster, timeout: float) -> None:
        self.audit, self.grid, self.roster, self.timeout = audit, grid, roster, min(timeout, LONGEST)
        self._open = False

    def __enter__(self) -> AuditedRun:
        """Write the start to the log."""
        if self.audit is not None:
            self.audit.add("started", run=self._run, sites=list(self.roster.names))
            self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close a run that ended with an error; one that was interrupted stays open."""
        if self._open and isinstance(error, Exception):
            try:
                self.close("failed")
            except DrflError as other:  # the first error says why the run failed
                LOG.warning("%s", other)

    @property
    def _run(self) -> str:
        return str(self.grid.run.run_id)

    def close(self, outcome: str) -> None:
        """Tell every site the head of the log, note theirs, and write the end.

        Without this message, lines after a run's last request could be cut off both logs.

        Args:
            outcome: "completed", "diverged" or "failed".

        Raises:
            DrflError: The log cannot be written to.
        """
        if self.audit is None or not self._open:
            return
        # A run that fails while it closes must not close again.
        self._open = False
        head = self.audit.add("closing", run=self._run, outcome=outcome)
        try:
            self._tell(self.audit, head)
        except DrflError:
            raise
        except Exception as error:  # the run has ended: a SuperLink that cannot be reached must not change how
            LOG.warning("the sites were not told the end of the audit log (%s)", type(error).__name__)
        self.audit.add("finished", run=self._run, outcome=outcome)

    def _tell(self, audit: AuditLog, head: Head) -> None:
        end = time.monotonic() + self.timeout
        clients = {node.id: client for client, node in self.roster.nodes(self.grid).items()}
        # All sites get the same head, so that each holds the same proof of the whole run.
        content = write_head(RecordDict(), head)
        messages = [Message(content, node, CLOSING, ttl=max(1.0, self.timeout)) for node in clients]
        ids = self.grid.push_messages(messages)
        waiting = {i: clients[node] for i, node in zip(ids, clients, strict=True) if i}
        while waiting:
            for one in list(received(self.grid, list(waiting))):
                client = waiting.pop(one.message)
                try:
                    if one.reply is None or not one.reply.has_content():
                        raise ProtocolError(one.problem or "it gave no answer")
                    # Check the size before reading, as a site may send anything.
                    if payload(one.reply.content) > MOST_FIELDS:
                        raise ProtocolError("its answer is too long")
                    theirs = read_head(one.reply.content)
                    self.roster.check_head(client, theirs)
                except Exception as error:  # no reply of a single site may end the run, whatever error it causes
                    LOG.warning(
                        "%s: the head of its audit log is unknown: %s",
                        self.roster.names[client],
                        rejection_reason(error),
                    )
                    continue
                if theirs is not None:
                    audit.add("parted", site=self.roster.names[client], head=str(theirs))
            if not waiting or time.monotonic() >= end:
                return
            time.sleep(PAUSE)
