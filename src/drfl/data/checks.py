"""Checks of clients' data before anything is trained on them: above all, of who the worst client would be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from drfl.core.errors import SHOWN, Notice, listed
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
    (n, p), at most :data:`MOST` numbers. At most :data:`SHOWN` clients or columns are named in a sentence.

    Args:
        data: the clients.
        by_class: the rows were given to clients by class on purpose: that some have one class, and columns that are
            constant there, is no news then.

    Returns:
        Sentences without a full stop; none where there is nothing to say. Each has a code, and the client or column as
        its field if it is about a single one.
    """
    found = [_few(data), None if by_class else _one_class(data), _alike(data.names)]
    if is_table(data.inputs) and data.inputs.numel() <= MOST and data.inputs.shape[1]:
        inputs = data.inputs.cpu()
        found += [_far(data, inputs), _large(data, inputs)]
        found += [] if by_class else [_units(data, inputs), _constant(data, inputs)]
    return tuple(line for line in found if line is not None)


def _single(names: Sequence[str]) -> str | None:
    """The field of a notice: the client or column that it is about, None if there are several."""
    return names[0] if len(set(names)) == 1 else None


def _few(data: ClientData) -> Notice | None:
    sizes = [len(rows) for rows in data.test]
    few = sorted((i for i, size in enumerate(sizes) if size < FEW), key=lambda i: sizes[i])
    if not few:
        return None
    named = listed([f"{data.names[i]} ({sizes[i]})" for i in few], "client")
    return Notice(
        f"fewer than {FEW} test rows at {named}: a score there moves in large steps, and the worst client may be worst "
        "by chance",
        "few-test-rows",
        _single([data.names[i] for i in few]),
    )


def _one_class(data: ClientData) -> Notice | None:
    majority = data.majority
    if majority is None or bool((majority == 1).all()):
        return None
    named = [data.names[i] for i in (majority == 1).nonzero().flatten().tolist()]
    if not named:
        return None
    return Notice(
        f"all test rows are of one class at {listed(named, 'client')}: always answering it is right there",
        "one-class-test",
        _single(named),
    )


def _alike(names: Sequence[str]) -> Notice | None:
    seen: dict[str, str] = {}
    pairs = []
    for name in names:
        plain = " ".join(name.split()).casefold()
        if plain in seen:
            pairs.append(f"'{seen[plain]}' and '{name}'")
        seen.setdefault(plain, name)
    if not pairs:
        return None
    return Notice(
        f"names of clients differ by blanks or case alone: {listed(pairs, 'pair')}; one client under two names hides",
        "similar-names",
        "clients",
    )


def _column(data: ClientData, k: int) -> str:
    return f"column {k}" if data.columns is None else f"column '{data.columns[k]}'"


def _field(data: ClientData, columns: Sequence[int]) -> str | None:
    return _single([str(k) if data.columns is None else data.columns[k] for k in columns])


def _quartiles(inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each column, (p,) float64, of evenly spaced rows."""
    rows = inputs[:: -(-len(inputs) // SAMPLE)].double().numpy()
    low, middle, high = torch.from_numpy(np.quantile(rows, (0.25, 0.5, 0.75), axis=0))
    return low, middle, high


def _far(data: ClientData, inputs: Tensor) -> Notice | None:
    low, middle, high = _quartiles(inputs)
    most, at = (inputs.double() - middle).abs().max(0)
    spread = high - low
    raw = most if data.standardisation is None else most * data.standardisation.scale
    bad = (most > FAR * spread) & ((spread > 0) | (raw > ABSURD))
    if not bool(bad.any()):
        return None
    named = _at_clients(data, bad, at)
    return Notice(
        f"a value more than {FAR:,.0f} interquartile ranges from the median in {listed(named, 'column')}: look for a "
        "slip, or a code for unknown",
        "outlier",
        _field(data, bad.nonzero().flatten().tolist()),
    )


def _at_clients(data: ClientData, bad: Tensor, at: Tensor) -> list[str]:
    """The columns (p,) that are bad, those to be shown with the client whose the row ``at`` (p,) of the pool is."""
    columns = bad.nonzero().flatten().tolist()
    held = [_holder(data, int(at[k])) for k in columns[:SHOWN]] + [""] * len(columns[SHOWN:])
    return [f"{_column(data, k)}{where}" for k, where in zip(columns, held, strict=True)]


def _holder(data: ClientData, row: int) -> str:
    """Who trains or is tested on a row of the pool, as " at CLIENT"; "" where nobody is."""
    parts = [data.train] if data.validation is None else [data.train, data.validation]
    if data.test_inputs is data.inputs:
        parts.append(data.test)
    for part in parts:
        for name, mine in zip(data.names, part, strict=True):
            if bool((mine == row).any()):
                return f" at {name}"
    return ""


def _large(data: ClientData, inputs: Tensor) -> Notice | None:
    if data.standardisation is not None:
        return None
    most, at = inputs.abs().max(0)
    bad = most > LARGE
    if not bool(bad.any()):
        return None
    named = listed(_at_clients(data, bad, at), "column")
    return Notice(
        f"values beyond {LARGE:,.0f} in {named}: no step size suits such inputs; standardise them",
        "not-standardised",
        _field(data, bad.nonzero().flatten().tolist()),
    )


def _units(data: ClientData, inputs: Tensor) -> Notice | None:
    """Columns whose quartiles are far further apart at one client than at the middle one, or far closer.

    Of two clients the one of the larger spread is named, as the middle one of an even number is the lower.
    """
    known = [i for i, rows in enumerate(data.train) if len(rows) >= FEW]
    if len(known) < 2:
        return None
    spreads = []
    for i in known:
        low, _, high = _quartiles(inputs[data.train[i].cpu()])
        spreads.append(high - low)
    spread = torch.stack(spreads)
    # a client where most of the column is one value says nothing of its unit
    spread = torch.where(spread > 0, spread, torch.nan)
    ratio = spread / spread.nanmedian(0).values
    odd = ((ratio >= UNITS) | (ratio <= 1 / UNITS)).nonzero().tolist()
    found = [f"{_column(data, k)} at {data.names[known[i]]} ({float(ratio[i, k]):.2g} times)" for i, k in odd]
    if not found:
        return None
    return Notice(
        f"values spread {UNITS:.0f} times as far or as little as at other clients, as in another unit: "
        f"{listed(found, 'case')}",
        "unit-mismatch",
        _field(data, [k for _, k in odd]),
    )


def _constant(data: ClientData, inputs: Tensor) -> Notice | None:
    """Columns of more than two values that are all the same in the training rows of one client of some size."""
    rows = torch.cat(data.train).cpu()
    low, high = inputs[rows].aminmax(dim=0)
    # one of two values is often all of them at a client: whether a patient is pregnant
    several = ((inputs[rows] != low) & (inputs[rows] != high)).any(0)
    found: list[tuple[int, str]] = []
    for name, mine in zip(data.names, data.train, strict=True):
        if len(mine) >= FEW:
            least, most = inputs[mine.cpu()].aminmax(dim=0)
            found += [(k, name) for k in (several & (least == most)).nonzero().flatten().tolist()]
    if not found or data.n == 1:
        return None
    cases = [f"{_column(data, k)} at {name}" for k, name in found]
    return Notice(
        f"columns that vary elsewhere are constant, as where nobody measures them: {listed(cases, 'case')}",
        "constant-column",
        _field(data, [k for k, _ in found]),
    )
