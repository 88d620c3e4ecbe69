"""The content of a checkpoint: names, types, shapes and ranges, all checked before anything is used.

:class:`drfl.training.checkpoint.record.CheckpointRecord` describes ``run.json``. ``state.safetensors`` holds the
tensors of :class:`drfl.training.run_state.RunState`. :func:`state_specs` describes a state by the first state of the
same algorithm on the same clients; :func:`history_specs` describes the columns of the history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from drfl.ambiguity import AmbiguitySet
from drfl.core.errors import DrflError, InputError
from drfl.federation.algorithm import Consistent, flagged, lam_of, parts_of
from drfl.federation.client_table import ClientTable
from drfl.federation.federation import Ledger
from drfl.task.measure import Measure
from drfl.training.averages import Average, DecayingAverage
from drfl.training.certificate import Certificate
from drfl.training.history import Metrics, Row, other_columns
from drfl.training.run_state import RunState
from drfl.training.safeguard import SafePoint
from drfl.training.step_size import StepSize

if TYPE_CHECKING:
    from drfl.training.checkpoint.record import CheckpointRecord

FORMAT = 9
"""Version of the format, incremented when older versions would misread a checkpoint."""

PARTS = ("state", "average", "decaying", "step_size", "selected", "safe")
"""The fields of a run state that are None or NamedTuples of tensors."""

COUNTERS = tuple(Ledger().totals())
"""The counters of a ledger, in the order of the history's columns."""

MOST = 2**62
"""Largest accepted counter of the ledger, which leaves room to grow before 64 bits overflow."""

LONGEST = 1e10
"""Longest wall time in seconds: three hundred years."""

LARGEST = 1e100
"""Largest number in a history. No finite loss of a run approaches it, and the report rejects larger ones."""

ROUNDING = 1e-6
"""Tolerance for the sum of client weights to differ from 1, and for a fraction to exceed [0, 1]."""

PIECE = 2**22
"""Numbers checked at a time, because a table may fill most of the memory."""

T = TypeVar("T")


class DamagedError(DrflError):
    """A checkpoint is incomplete, has been altered, or does not fit this algorithm."""

    code = "damaged-checkpoint"


class Spec(NamedTuple):
    """Requirements on a tensor of a checkpoint.

    Args:
        dtype: Its type.
        shape: Its shape. A name denotes a length, which the first tensor with this name determines.
        start: A tensor of the same shape: entries that are finite here must be finite; None = all entries.
        finite: Whether entries must be finite at all.
        low: Smallest value, per entry of the last dimension or for all entries; None = any.
        high: Largest value, like ``low``. If a bound is ±:data:`LARGEST`, infinity is also allowed.
    """

    dtype: torch.dtype
    shape: tuple[int | str, ...]
    start: Tensor | None = None
    finite: bool = True
    low: Tensor | None = None
    high: Tensor | None = None


def check(specs: Mapping[str, Spec], tensors: Mapping[str, Tensor]) -> None:
    """Check that tensors are exactly those described by the specs.

    Raises:
        DamagedError: If a tensor is missing, is not described, has the wrong type or shape, or holds a number out of
            range. The message names the first one.
    """
    # Sort the names, so that the same fault always gives the same message.
    for name in sorted(tensors.keys() - specs.keys()):
        raise DamagedError(f"{name} is not part of this algorithm's state", field=name)
    lengths: dict[str, int] = {}
    for name, spec in specs.items():
        if name not in tensors:
            raise DamagedError(f"{name} is missing", field=name)
        part = tensors[name]
        if part.ndim == len(spec.shape):
            for length, size in zip(spec.shape, part.shape, strict=True):
                if isinstance(length, str):
                    # The first tensor with a named length defines it; the others must agree.
                    lengths.setdefault(length, size)
        shape = tuple(lengths.get(length, length) if isinstance(length, str) else length for length in spec.shape)
        if part.dtype != spec.dtype or tuple(part.shape) != shape:
            actual = f"{part.dtype} of shape {tuple(part.shape)}"
            raise DamagedError(f"{name} must be {spec.dtype} of shape {shape}, got {actual}", field=name)
        fault = _number_fault(part, spec)
        if fault is not None:
            raise DamagedError(f"{name} contains {fault}", field=name)


def _number_fault(part: Tensor, spec: Spec) -> str | None:
    """Describe an impossible value in a tensor of the right type and shape; None if there is none."""
    # Bytes other than 0 and 1 would be true in some operations and false in others.
    if part.dtype == torch.bool and bool((part.view(torch.uint8) > 1).any()):
        return "bytes that are neither 0 nor 1"
    if spec.finite and not all(bool(piece.isfinite().all()) for piece in part.reshape(-1).split(PIECE)):
        if spec.start is None:
            return "NaN or infinity"
        nonfinite = ~part.isfinite()
        start = spec.start.detach().cpu()[nonfinite]
        # A guard's state is NaN for clients that have not reported yet.
        if not bool(((part[nonfinite] == start) | (part[nonfinite].isnan() & start.isnan())).all()):
            return "NaN or infinity"
    # Comparisons with NaN are false; the checks above decide whether NaN may occur.
    outside = torch.zeros_like(part, dtype=torch.bool)
    for bound, is_beyond in ((spec.low, torch.lt), (spec.high, torch.gt)):
        if bound is not None:
            outside |= is_beyond(part, bound) & ~(part.isinf() & (bound.abs() >= LARGEST))
    return f"{part[outside][0].item():g}, which is out of range" if bool(outside.any()) else None


def tensors_of(state: object, name: str = "state") -> dict[str, Tensor]:
    """List the tensors of a state: a tensor, a client table, None, or a NamedTuple of these.

    Each part is named by its path. Only the rows of a table that have been written are included.

    Raises:
        TypeError: If a part is something else, which cannot be saved.
    """
    tensors: dict[str, Tensor] = {}
    for path, part in parts_of(state, name):
        if isinstance(part, Tensor):
            tensors[path] = part.detach().cpu().contiguous()
        else:
            clients = part.clients
            # Copy, because two tables may return the same tensor, and safetensors rejects shared memory.
            tensors |= {f"{path}.clients": clients.clone(), f"{path}.rows": part[clients].cpu()}
    return tensors


def state_specs(first: object, name: str = "state") -> dict[str, Spec]:
    """Describe the tensors of a state.

    Args:
        first: The first state of the algorithm on the federation. Every tensor must have its type and shape, and an
            entry that is finite here must be finite.
        name: Path of the state.
    """
    specs: dict[str, Spec] = {}
    for path, part in parts_of(first, name):
        if isinstance(part, Tensor):
            specs[path] = Spec(part.dtype, tuple(part.shape), part)
        else:
            rows = f"rows of {path}"
            last = torch.tensor(part.n - 1)
            specs[f"{path}.clients"] = Spec(torch.int64, (rows,), low=torch.tensor(0), high=last)
            specs[f"{path}.rows"] = Spec(part.dtype, (rows, part.shape[1]))
    return specs


def restored(first: T, tensors: Mapping[str, Tensor], name: str = "state") -> T:
    """Build a state from tensors that have passed :func:`check` with :func:`state_specs`.

    Args:
        first: The first state of the algorithm on the federation.
        tensors: Tensors from :func:`tensors_of`.
        name: Path of the state.

    Raises:
        DamagedError: If parts contradict each other, see :class:`drfl.federation.algorithm.Consistent`.
        InputError: If the file of a table's rows cannot grow.
    """
    if isinstance(first, Tensor):
        return cast("T", tensors[name].to(first.device))
    if isinstance(first, ClientTable):
        clients, rows = tensors[f"{name}.clients"], tensors[f"{name}.rows"]
        try:
            return cast("T", ClientTable.of(first.n, clients, rows.to(first.device), first.folder))
        except InputError:  # A full disk is not damage. InputError is a ValueError, so it must be caught first.
            raise
        except ValueError as error:
            raise DamagedError(f"{name} is inconsistent: {error}", field=name) from None
    if not isinstance(first, tuple):
        return first
    fields: tuple[str, ...] = getattr(first, "_fields", ())
    state = type(first)(*(restored(part, tensors, f"{name}.{key}") for key, part in zip(fields, first, strict=True)))
    fault = state.describe_fault() if isinstance(state, Consistent) else None
    if fault is not None:
        raise DamagedError(f"{name}: {fault}", field=name)
    return state


def history_specs(
    fresh: RunState, lam: Tensor, record: CheckpointRecord, measures: Sequence[Measure]
) -> dict[str, Spec]:
    """Describe the columns of a history, each (k,) or (k, …); the arguments are those of :func:`run_state_of`."""
    double, score = torch.float64, torch.tensor([name.endswith("_score") for name in Metrics._fields])
    # Scores in percent are stored as fractions of 1; losses and other scores have no bound.
    is_fraction = score & measures[0].percent
    low = torch.full(score.shape, -LARGEST, dtype=double).masked_fill(is_fraction, -ROUNDING)
    high = torch.full(score.shape, LARGEST, dtype=double).masked_fill(is_fraction, 1 + ROUNDING)
    # Losses may be infinite or NaN because the model may be about to diverge, and so may a missing certificate.
    metrics = Spec(double, ("rows", len(Metrics._fields)), finite=False, low=low, high=high)
    largest = torch.tensor(LARGEST, dtype=double)
    open_column = metrics._replace(low=-largest, high=largest)
    none, flags = torch.tensor(0), flagged(fresh.state)
    columns = {
        "round": Spec(torch.int64, ("rows",), low=none, high=torch.tensor(record.round)),
        "metrics": metrics,
        "last": metrics,
        "others": open_column._replace(shape=("rows", len(other_columns(measures)))),
        "undefined": Spec(torch.int64, ("rows", len(measures)), low=none, high=torch.tensor(len(lam))),
        "ledger": Spec(torch.int64, ("rows", len(COUNTERS)), low=none, high=torch.tensor(MOST)),
        "seconds": Spec(double, ("rows",), low=none, high=torch.tensor(LONGEST)),
        "certificate": open_column._replace(shape=("rows", len(Certificate._fields))),
        "lam": Spec(lam.dtype, ("rows", len(lam)), low=torch.tensor(-ROUNDING)),
    }
    columns |= {} if fresh.selected is None else {"validation": metrics}
    columns |= {} if flags is None else {"flagged": Spec(flags.dtype, ("rows", len(flags)))}
    return {f"history.{name}": spec for name, spec in columns.items()}


def run_tensors(progress: RunState) -> dict[str, Tensor]:
    """List the tensors of a run: its parts, the certificate's point, and the history column by column.

    A missing certificate is NaN. Missing flags, missing validation metrics and a missing point have no entry.
    """
    tensors: dict[str, Tensor] = {}
    for part in PARTS:
        tensors |= tensors_of(getattr(progress, part), part)
    if progress.point is not None:
        tensors["point"] = progress.point.cpu()
    rows, double, nothing = progress.rows, torch.float64, [float("nan")] * len(Certificate._fields)
    columns = {
        "round": torch.tensor([row.round for row in rows]),
        "metrics": torch.tensor([row.metrics for row in rows], dtype=double),
        "last": torch.tensor([row.last_metrics for row in rows], dtype=double),
        "others": torch.tensor([list(row.others.values()) for row in rows], dtype=double),
        "undefined": torch.tensor([row.undefined for row in rows]),
        "ledger": torch.tensor([[row.ledger[name] for name in COUNTERS] for row in rows]),
        "seconds": torch.tensor([row.seconds for row in rows], dtype=double),
        "certificate": torch.tensor([row.certificate or nothing for row in rows], dtype=double),
        "lam": torch.stack([row.lam for row in rows]),
    }
    validation = [row.validation for row in rows if row.validation is not None]
    columns |= {"validation": torch.tensor(validation, dtype=double)} if validation else {}
    flags = [row.flagged for row in rows if row.flagged is not None]
    columns |= {"flagged": torch.stack(flags)} if flags else {}
    tensors |= {f"history.{name}": column for name, column in columns.items()}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        # safetensors rejects shared memory, but a user's algorithm may hold the same tensor twice.
        storage = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    return tensors


def run_state_of(
    record: CheckpointRecord,
    tensors: Mapping[str, Tensor],
    fresh: RunState,
    lam: Tensor,
    ambiguity: AmbiguitySet,
    measures: Sequence[Measure],
) -> RunState:
    """Check the tensors of a run, and build its state.

    Args:
        record: The record of the same checkpoint.
        tensors: Tensors from :func:`run_tensors`.
        fresh: The run before its first round.
        lam: (N,) its client weights then.
        ambiguity: The set of possible client weights.
        measures: The federation's measures.

    Raises:
        DamagedError: If the tensors do not fit the schema, or contradict each other.
        InputError: If the file of a table's rows cannot grow.
    """
    specs: dict[str, Spec] = {}
    for part in PARTS:
        specs |= state_specs(getattr(fresh, part), part)
    specs |= history_specs(fresh, lam, record, measures)
    specs |= {"point": Spec(fresh.state.w.dtype, tuple(fresh.state.w.shape))} if "point" in tensors else {}
    # Check everything before it is used, because the file may come from an untrusted source.
    check(specs, tensors)
    parts = {part: restored(getattr(fresh, part), tensors, part) for part in PARTS}
    for name, part in parts.items():
        if isinstance(part, Average | DecayingAverage) and int(part.rounds) > record.round:
            fault = f"{name} averages {int(part.rounds)} rounds, but the run has completed {record.round}"
            raise DamagedError(fault, field=f"{name}.rounds")
        if isinstance(part, StepSize) and int(part.restarted) > max(record.round - 1, 0):
            fault = f"{name}: a reset after {int(part.restarted)} rounds is impossible in a run of {record.round}"
            raise DamagedError(fault, field=f"{name}.restarted")
        if isinstance(part, SafePoint) and int(part.round) > record.round:
            fault = f"{name} is of round {int(part.round)}, but the run has completed {record.round}"
            raise DamagedError(fault, field=f"{name}.round")
        # λ is checked here and not by the state itself, which does not know the ambiguity set.
        mixture = lam_of(part.state if isinstance(part, SafePoint) else part)
        if mixture is not None and not ambiguity.contains(mixture.detach().cpu().double(), ROUNDING):
            raise DamagedError(f"{name}.lam is outside the algorithm's ambiguity set", field=f"{name}.lam")
    prefix = "history."
    columns = {name.removeprefix(prefix): part for name, part in tensors.items() if name.startswith(prefix)}
    rows = _rows(columns, record, other_columns(measures))
    return RunState(
        record.round,
        record.skipped,
        rows=rows,
        ledger=dict(record.ledger),
        seconds=record.seconds,
        point=tensors.get("point"),
        **parts,
    )


def _rows(columns: Mapping[str, Tensor], record: CheckpointRecord, others: Sequence[str]) -> tuple[Row, ...]:
    """Build the rows of a history whose columns fit :func:`history_specs`."""
    rounds, certificate = columns["round"], columns["certificate"]
    # The last row has the counters at the checkpoint itself.
    ledger = torch.cat([columns["ledger"], torch.tensor([[record.ledger[name] for name in COUNTERS]])])
    # A row without a certificate has NaN in all columns.
    none, sums = certificate[:, 0].isnan(), columns["lam"].sum(-1)
    is_proof = torch.isin(certificate[~none, 3], torch.tensor([0.0, 1.0], dtype=certificate.dtype))
    rules = (
        ("round", "the first round is not 0", len(rounds) == 0 or rounds[0] != 0),
        ("round", "the rounds do not increase", (rounds[1:] <= rounds[:-1]).any()),
        ("ledger", "a counter decreases", (ledger[1:] < ledger[:-1]).any()),
        ("certificate", "it is incomplete", (none & ~certificate.isnan().all(1)).any()),
        ("certificate", "'proven' is neither 0 nor 1", not is_proof.all()),
        ("lam", "a row does not sum to 1", ((sums - 1).abs() > ROUNDING).any()),
    )
    for name, fault, is_broken in rules:
        if bool(is_broken):
            raise DamagedError(f"history.{name}: {fault}", field=f"history.{name}")
    rows: list[Row] = []
    plain = {name: column.tolist() for name, column in columns.items() if name not in ("lam", "flagged")}
    for k, r in enumerate(plain["round"]):
        primal, lower, norm, proven = plain["certificate"][k]
        rows.append(Row(
            r, Metrics(*plain["metrics"][k]), dict(zip(COUNTERS, plain["ledger"][k], strict=True)), columns["lam"][k],
            seconds=plain["seconds"][k],
            # Only NaN differs from itself.
            certificate=None if primal != primal else Certificate(primal, lower, norm, bool(proven)),
            flagged=columns["flagged"][k] if "flagged" in columns else None,
            last=Metrics(*plain["last"][k]),
            others=dict(zip(others, plain["others"][k], strict=True)),
            validation=Metrics(*plain["validation"][k]) if "validation" in plain else None,
            undefined=tuple(plain["undefined"][k]),
        ))  # fmt: skip
    return tuple(rows)
