"""Clients whose rows are too few, all of one class, without a known label, or split under two names."""

from __future__ import annotations

import torch

from drfl.core.errors import Notice, listing
from drfl.data.checks.raw_table import FEW, warning
from drfl.data.client_data import ClientData
from drfl.data.tables.columns import CATEGORIES, folded

FEW_OF_A_CLASS = 10
"""With fewer rows of a class, a client's rates for that class are very uncertain."""


def client_warnings(data: ClientData, by_class: bool) -> list[Notice]:
    """Warn of clients with few test rows, with few rows of a class, and with similar names."""
    found = []
    sizes = [len(rows) for rows in data.test]
    few = sorted((i for i, size in enumerate(sizes) if size < FEW), key=lambda i: sizes[i])
    if few:
        named = listing([f"{data.names[i]} ({sizes[i]})" for i in few], "client")
        text = (
            f"fewer than {FEW} test rows at {named}: one row changes the score by more than {100 // FEW} points, and "
            "the worst client may be the worst by chance"
        )
        found.append(Notice(text, "few-test-rows", data.names[few[0]] if len(few) == 1 else None))
    if not by_class:
        found += _classes(data)
    seen: dict[str, str] = {}
    pairs = []
    for name in data.names:
        plain = folded(name)
        if plain in seen:
            pairs.append(f"'{seen[plain]}' and '{name}'")
        seen.setdefault(plain, name)
    if pairs:
        text = (
            f"client names that differ only in case or blanks: {listing(pairs, 'pair')}; use one name per "
            "client, or its rows count as two clients"
        )
        found.append(Notice(text, "similar-names", "clients"))
    return found


def _classes(data: ClientData) -> list[Notice]:
    """Warn of clients with test rows of a single class, or with few rows of one of two classes."""
    # If every client has a single class, and not all the same, that is a property of the task.
    if data.majority is None or (
        bool((data.majority == 1).all()) and len(data.test_targets[torch.cat(data.test)].unique()) > 1
    ):
        return []
    found = []
    single = [data.names[i] for i in (data.majority == 1).nonzero().flatten().tolist()]
    if single:
        text = (
            f"all test rows are of one class at {listing(single, 'client')}: a model that always predicts "
            "this class is always right there"
        )
        found.append(Notice(text, "one-class-test", single[0] if len(single) == 1 else None))
    found += _lone_classes(data)
    if data.targets.ndim == 1 and not data.targets.is_floating_point() and int(data.targets.max()) == 1:
        few = []
        for i, (train, test) in enumerate(zip(data.train, data.test, strict=True)):
            targets = torch.cat((data.targets[train], data.test_targets[test]))
            targets = targets[targets >= 0]  # losses may ignore negative labels
            ones = int(targets.sum())
            rare, count = min((1, ones), (0, len(targets) - ones), key=lambda pair: pair[1])
            # A client with few rows of both classes is small, which has a separate warning.
            if count < FEW_OF_A_CLASS <= len(targets) // 2 and data.names[i] not in single:
                named = f"class {rare}" if data.classes is None else f"'{data.classes[rare]}'"
                few.append((f"{data.names[i]} ({count} of {named})", data.names[i]))
        if few:
            text = (
                f"fewer than {FEW_OF_A_CLASS} rows of a class at "
                f"{listing([case for case, _ in few], 'client')}: rates for that class are very uncertain "
                "there"
            )
            found.append(Notice(text, "few-of-a-class", few[0][1] if len(few) == 1 else None))
    return found


def _lone_classes(data: ClientData) -> list[Notice]:
    """Warn of classes of a table that occur in a single row."""
    names = data.classes or ()
    if data.columns is None or not 2 < len(names) <= CATEGORIES:
        return []
    parts = [(data.targets, data.train), (data.test_targets, data.test), (data.targets, data.validation or ())]
    counts = torch.zeros(data.n, len(names), dtype=torch.int64)
    for targets, lists in parts:
        for i, rows in enumerate(lists):
            counts[i] += torch.bincount(targets[rows].clamp(min=0), minlength=len(names)).cpu()
    lone = [
        (names[k], data.names[int(counts[:, k].argmax())]) for k in (counts.sum(0) == 1).nonzero().flatten().tolist()
    ]
    cases, clients = [f"'{name}' at {client}" for name, client in lone], [client for _, client in lone]
    advice = "correct or remove these rows, because no model can learn such a class"
    return warning("few-of-a-class", "classes with a single row", cases, clients, "class", advice)


def unlabelled_rows(data: ClientData) -> list[Notice]:
    """Warn of clients that have rows without any known label, and count these rows."""
    counts = torch.zeros(data.n, dtype=torch.int64)
    parts = [(data.targets, data.train), (data.test_targets, data.test), (data.targets, data.validation or ())]
    for targets, lists in parts:
        if targets.is_floating_point() and targets.ndim > 1:
            nothing = targets.isnan().flatten(1).all(1).cpu()
            counts[: len(lists)] += torch.tensor([int(nothing[rows.cpu()].sum()) for rows in lists], dtype=torch.int64)
    odd = [i for i in counts.argsort(descending=True, stable=True).tolist() if counts[i]]
    if not odd:
        return []
    cases = [f"{data.names[i]} ({int(counts[i])})" for i in odd]
    text = f"excluded rows without any known label: {listing(cases, 'client')}"
    return [Notice(text, "unlabelled-rows", data.names[odd[0]] if len(odd) == 1 else None)]


def label_warnings(data: ClientData) -> list[Notice]:
    """Warn of labels that are unknown in all test rows of a client."""
    if not data.test_targets.is_floating_point() or data.test_targets.ndim < 2:
        return []
    unknown = data.test_targets.isnan().flatten(1).cpu()
    everywhere = torch.stack([unknown[rows.cpu()].all(0) for rows in data.test])  # (N, L)
    where = [(k, data.names[i]) for i, k in everywhere.nonzero().tolist()]
    cases, names = [f"label {k} at {name}" for k, name in where], [name for _, name in where]
    problem = "labels without a known value in any test row"
    return warning("unknown-label", problem, cases, names, "case", "metrics of the client exclude them")
