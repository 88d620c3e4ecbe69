"""Which of the checkpoints in a folder a run can go on from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from torch import Tensor

from drfl.algorithm import Algorithm, ambiguity_of, lam_of, mixture_of
from drfl.ambiguity import AmbiguitySet, Simplex
from drfl.averages import Average, DecayingAverage
from drfl.checkpoint.files import Files, Identity, checkpoints, read
from drfl.checkpoint.log import ROUNDING, log_names, log_rows
from drfl.checkpoint.state_tensors import PARTS, DamagedError, part_of, restored, tensors_of
from drfl.errors import InputError, Notice
from drfl.federation import Federation
from drfl.metrics import Measure
from drfl.run_state import RunState, first

T = TypeVar("T")

Same = Callable[[Identity], Sequence[Notice]]
"""Whether a checkpoint's run is the one to go on with: gives remarks on it.

It raises InputError where that is another run, and DamagedError where the identity is none.
"""


class ResumePoint(NamedTuple):
    """Where a run can go on.

    Args:
        folder: the checkpoint's.
        progress: where the run was.
        identity: of the run that wrote it.
        told: what there is to say, each in a sentence: newer checkpoints that cannot be used, and why; then remarks.
    """

    folder: Path
    progress: RunState
    identity: Identity
    told: tuple[Notice, ...] = ()


class _OtherRunError(DamagedError):
    """A checkpoint is of another run, in the words of an InputError."""


def newest(folder: Path, key: bytes | None = None) -> Files | None:
    """The newest checkpoint in a folder whose files are whole; None where there never was one.

    Whether an algorithm can go on from it is not looked into: see :func:`resume_point`.

    Args:
        folder: where.
        key: it must be signed with; None = whatever its signature.

    Raises:
        DamagedError: there are checkpoints, and none of them is whole.
    """
    return _first(folder, lambda path: read(path, key))[0]


def resume_point(
    folder: Path,
    algorithm: Algorithm,
    fed: Federation,
    *,
    rounds: int | None = None,
    fresh: RunState | None = None,
    same: Same | None = None,
    key: bytes | None = None,
) -> ResumePoint | None:
    """The newest checkpoint in a folder that a run can go on from; None where there never was one.

    Everything that a checkpoint holds is checked. One that cannot be used is told of, and the one before is tried.

    Args:
        folder: where.
        algorithm: the run's.
        fed: its clients.
        rounds: how many it has in all; None = any number.
        fresh: where it was before its first round; None = what :func:`drfl.loop.first` gives.
        same: whether the checkpoint's run is this one; None = take that for granted.
        key: checkpoints must be signed with; None = whatever their signatures.

    Raises:
        DamagedError: there are checkpoints, and none of them can be used.
        InputError: none of them can be used, and one is of another run, as ``same`` says; or the hyperparameters do not
            fit the federation.
    """
    fresh = first(algorithm, fed) if fresh is None else fresh
    lam, ambiguity = mixture_of(algorithm, fresh.state, fed), ambiguity_of(algorithm) or Simplex()

    def use(path: Path) -> ResumePoint:
        found = read(path, key)
        remarks = list(_remarks(found.record.identity, same))
        if found.signed and key is None:
            text = f"checkpoint {path} is signed, and without checkpoint_key nobody looked whether rightly"
            remarks.append(Notice(text, "unchecked-signature", "checkpoint_key"))
        progress = _progress(found, fresh, lam, ambiguity, rounds, fed.measures)
        return ResumePoint(path, progress, found.record.identity, tuple(remarks))

    point, passed_over = _first(folder, use)
    return None if point is None else point._replace(told=(*passed_over, *point.told))


def _first(folder: Path, use: Callable[[Path], T]) -> tuple[T | None, tuple[Notice, ...]]:
    """What can be made of the newest checkpoint that can be used, and why newer ones cannot."""
    passed_over: list[Notice] = []
    other: _OtherRunError | None = None
    for path in checkpoints(folder):
        try:
            return use(path), tuple(passed_over)
        except DamagedError as error:
            if other is None and isinstance(error, _OtherRunError):
                other = error
            passed_over.append(Notice(f"checkpoint {path} cannot be used: {error}", error.code, str(path)))
    if other is not None:  # nothing is damaged where somebody gave other options
        raise InputError(str(other), code=other.code, field=other.field)
    if passed_over:
        raise DamagedError("; ".join(passed_over))
    return None, ()


def _remarks(identity: Identity, same: Same | None) -> Sequence[Notice]:
    try:
        return () if same is None else same(identity)
    except InputError as error:
        raise _OtherRunError(str(error), code=error.code, field=error.field) from None


def _progress(
    found: Files,
    fresh: RunState,
    lam: Tensor,
    ambiguity: AmbiguitySet,
    rounds: int | None,
    measures: Sequence[Measure],
) -> RunState:
    """Where the run was, if all of it fits the first state of that run.

    Raises:
        DamagedError: it does not.
    """
    record, tensors = found.record, found.tensors
    if rounds is not None and record.round > rounds:
        raise DamagedError(f"run.json, round: {record.round} of {rounds}")
    known = {name for part in PARTS for name in tensors_of(getattr(fresh, part), part)} | log_names() | {"point"}
    for name in sorted(tensors.keys() - known):
        raise DamagedError(f"{name} is no part of this algorithm's")
    parts = {part: restored(getattr(fresh, part), tensors, part) for part in PARTS}
    rows = log_rows(tensors, fresh.state, lam, record, measures, fresh.selected is not None)
    for name, part in parts.items():
        if isinstance(part, Average | DecayingAverage) and int(part.rounds) > record.round:
            raise DamagedError(f"{name} is a mean of {int(part.rounds)} rounds of {record.round}")
        mixture = lam_of(part)
        if mixture is not None and not ambiguity.contains(mixture.detach().cpu().double(), ROUNDING):
            raise DamagedError(f"{name}.lam is no mixture that the algorithm can have")
    point = part_of(tensors, "point", fresh.state.w) if "point" in tensors else None
    return RunState(
        record.round,
        record.skipped,
        rows=rows,
        ledger=dict(record.ledger),
        seconds=record.seconds,
        point=point,
        **parts,
    )
