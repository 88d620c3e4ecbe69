"""Find rows that several sites hold, by keyed hashes that the server can compare but not compute."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from drfl.core.audit_log import AuditLog
from drfl.core.errors import Notice, listing, printable
from drfl.data.checks.rows import EXCESS, LEAST, ROOM
from drfl.flower.client_app import ROWS, ROWS_KIND
from drfl.flower.messages import HASH_BYTES, MOST_HASHES, SharedRows, SiteIdentity
from drfl.flower.nodes import ReceivedReply, Roster, digest_and_head, exchange_once
from drfl.flower.records import (
    MOST_SHOWN,
    ProtocolError,
    digest_of_content,
    payload_size,
    read,
    read_head,
    rejection_reason,
    write_head,
)

LOG = logging.getLogger("drfl.flower")

FEW = 20
"""Number of rows from which a site whose rows are all at another site is reported, even if rows are coarse."""


def compare_sites(
    grid: Grid, roster: Roster, members: Mapping[int, SiteIdentity], timeout: float, audit: AuditLog | None = None
) -> list[Notice]:
    """Ask all sites for the hashes of their rows, if all of them have the same key, and warn of shared rows.

    Args:
        grid: Flower's grid.
        roster: Mapping from clients to nodes.
        members: Each client's description of itself.
        timeout: Seconds to wait for the answers.
        audit: Audit log of the server; None for no log.
    """
    keys = {member.row_key for member in members.values()}
    if keys == {""} or len(members) < 2:
        return []
    if "" in keys:
        without = [roster.names[client] for client, member in sorted(members.items()) if not member.row_key]
        LOG.info("rows are not compared between sites, because %s did not agree", listing(without, "site"))
        return []
    if len(keys) > 1:
        text = "rows are not compared between sites, because their keys (shared_rows_key) differ"
        notices = [Notice(text, "sites-differ", "shared_rows_key")]
    else:
        notices = shared_row_notices(roster.names, _ask(grid, roster, timeout, audit))
    for notice in notices:
        LOG.warning(notice)
    return notices


def shared_row_notices(names: Sequence[str], reports: Mapping[int, SharedRows]) -> list[Notice]:
    """Warn of each pair of sites that shares more rows than coincidences explain, the largest first.

    Args:
        names: (N,) names of the sites.
        reports: The hashes by client.
    """
    sorted_hashes = {i: np.frombuffer(report.hashes, dtype=f">u{HASH_BYTES}") for i, report in reports.items()}
    found = []
    for a, b in combinations(sorted(reports), 2):
        one, other = reports[a], reports[b]
        # Both sites have sent all their hashes up to the smaller of the largest hashes of a site that sent a part.
        ends = [sorted_hashes[i][-1] for i in (a, b) if reports[i].distinct > MOST_HASHES]
        range_share = float(min(ends)) / 2.0 ** (8 * HASH_BYTES) if ends else 1.0
        count = len(np.intersect1d(sorted_hashes[a], sorted_hashes[b], assume_unique=True))
        # The share of pairs of equal rows within a site is that of coincidences, because copies make it larger only.
        chance = max(2 * (each.rows - each.distinct) / each.rows**2 for each in (one, other))
        expected = chance * one.rows * other.rows * range_share
        smaller = min(one.distinct, other.distinct) * range_share
        mostly_distinct = all(2 * each.distinct >= each.rows for each in (one, other))
        is_whole = count >= FEW and count >= 0.98 * smaller and mostly_distinct
        if is_whole or (count >= LEAST and count > EXCESS * (expected + ROOM)):
            found.append((count, "at least " if ends else "", a, b))
    found.sort(key=lambda case: -case[0])
    notices = []
    for count, least, a, b in found:
        text = (
            f"{names[a]} and {names[b]} share {least}{count} equal rows, of {reports[a].rows} and {reports[b].rows}. "
            "Check whether a file, or a patient, is in both"
        )
        notices.append(Notice(text, "shared-rows", f"{names[a]} and {names[b]}"))
    return notices


def _ask(grid: Grid, roster: Roster, timeout: float, audit: AuditLog | None) -> dict[int, SharedRows]:
    """Ask every site once; a site without a valid answer is missing and logged."""
    end, nodes, lines = time.monotonic() + timeout, roster.nodes(grid), dict[int, int]()
    messages = []
    for client, node in nodes.items():
        content = RecordDict()
        if audit is not None:
            values = {"what": ROWS_KIND, "stream": None, "digest": digest_of_content(content)}
            head = audit.add("asked", site=roster.names[client], **values)
            write_head(content, head)
            lines[client] = head.n
        messages.append(Message(content, node.id, ROWS, ttl=max(1.0, timeout)))

    def log(event: str, client: int, **fields: str | None) -> None:
        if audit is not None:
            audit.add(event, site=roster.names[client], request=lines[client], **fields)

    clients = {node.id: client for client, node in nodes.items()}
    silent, reports = set(nodes), dict[int, SharedRows]()
    for node, received in exchange_once(grid, messages, end):
        client = clients[node]
        silent.discard(client)
        try:
            reports[client] = _report(received, node, roster, client, audited=audit is not None)
            log("received", client, **digest_and_head(received))
        except ProtocolError as error:
            name = roster.names[client]
            LOG.warning(Notice(f"{name}: its rows are not compared: {error}", "reply-rejected", name))
            log("unusable", client, reason=str(error), **digest_and_head(received))
    for client in sorted(silent):
        name, reason = roster.names[client], f"no answer in {timeout:g} s"
        LOG.warning(Notice(f"{name}: its rows are not compared: {reason}", "reply-silent", name))
        log("silent", client, reason=reason)
    return reports


def _report(received: ReceivedReply, node: int, roster: Roster, client: int, *, audited: bool) -> SharedRows:
    """Read a site's hashes.

    Raises:
        ProtocolError: If the reply is not valid.
    """
    reply = received.reply
    if reply is not None and reply.has_error():
        raise ProtocolError(printable(reply.error.reason or f"error {reply.error.code}", MOST_SHOWN))
    if reply is None or not reply.has_content() or reply.metadata.src_node_id != node:
        raise ProtocolError(received.problem or "it is empty, or another node sent it")
    # Check the size before parsing, as a site may send anything.
    if payload_size(reply.content) > SharedRows.limit + 2**12:
        raise ProtocolError("it is too long")
    try:
        report, head = read(reply.content, SharedRows), read_head(reply.content)
    except Exception as error:  # an error of a single site must not end the run
        raise ProtocolError(rejection_reason(error)) from None
    if audited:
        roster.check_head(client, head)
    return report
