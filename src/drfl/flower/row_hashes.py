"""Keyed hashes of a site's rows, which a server can compare but not compute."""

from __future__ import annotations

import hmac

from drfl.data import ClientData
from drfl.data.checks.rows import canonical_rows
from drfl.flower.messages import HASH_BYTES, MOST_HASHES, SharedRows

AT_A_TIME = 4096
"""Rows that are converted at a time."""


def hash_rows(data: ClientData, key: bytes, run: int) -> SharedRows:
    """Hash the rows of a site: HMAC-SHA-256 of inputs and targets in float32, with a key for this run.

    The hashes are sorted and distinct, so they reveal neither the order of the rows nor which of them are equal. If
    there are too many, the smallest are sent: all sites then send hashes from the same range.

    The number of the run is part of the key, so that hashes of different runs cannot be compared.
    """
    of_run = hmac.digest(key, f"drfl rows of run {run}".encode(), "sha256")
    lists = [(data.inputs, data.targets, data.train[0]), (data.test_inputs, data.test_targets, data.test[0])]
    if data.validation is not None:
        lists.append((data.inputs, data.targets, data.validation[0]))
    hashes, count = set[bytes](), 0
    for inputs, targets, rows in lists:
        count += len(rows)
        for part in rows.split(AT_A_TIME):
            values, labels = (pool[part].detach().cpu().double().numpy() for pool in (inputs, targets))
            # Sites may read the same table as float32 or float64.
            whole = canonical_rows(values, labels).astype("<f4")
            hashes.update(hmac.digest(of_run, row.tobytes(), "sha256")[:HASH_BYTES] for row in whole)
    return SharedRows(count, len(hashes), b"".join(sorted(hashes)[:MOST_HASHES]))
