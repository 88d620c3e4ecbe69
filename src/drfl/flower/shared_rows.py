"""Find rows that several sites hold, by keyed hashes that the server can compare but not compute."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from flwr.app import RecordDict

from drfl.core.errors import Notice, listing
from drfl.data.checks.rows import EXCESS, LEAST, ROOM
from drfl.flower.ask_once import ask_once
from drfl.flower.client_app import ROWS
from drfl.flower.messages import HASH_BYTES, MOST_HASHES, SharedRows
from drfl.flower.session import Session

LOG = logging.getLogger("drfl.flower")

FEW = 20
"""Minimum number of rows at which a site whose rows are all at another site is reported, even if rows are coarse."""


def compare_sites(session: Session) -> list[Notice]:
    """Ask all sites for the hashes of their rows, if all of them have the same key, and warn of shared rows."""
    names, members = session.roster.names, session.members
    keys = {member.row_key for member in members.values()}
    if keys == {""} or len(members) < 2:
        return []
    if "" in keys:
        without = [names[client] for client, member in sorted(members.items()) if not member.row_key]
        LOG.info("rows are not compared between sites, because %s did not agree", listing(without, "site"))
        return []
    if len(keys) > 1:
        text = "rows are not compared between sites, because their keys (shared_rows_key) differ"
        notices = [Notice(text, "sites-differ", "shared_rows_key")]
    else:
        # The request has no content.
        contents = dict.fromkeys(range(len(names)), RecordDict())
        reports, reasons = ask_once(session, contents, ROWS, SharedRows)
        for client, reason in sorted(reasons.items()):
            name = names[client]
            LOG.warning(Notice(f"{name}: its rows are not compared: {reason}", "rows-not-compared", name))
        notices = shared_row_notices(names, reports)
    for notice in notices:
        LOG.warning(notice)
    return notices


def shared_row_notices(names: Sequence[str], reports: Mapping[int, SharedRows]) -> list[Notice]:
    """Warn of each pair of sites that shares more rows than coincidences explain, the largest first."""
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
