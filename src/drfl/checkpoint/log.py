"""A history as tensors, and back, without losing a bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from drfl.certificate import Certificate
from drfl.checkpoint.damage import DamagedError
from drfl.federation import Ledger
from drfl.history import Metrics, Row

COUNTERS = tuple(Ledger().totals())
NAMES = ("round", "metrics", "ledger", "seconds", "certificate", "lam", "flagged")


def log_tensors(rows: Sequence[Row]) -> dict[str, Tensor]:
    """The rows column by column, each (k,) or (k, …). A missing certificate is NaN; missing flags have no entry.

    Args:
        rows: at least one.
    """
    nothing = [float("nan")] * len(Certificate._fields)
    columns = {
        "round": torch.tensor([row.round for row in rows]),
        "metrics": torch.tensor([row.metrics for row in rows], dtype=torch.float64),
        "ledger": torch.tensor([[row.ledger[name] for name in COUNTERS] for row in rows]),
        "seconds": torch.tensor([row.seconds for row in rows], dtype=torch.float64),
        "certificate": torch.tensor([row.certificate or nothing for row in rows], dtype=torch.float64),
        "lam": torch.stack([row.lam for row in rows]),
        "flagged": torch.stack([row.flagged for row in rows if row.flagged is not None] or [torch.empty(0)]),
    }
    return {f"history.{name}": column for name, column in columns.items()}


def log_rows(tensors: Mapping[str, Tensor]) -> tuple[Row, ...]:
    """The rows again.

    Raises:
        DamagedError: a column is missing or has another length.
    """
    try:
        columns = {name: tensors[f"history.{name}"] for name in NAMES}
        return tuple(_rows(columns))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise DamagedError(f"its history is not whole ({error})") from None


def _rows(columns: Mapping[str, Tensor]) -> Iterator[Row]:
    scalars = ("round", "metrics", "ledger", "seconds", "certificate")
    plain = zip(*(columns[name].tolist() for name in scalars), strict=True)
    looked = columns["flagged"].numel() > 0
    for k, (r, metrics, ledger, seconds, (primal, lower, norm, proven)) in enumerate(plain):
        certificate = None if primal != primal else Certificate(primal, lower, norm, bool(proven))
        cost = dict(zip(COUNTERS, ledger, strict=True))
        flagged = columns["flagged"][k] if looked else None
        yield Row(r, Metrics(*metrics), cost, columns["lam"][k], seconds, certificate, flagged)
