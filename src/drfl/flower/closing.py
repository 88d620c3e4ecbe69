"""Record the start and the end of a run in the server's audit log, and send every site the end."""

from __future__ import annotations

import logging
import time

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from drfl.core.audit_log import AuditLog
from drfl.core.errors import DrflError
from drfl.flower.client_app import CLOSING, QUERY
from drfl.flower.nodes import Roster, error_reason, exchange_once
from drfl.flower.records import MOST_FIELDS, ProtocolError, payload_size, read_head, rejection_reason, write_head

LOG = logging.getLogger("drfl.flower")

SERVER = "server"
"""Name of the owner in the log of a server."""

CLOSING_TIMEOUT = 30.0
"""Longest time in seconds for the sites to answer the last message of a run."""


class AuditedRun:
    """The record of a run in the server's audit log.

    If the server is killed, the run stays open in the log, and the next start in the log ends it.

    Without an audit log it does nothing.
    """

    def __init__(self, audit: AuditLog | None, grid: Grid, roster: Roster, timeout: float) -> None:
        # The training is over, so a site that went offline must not delay the results for a whole timeout.
        self.audit, self.grid, self.roster, self.timeout = audit, grid, roster, min(timeout, CLOSING_TIMEOUT)
        self._open = False

    def start(self) -> None:
        """Write the start to the log."""
        if self.audit is not None:
            self.audit.add("started", run=self._run, sites=list(self.roster.names))
            self._open = True

    @property
    def _run(self) -> str:
        return str(self.grid.run.run_id)

    def close(self, outcome: str) -> None:
        """Send every site the head of the log, record the heads of the sites' logs, and write the end.

        Without this message, lines after a run's last request could be removed from both logs.

        Args:
            outcome: "completed", "diverged" or "failed".
        """
        if self.audit is None or not self._open:
            return
        # A run that fails while it closes must not close again.
        self._open = False
        head, end = self.audit.add("closing", run=self._run, outcome=outcome), time.monotonic() + self.timeout
        try:
            nodes = {node.id: client for client, node in self.roster.nodes(self.grid).items()}
            # All sites get the same head, so that each holds the same proof of the whole run.
            content = write_head(RecordDict(), head)
            kind, ttl = f"{QUERY}{CLOSING}", max(1.0, self.timeout)
            requests = [Message(content, node, kind, ttl=ttl) for node in nodes]
            for node, (_, reply, problem) in exchange_once(self.grid, requests, end):
                name = self.roster.names[nodes[node]]
                try:
                    if reply is not None and reply.has_error():
                        raise ProtocolError(error_reason(reply))
                    if reply is None or not reply.has_content():
                        raise ProtocolError(problem or "it gave no answer")
                    # Check the size before parsing, because a site may send anything.
                    if payload_size(reply.content) > MOST_FIELDS:
                        raise ProtocolError("its answer is too long")
                    site_head = read_head(reply.content)
                    self.roster.check_head(nodes[node], site_head)
                except Exception as error:  # an error of a single site must not end the run
                    LOG.warning("%s: the head of its audit log is unknown: %s", name, rejection_reason(error))
                    continue
                if site_head is not None:
                    self.audit.add("parted", site=name, head=str(site_head))
        except DrflError:
            raise
        except Exception as error:  # the run has ended, and an unreachable SuperLink must not change its outcome
            LOG.warning("the end of the audit log was not sent to the sites (%s)", type(error).__name__)
        self.audit.add("finished", run=self._run, outcome=outcome)
