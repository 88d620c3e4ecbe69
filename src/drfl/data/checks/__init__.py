"""Checks of clients' data before training: errors in the data often decide which client is the worst."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from drfl.core.errors import Notice, lists_all
from drfl.data.checks.clients import client_warnings, label_warnings, unlabelled_rows
from drfl.data.checks.columns import column_warnings
from drfl.data.checks.raw_table import RawTable
from drfl.data.checks.rows import copy_warnings, near_copy_warnings, sum_warnings
from drfl.data.checks.targets import target_warnings
from drfl.data.client_data import ClientData

_FOUND: WeakKeyDictionary[ClientData, tuple[tuple[object, ...], tuple[Notice, ...]]] = WeakKeyDictionary()
"""The warnings on clients, and for which version of their tensors they are. torch counts the writes to a tensor."""


def data_warnings(data: ClientData, by_class: bool = False) -> tuple[Notice, ...]:
    """List likely errors in the clients' data.

    All data are checked for clients with few test rows, with few rows of a class, with unknown labels, and with similar
    names. Tables, that is inputs (n, p) of at most :data:`drfl.data.checks.raw_table.MOST` numbers, are also checked
    for columns in another unit, codes for missing values, and columns that number the rows or give the target away. The
    checks also find copies of rows, and targets that mean the opposite at a client.

    Args:
        data: The clients.
        by_class: Whether a partition gave the rows to clients by class. Differences between clients are then intended,
            and the checks that compare clients are skipped.

    Returns:
        One sentence per kind of problem, without a full stop. It names up to :data:`drfl.core.errors.MAX_LISTED`
        clients or columns. Each has a code. If it concerns a single client or column, its field is that client or
        column.
    """
    # The runs of a comparison share their clients, and a run needs the warnings at its start and for its summary.
    version = (by_class, lists_all(), *(each.is_inference() or each._version for each in data.tensors()))
    known = _FOUND.get(data)
    if known is not None and known[0] == version:
        return known[1]
    found = [*data.notices, *client_warnings(data, by_class), *unlabelled_rows(data), *label_warnings(data)]
    table = RawTable.of(data)
    if table is not None:
        found += sum_warnings(table)
        found += column_warnings(table, data.standardisation is None, by_class, data.schema)
        # Copies are near-copies too, and one warning about them is enough.
        found += copy_warnings(table) or near_copy_warnings(table)
    if not by_class:
        found += target_warnings(data, table)
    _FOUND[data] = version, tuple(found)
    return tuple(found)
