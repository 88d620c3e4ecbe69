"""Labels that are unknown: NaN among several targets."""

from __future__ import annotations

import torch
from torch import Tensor

from drfl.core.errors import Notice, listing
from drfl.data.checks.raw_table import single
from drfl.data.client_data import ClientData


def unlabelled_rows(data: ClientData) -> list[Notice]:
    """Warn of clients that have rows without any known label, and count these rows."""
    counts = torch.zeros(data.n, dtype=torch.int64)
    parts = [(data.targets, data.train), (data.test_targets, data.test), (data.targets, data.validation or ())]
    for targets, lists in parts:
        if targets.is_floating_point() and targets.ndim > 1:
            nothing = _unknown(targets).all(1).cpu()
            counts[: len(lists)] += torch.tensor([int(nothing[rows.cpu()].sum()) for rows in lists], dtype=torch.int64)
    odd = [i for i in counts.argsort(descending=True, stable=True).tolist() if counts[i]]
    if not odd:
        return []
    cases = [f"{data.names[i]} ({int(counts[i])})" for i in odd]
    text = f"excluded rows without any known label: {listing(cases, 'client')}"
    return [Notice(text, "unlabelled-rows", single([data.names[i] for i in odd]))]


def label_warnings(data: ClientData) -> list[Notice]:
    """Warn of labels that are unknown in all test rows of a client."""
    if not data.test_targets.is_floating_point() or data.test_targets.ndim < 2:
        return []
    unknown = _unknown(data.test_targets).cpu()
    everywhere = torch.stack([unknown[rows.cpu()].all(0) for rows in data.test])  # (N, L)
    where = [(k, i) for i, k in everywhere.nonzero().tolist()]
    if not where:
        return []
    cases = [f"label {k} at {data.names[i]}" for k, i in where]
    text = f"labels without a known value in any test row: {listing(cases, 'case')}; metrics of the client exclude them"
    return [Notice(text, "unknown-label", single([data.names[i] for _, i in where]))]


def _unknown(targets: Tensor) -> Tensor:
    return targets.isnan().flatten(1)
