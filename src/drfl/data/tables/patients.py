"""The patients of a table, or other units with repeated rows, and columns that seem to name them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from drfl.core.errors import InputError, Notice
from drfl.core.unicode_form import difference
from drfl.data.tables.columns import NAME_ROWS, RowName, check_blanks
from drfl.data.tables.conform import level_text
from drfl.data.tables.spelling import folded

if TYPE_CHECKING:
    import pandas as pd

NAMES = re.compile(
    r"(?i:(.*[_ .-])?(patient|subject|participant|person|proband|case|mrn|pid|uid|id)"
    r"([_ .-]?(id|nr|no|num|number|code|key|name))?)|.*[a-z](ID|Id)"
)
"""Names of columns that name a patient or another unit."""

FEWEST, MOST_EACH = 10, 50
"""A column may name patients if it has more values than this, with at most this many rows each on average.

Wards and devices have fewer values with more rows each.
"""


def names_in(frame: pd.DataFrame, name: str, row_name: RowName) -> list[str]:
    """Return the patient, or the client, of each row as text."""
    column = frame[name]
    column = column if column.dtype.kind in "biuf" else column.astype("string").str.strip().replace("", None)
    check_blanks(column.to_frame(name), row_name, NAME_ROWS)
    # The patient 1.0 of one file is the patient "1" of another.
    return [level_text(value) for value in column.tolist()]


def numbered(patients: Sequence[str]) -> Tensor:
    """Number the patients 0, 1, … and return the number of each row's patient, (n,) int64."""
    return torch.from_numpy(np.unique(np.array(patients), return_inverse=True)[1].astype(np.int64))


def check_spelling(patients: Sequence[str], owners: Sequence[str] | None) -> None:
    """Check that no two patients of a client differ only in case, blanks or leading zeros, which would split one."""
    clients = [""] * len(patients) if owners is None else owners
    seen = dict[tuple[str, str], str]()
    for client, patient in dict.fromkeys(zip(clients, patients, strict=True)):
        key = folded(patient)
        is_number = key.isascii() and key.isdecimal()
        other = seen.setdefault((client, key.lstrip("0") if is_number else key), patient)
        if other != patient:
            where = f" at {client}" if client else ""
            how = "leading zeros, which spreadsheets remove" if is_number else "case or blanks"
            how = difference(other, patient, how)
            raise InputError(
                f"patients '{other}' and '{patient}'{where} differ only in {how}. Use one spelling",
                code="similar-names",
                field="patient",
            )


def repeated_ids(frame: pd.DataFrame, owners: Sequence[str] | None, used: Collection[str | None]) -> tuple[Notice, ...]:
    """Warn of columns that seem to name patients with several rows."""
    clients = np.zeros(len(frame), int) if owners is None else np.unique(np.array(owners), return_inverse=True)[1]
    found = []
    for name in (name for name in frame if name not in used and NAMES.fullmatch(str(name))):
        column = frame[name].dropna()
        # Measurements are not identifiers.
        if column.dtype.kind == "f" and not (column == column.round()).all():
            continue
        codes = column.astype(str).factorize()[0]
        # Use one number per pair of client and value, because clients number their patients independently.
        count = len(np.unique(clients[frame[name].notna().to_numpy()] * (len(column) + 1) + codes))
        if FEWEST < count < len(column) <= MOST_EACH * count:
            text = (
                f"column '{name}' repeats: {len(column):,} rows have {count:,} values. If it identifies "
                f"patients, set `patient = '{name}'` to keep the rows of a patient on one side of the "
                "split"
            )
            found.append(Notice(text, "repeated-id", str(name)))
    return tuple(found)


def shared_ids(owners: Sequence[str], patients: Sequence[str]) -> tuple[Notice, ...]:
    """Warn of the two clients that share the most patients' identifiers, which count as different patients.

    A client that numbers its patients consecutively is ignored, because others may use the same numbers.
    """
    from scipy.sparse import csr_array, triu

    names, clients = np.unique(np.array(owners), return_inverse=True)
    own, places = np.unique(np.array(patients), return_inverse=True)
    cells = np.unique(np.stack([clients, places]), axis=1)
    values = np.array([float(text) if text.isdecimal() else np.nan for text in own.tolist()])[cells[1]]
    starts = np.unique(cells[0], return_index=True)[1]
    # NaN in a client's span means that not all of its identifiers are whole numbers.
    span = np.maximum.reduceat(values, starts) - np.minimum.reduceat(values, starts)
    cells = cells[:, ~(span < 2 * np.bincount(cells[0]))[cells[0]]]
    holds = csr_array((np.ones(cells.shape[1], int), (cells[0], cells[1])), shape=(len(names), len(own)))
    shared = triu(holds @ holds.T, k=1).tocoo()
    if not shared.nnz:
        return ()
    most = int(shared.data.argmax())
    first, second = names[shared.row[most]], names[shared.col[most]]
    more = f" (pairs of clients that share some: {shared.nnz:,})" if shared.nnz > 1 else ""
    text = (
        f"{first} and {second} share {int(shared.data[most]):,} identifiers of patients{more}. drfl "
        "counts them as different patients. Check whether they are the same people, because a patient "
        "may then be in training at one client and in test at another"
    )
    return (Notice(text, "shared-patients"),)
