"""Checks of clients' data before anything is trained on them: above all, of who the worst client would be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from drfl.core.errors import MAX_LISTED, Notice, listing
from drfl.data.client_data import ClientData
from drfl.data.standardisation import is_table

FEW = 20
"""Test rows below which a client's score is coarse: one answer of twenty is 5 points of accuracy, and the 95 % interval
where four of five are right is wider than ±17 points."""

FAR = 1e4
"""A value so many interquartile ranges from the median of its column is taken for a slip, or a code for "unknown"."""

ABSURD = 1e9
"""A value beyond, in raw units, is taken for such too where most of its column is one value, which has no spread."""

UNITS = 100.0
"""Clients whose values spread so many times as far as the middle client's, or as little, may use another unit: a gram
is 1000 milligrams, a metre 100 centimetres."""

LARGE = 1e6
"""Inputs beyond that are not standardised would make any step size wrong for some column."""

SAMPLE = 100_000
"""Rows that quartiles are taken from, evenly spaced, where there are more."""

MOST = 2**24
"""Numbers in a table beyond which its columns are not looked at: it may be a file mapped into memory."""


def data_warnings(data: ClientData, by_class: bool = False) -> tuple[Notice, ...]:
    """What a user should know of the data before believing in the worst client, a sentence each.

    Clients with fewer than :data:`FEW` test rows; clients whose test rows are all of one class where others' are not;
    names that differ by blanks or case alone; values that are far off in their column, or huge where columns are not
    standardised; columns that look like another unit, or say nothing, at one client. Those of columns need inputs
    (n, p), at most :data:`MOST` numbers. At most :data:`MAX_LISTED` clients or columns are named in a sentence.

    Args:
        data: the clients.
        by_class: the rows were given to clients by class on purpose: that some have one class, and columns that are
            constant there, is no news then.

    Returns:
        Sentences without a full stop; none where there is nothing to say. Each has a code, and the client or column as
        its field if it is about a single one.
    """
    found = []
    sizes = [len(rows) for rows in data.test]
    few = sorted((i for i, size in enumerate(sizes) if size < FEW), key=lambda i: sizes[i])
    if few:
        named = listing([f"{data.names[i]} ({sizes[i]})" for i in few], "client")
        text = (
            f"fewer than {FEW} test rows at {named}: a score there moves in large steps, and the worst client may be "
            "worst by chance"
        )
        found.append(Notice(text, "few-test-rows", _single([data.names[i] for i in few])))
    # If every client has a single class, that is a property of the task, not of a client.
    if not by_class and data.majority is not None and not bool((data.majority == 1).all()):
        single = [data.names[i] for i in (data.majority == 1).nonzero().flatten().tolist()]
        if single:
            text = f"all test rows are of one class at {listing(single, 'client')}: always answering it is right there"
            found.append(Notice(text, "one-class-test", _single(single)))
    seen: dict[str, str] = {}
    pairs = []
    for name in data.names:
        plain = " ".join(name.split()).casefold()
        if plain in seen:
            pairs.append(f"'{seen[plain]}' and '{name}'")
        seen.setdefault(plain, name)
    if pairs:
        text = (
            f"names of clients differ by blanks or case alone: {listing(pairs, 'pair')}; one client under two names "
            "hides"
        )
        found.append(Notice(text, "similar-names", "clients"))
    if is_table(data.inputs) and data.inputs.numel() <= MOST and data.inputs.shape[1]:
        inputs = data.inputs.cpu()
        found += _extreme_values(data, inputs)
        if not by_class:
            found += _odd_columns(data, inputs)
    return tuple(found)


def _single(names: Sequence[str]) -> str | None:
    """The field of a notice: the client or column that it is about, None if there are several."""
    return names[0] if len(set(names)) == 1 else None


def _column(data: ClientData, k: int) -> str:
    return f"column {k}" if data.columns is None else f"column '{data.columns[k]}'"


def _field(data: ClientData, columns: Sequence[int]) -> str | None:
    return _single([str(k) if data.columns is None else data.columns[k] for k in columns])


def _quartiles(inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # Quartiles of evenly spaced rows are accurate enough to find typing errors.
    rows = inputs[:: -(-len(inputs) // SAMPLE)].double().numpy()
    low, middle, high = torch.from_numpy(np.quantile(rows, (0.25, 0.5, 0.75), axis=0))
    return low, middle, high


def _extreme_values(data: ClientData, inputs: Tensor) -> list[Notice]:
    """Warnings of outliers, and of values too large for training if columns are not standardised."""
    found = []
    low, middle, high = _quartiles(inputs)
    most, at = (inputs.double() - middle).abs().max(0)
    spread = high - low
    raw = most if data.standardisation is None else most * data.standardisation.scale
    # A column that is mostly one value has no spread to compare with. There, only absurd values in raw units count.
    bad = (most > FAR * spread) & ((spread > 0) | (raw > ABSURD))
    if bool(bad.any()):
        named = _at_clients(data, bad, at)
        text = (
            f"a value more than {FAR:,.0f} interquartile ranges from the median in {listing(named, 'column')}: look "
            "for a slip, or a code for unknown"
        )
        found.append(Notice(text, "outlier", _field(data, bad.nonzero().flatten().tolist())))
    if data.standardisation is None:
        most, at = inputs.abs().max(0)
        bad = most > LARGE
        if bool(bad.any()):
            named = listing(_at_clients(data, bad, at), "column")
            text = f"values beyond {LARGE:,.0f} in {named}: no step size suits such inputs; standardise them"
            found.append(Notice(text, "not-standardised", _field(data, bad.nonzero().flatten().tolist())))
    return found


def _at_clients(data: ClientData, bad: Tensor, at: Tensor) -> list[str]:
    """The columns (p,) that are bad, those to be shown with the client whose the row ``at`` (p,) of the pool is."""
    parts = [data.train] if data.validation is None else [data.train, data.validation]
    # Rows of a separate test pool are numbered separately.
    if data.test_inputs is data.inputs:
        parts.append(data.test)
    found = []
    for place, k in enumerate(bad.nonzero().flatten().tolist()):
        where, row = "", int(at[k])
        # The search is a pass over all clients' rows, so only columns that the message names get one.
        if place < MAX_LISTED:
            clients = ((name, rows) for part in parts for name, rows in zip(data.names, part, strict=True))
            where = next((f" at {name}" for name, rows in clients if bool((rows == row).any())), "")
        found.append(f"{_column(data, k)}{where}")
    return found


def _odd_columns(data: ClientData, inputs: Tensor) -> list[Notice]:
    """Warnings of columns that seem to have another unit, or do not vary, at a client with enough rows."""
    large = [i for i, rows in enumerate(data.train) if len(rows) >= FEW]
    if not large or data.n == 1:
        return []
    found = []
    if len(large) > 1:
        spreads = []
        for i in large:
            low, _, high = _quartiles(inputs[data.train[i].cpu()])
            spreads.append(high - low)
        spread = torch.stack(spreads)
        # A column that is mostly one value at a client does not reveal its unit.
        spread = torch.where(spread > 0, spread, torch.nan)
        # nanmedian takes the lower of two middle values, so of two clients the one with the larger spread is named.
        ratio = spread / spread.nanmedian(0).values
        odd = ((ratio >= UNITS) | (ratio <= 1 / UNITS)).nonzero().tolist()
        cases = [f"{_column(data, k)} at {data.names[large[i]]} ({float(ratio[i, k]):.2g} times)" for i, k in odd]
        if cases:
            text = (
                f"values spread {UNITS:.0f} times as far or as little as at other clients, as in another unit: "
                f"{listing(cases, 'case')}"
            )
            found.append(Notice(text, "unit-mismatch", _field(data, [k for _, k in odd])))
    rows = torch.cat(data.train).cpu()
    low, high = inputs[rows].aminmax(dim=0)
    # Columns of two values, such as "pregnant", are often constant at a client.
    several = ((inputs[rows] != low) & (inputs[rows] != high)).any(0)
    constant: list[tuple[int, str]] = []
    for i in large:
        least, most = inputs[data.train[i].cpu()].aminmax(dim=0)
        constant += [(k, data.names[i]) for k in (several & (least == most)).nonzero().flatten().tolist()]
    if constant:
        cases = [f"{_column(data, k)} at {name}" for k, name in constant]
        text = f"columns that vary elsewhere are constant, as where nobody measures them: {listing(cases, 'case')}"
        found.append(Notice(text, "constant-column", _field(data, [k for k, _ in constant])))
    return found
