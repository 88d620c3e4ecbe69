"""Check the values of text columns and classes: two spellings of a value, and values of a single client."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from drfl.core.errors import InputError, Notice, listing

if TYPE_CHECKING:
    import pandas as pd

LEVELS = 1000
"""A column with more values is not compared value by value."""

CLOSE = 0.8
"""Similarity (of `difflib`) from which a value at one client looks like a typing error of another."""

LETTER = r"[^\W\d_]"


def check_levels(table: pd.DataFrame, owners: Sequence[str] | None) -> None:
    """Make sure that no value of a text column is spelt in two ways."""
    for name, (values, codes) in _text_columns(table).items():
        counts = np.bincount(codes, minlength=len(values))
        seen: dict[str, int] = {}
        pairs = []
        for k, value in enumerate(values):
            other = seen.setdefault(plain(value), k)
            if other != k:
                # The rarer spelling is more likely to be the wrong one.
                rare, usual = (k, other) if counts[k] <= counts[other] else (other, k)
                holders = {str(owners[row]) for row in (codes == rare).nonzero()[0]} if owners is not None else ()
                where = f" at {listing(sorted(holders), 'client')}" if holders else ""
                pairs.append(f"'{values[rare]}'{where} and '{values[usual]}'")
        if pairs:
            raise InputError(
                f"column '{name}': {listing(pairs, 'pair')} differ only in case, blanks or punctuation. "
                "Use one spelling",
                code="similar-values",
                field=str(name),
            )


def level_notices(features: pd.DataFrame, classes: pd.DataFrame, owners: Sequence[str] | None) -> list[Notice]:
    """Warn of text columns, and refuse classes, with values that one client alone has in place of the others'."""
    # Of two clients, neither is the odd one.
    if owners is None or len(set(owners)) < 3:
        return []
    found = []
    for name, client, own, others in _apart(classes, owners):
        raise InputError(
            f"column '{name}' at {client} has the classes {listing(own, 'class')}, and elsewhere "
            f"{listing(others, 'class')}: use the same classes everywhere",
            code="classes-differ",
            field=name,
        )
    cases = [
        f"column '{name}' at {client} ({listing(own, 'value')}; elsewhere {listing(others, 'value')})"
        for name, client, own, others in _apart(features, owners)
    ]
    if cases:
        text = (
            f"a client has other values than all other clients: {listing(cases, 'case')}; use the "
            "same values everywhere"
        )
        found.append(Notice(text, "values-differ"))
    # A typing error nearly equals a value that its client lacks and several others have.
    names, typos = np.array(owners), []
    for name, (values, codes) in _text_columns(features).items():
        holders = [set(names[codes == k].tolist()) for k in range(len(values))]
        for k, value in enumerate(values):
            if len(holders[k]) > 1 or len(value) < 5:  # short words are often alike
                continue
            common = [values[j] for j in range(len(values)) if len(holders[j]) > 1 and not holders[k] & holders[j]]
            near = difflib.get_close_matches(value, common, n=1, cutoff=CLOSE)
            if near:
                typos.append(f"'{value}' in column '{name}' at {next(iter(holders[k]))}, like '{near[0]}'")
    if typos:
        text = f"values that look like typing errors: {listing(typos, 'value')}; correct them"
        found.append(Notice(text, "similar-values"))
    return found


def plain(value: str) -> str:
    """Remove differences that people overlook: case, outer blanks, and punctuation between letters."""
    value = re.sub(rf"(?<={LETTER})[\s\-_.]+(?={LETTER})", "", value.strip().casefold())
    # An abbreviation may end in a full stop.
    return re.sub(r"(?<=\w)\.$", "", value)


def _text_columns(table: pd.DataFrame) -> dict[str, tuple[list[str], np.ndarray]]:
    """Return the sorted values of each text column, and the index (n,) of the value of each row."""
    from pandas.api.types import is_numeric_dtype

    found = {}
    for name in (name for name in table if not is_numeric_dtype(table[name])):
        values, codes = np.unique(table[name].astype(str).to_numpy(dtype=object), return_inverse=True)
        if len(values) <= LEVELS:
            found[str(name)] = list(map(str, values)), codes.ravel()
    return found


def _apart(table: pd.DataFrame, owners: Sequence[str]) -> list[tuple[str, str, list[str], list[str]]]:
    """List columns in which a single client shares no value with the other clients."""
    names = np.array(owners)
    found = []
    for name, (values, codes) in _text_columns(table).items():
        sets = {client: set(codes[names == client].tolist()) for client in dict.fromkeys(owners)}
        odd = [
            client
            for client, own in sets.items()
            if not own & set().union(*(other for key, other in sets.items() if key != client))
        ]
        # If several clients share no value with others, the column is like a name.
        if len(odd) == 1:
            others = sorted(set().union(*(other for key, other in sets.items() if key != odd[0])))
            shown = [[f"'{values[k]}'" for k in levels] for levels in (sorted(sets[odd[0]]), others)]
            found.append((name, odd[0], *shown))
    return found
