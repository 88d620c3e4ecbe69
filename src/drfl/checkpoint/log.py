"""A history as tensors, and back, without losing a bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from drfl.algorithm import State, flagged
from drfl.certificate import Certificate
from drfl.checkpoint.state_tensors import COUNTERS, LONGEST, DamagedError, part_of
from drfl.history import Metrics, Row, other_columns
from drfl.metrics import Measure

if TYPE_CHECKING:
    from drfl.checkpoint.record import Record

NAMES = ("round", "metrics", "last", "others", "validation", "ledger", "seconds", "certificate", "lam", "flagged")

OPEN = ("metrics", "last", "others", "validation", "certificate")
"""Columns that need not be finite: the losses of a model that is about to diverge, and a certificate not to be had."""

LARGEST = 1e100
"""No loss of a run comes near; the report of a run takes none that is finite and larger."""

ROUNDING = 1e-6
"""How far from 1 a mixture's sum may be, and outside [0, 1] a fraction."""

SCORES = tuple(name.endswith("_score") for name in Metrics._fields)
"""Which metrics are those of the score."""


def log_tensors(rows: Sequence[Row]) -> dict[str, Tensor]:
    """The rows column by column, each (k,) or (k, …). A missing certificate is NaN; missing flags have no entry.

    Args:
        rows: at least one.
    """
    nothing = [float("nan")] * len(Certificate._fields)
    columns = {
        "round": torch.tensor([row.round for row in rows]),
        "metrics": torch.tensor([row.metrics for row in rows], dtype=torch.float64),
        "last": torch.tensor([row.last_metrics for row in rows], dtype=torch.float64),
        "others": torch.tensor([list(row.others.values()) for row in rows], dtype=torch.float64),
        "validation": torch.tensor([row.validation or () for row in rows], dtype=torch.float64),
        "ledger": torch.tensor([[row.ledger[name] for name in COUNTERS] for row in rows]),
        "seconds": torch.tensor([row.seconds for row in rows], dtype=torch.float64),
        "certificate": torch.tensor([row.certificate or nothing for row in rows], dtype=torch.float64),
        "lam": torch.stack([row.lam for row in rows]),
        "flagged": torch.stack([row.flagged for row in rows if row.flagged is not None] or [torch.empty(0)]),
    }
    return {f"history.{name}": column for name, column in columns.items()}


def log_names() -> set[str]:
    """What the columns of a history are called among tensors."""
    return {f"history.{name}" for name in NAMES}


def log_rows(
    tensors: Mapping[str, Tensor],
    fresh: State,
    lam: Tensor,
    record: Record,
    measures: Sequence[Measure],
    validated: bool,
) -> tuple[Row, ...]:
    """The rows again.

    Args:
        tensors: from :func:`log_tensors`.
        fresh: a first state of the same algorithm on the same federation.
        lam: (N,) its mixture.
        record: of the same checkpoint.
        measures: the federation's.
        validated: whether models were tested on validation rows too.

    Raises:
        DamagedError: a column is missing, of another type or shape, or holds what no run can have written.
    """
    others = other_columns(measures)
    like = _like(tensors.get("history.round"), fresh, lam, len(others), validated)
    columns = {name: part_of(tensors, f"history.{name}", like[name], name not in OPEN) for name in NAMES}
    wrong = _wrong(columns, record, measures[0].percent)
    if wrong is not None:
        raise DamagedError(f"history.{wrong}")
    return tuple(_rows(columns, others))


def _like(rounds: Tensor | None, fresh: State, lam: Tensor, others: int, validated: bool) -> dict[str, Tensor]:
    """A tensor of the right type and shape for every column."""
    k = len(rounds) if rounds is not None and rounds.ndim == 1 else 1
    double, flags = torch.zeros(k, dtype=torch.float64), flagged(fresh)
    return {
        "round": torch.zeros(k, dtype=torch.int64),
        "metrics": torch.zeros(k, len(Metrics._fields), dtype=torch.float64),
        "last": torch.zeros(k, len(Metrics._fields), dtype=torch.float64),
        "others": torch.zeros(k, others, dtype=torch.float64),
        "validation": torch.zeros(k, len(Metrics._fields) if validated else 0, dtype=torch.float64),
        "ledger": torch.zeros(k, len(COUNTERS), dtype=torch.int64),
        "seconds": double,
        "certificate": torch.zeros(k, len(Certificate._fields), dtype=torch.float64),
        "lam": lam.new_zeros(k, len(lam)),
        "flagged": torch.empty(1, 0) if flags is None else flags.new_zeros(k, len(flags)),
    }


def _wrong(columns: Mapping[str, Tensor], record: Record, fractions: bool) -> str | None:
    """What no run can have written, with the column's name in front; ``fractions``: whether scores are."""
    rounds, ledger, seconds, lam = (columns[name] for name in ("round", "ledger", "seconds", "lam"))
    metrics, certificate = torch.cat([columns["metrics"], columns["last"]]), columns["certificate"]
    scores, none = metrics[:, torch.tensor(SCORES)], certificate[:, 0].isnan()
    booked = torch.cat([ledger, torch.tensor([[record.ledger[name] for name in COUNTERS]])])
    faults = {
        "round: it does not begin with 0": len(rounds) == 0 or rounds[0] != 0,
        "round: the rounds do not increase": (rounds[1:] <= rounds[:-1]).any(),
        f"round: it goes on after round {record.round}": (rounds > record.round).any(),
        "metrics: a score is not between 0 and 1": fractions and ((scores - 0.5).abs() > 0.5 + ROUNDING).any(),
        f"metrics: a loss is beyond {LARGEST:g}": _too_large(metrics) or _too_large(columns["others"]),
        "ledger: a counter is negative or falls": ((ledger < 0) | (booked[1:] < booked[:-1])).any(),
        "seconds: they are no times": ((seconds < 0) | (seconds > LONGEST)).any(),
        "certificate: it is there in part": (none & ~certificate.isnan().all(1)).any(),
        f"certificate: it is beyond {LARGEST:g}": _too_large(certificate),
        "certificate: it is neither proven nor not": ~torch.isin(certificate[~none, 3], torch.tensor([0.0, 1.0])).all(),
        "lam: a row is no mixture": not is_mixture(lam),
    }
    return next((fault for fault, there in faults.items() if bool(there)), None)


def _too_large(part: Tensor) -> bool:
    """Whether a number is finite and larger than any."""
    return bool(((part.abs() > LARGEST) & part.isfinite()).any())


def is_mixture(lam: Tensor) -> bool:
    """Whether every row (…, N) is one of non-negative numbers that add up to 1, up to rounding."""
    return bool((lam >= -ROUNDING).all()) and bool(((lam.sum(-1) - 1).abs() <= ROUNDING).all())


def _rows(columns: Mapping[str, Tensor], names: Sequence[str]) -> Iterator[Row]:
    scalars = ("round", "metrics", "last", "others", "validation", "ledger", "seconds", "certificate")
    plain = zip(*(columns[name].tolist() for name in scalars), strict=True)
    looked = columns["flagged"].dtype == torch.bool
    for k, (r, metrics, last, others, held, ledger, seconds, (primal, lower, norm, proven)) in enumerate(plain):
        certificate = None if primal != primal else Certificate(primal, lower, norm, bool(proven))
        cost = dict(zip(COUNTERS, ledger, strict=True))
        flags = columns["flagged"][k] if looked else None
        measured = dict(zip(names, others, strict=True))
        validation = Metrics(*held) if held else None
        ends = Metrics(*metrics), Metrics(*last)
        yield Row(r, ends[0], cost, columns["lam"][k], seconds, certificate, flags, ends[1], measured, validation)
