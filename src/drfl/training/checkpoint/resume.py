"""Keep a run's progress in a folder, and find the checkpoint from which the same run can be resumed."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import re
import reprlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from drfl.ambiguity import Simplex
from drfl.core import checks
from drfl.core.errors import DrflError, InputError, Notice
from drfl.core.files import read_bytes
from drfl.core.hashing import digest_of
from drfl.federation.algorithm import Algorithm, ambiguity_of, mixture_of
from drfl.federation.federation import Federation
from drfl.training.checkpoint import store
from drfl.training.checkpoint.schema import DamagedError, run_state_of
from drfl.training.checkpoint.store import REPLIES, Files, Identity
from drfl.training.run_state import RunState, first

if TYPE_CHECKING:
    from drfl.training.checkpoint.record import Extent

T = TypeVar("T")

LOG = logging.getLogger("drfl")

SHARE = 0.05
"""By default checkpoints take at most this share of the time."""

SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = 200
"""Writes values in messages, which should stay one line."""

ADDRESS = re.compile(r" at 0x[0-9a-f]+")

Same = Callable[[Identity], Sequence[Notice]]
"""Whether a checkpoint's run is the one to resume: gives remarks on it.

It raises InputError if it is another run, and DamagedError if the identity is not valid.
"""


class ResumePoint(NamedTuple):
    """Where a run can be resumed.

    Args:
        folder: the checkpoint's.
        progress: where the run was.
        identity: of the run that wrote it.
        told: what there is to say, each in a sentence: newer checkpoints that cannot be used, and why; then remarks.
        replies: the rows of a deployment's ``replies.csv`` up to there, as the checkpoint's digest covers them.
    """

    folder: Path
    progress: RunState
    identity: Identity
    told: tuple[Notice, ...] = ()
    replies: bytes = b""


class _RefusedError(DamagedError):
    """A checkpoint is whole and cannot be used; in the words of an InputError."""


def run_identity(algorithm: Algorithm, fed: Federation, settings: Mapping[str, object]) -> dict[str, object]:
    """Describe a run as plain values.

    Args:
        algorithm: its fields, and those of what is in them, are listed one by one.
        fed: its clients.
        settings: of the run, plain values.
    """
    return {
        **_fields("algorithm", algorithm),
        **settings,
        "clients": fed.n,
        "data": fed.data_digest(),
        "model": digest_of([fed.w0]),
    }


def _fields(name: str, thing: object) -> dict[str, object]:
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        # Addresses in a repr differ from process to process.
        return {name: ADDRESS.sub("", repr(thing))}
    found: dict[str, object] = {name: type(thing).__name__}
    for field in dataclasses.fields(thing):
        found |= _fields(f"{name}.{field.name}", getattr(thing, field.name))
    return found


def check_same(own: Callable[[], Identity], kept: Identity) -> list[Notice]:
    """Make sure that a run may be resumed from a checkpoint; gives no remarks, see :data:`Same`.

    Args:
        own: gives the run's identity.
        kept: the checkpoint's.

    Raises:
        InputError: they differ; names the first difference.
    """
    # The identity is computed only if it is needed, as digests of the data may take a while.
    ours = own()
    for name in {**ours, **kept}:
        if ours.get(name) != kept.get(name):
            before, now = (SHORT.repr(values.get(name, "not set")) for values in (kept, ours))
            raise InputError(
                f"the checkpoints are of a run with {name} = {before}, not {now}: give what it was begun with, or "
                "another folder",
                code="other-run",
                field=name,
            )
    return []


def newest(folder: Path, key: bytes | None = None) -> Files | None:
    """Read the newest checkpoint in a folder whose files are whole; None if there never was one.

    Whether an algorithm can be resumed from it is not looked into: see :func:`resume_point`.

    Args:
        folder: where.
        key: it must be signed with; None = whatever its signature.

    Raises:
        DamagedError: there are checkpoints, and none of them is whole.
    """
    return _first(folder, lambda path: store.read(path, key))[0]


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
    """Find the newest checkpoint in a folder that a run can be resumed from; None if there never was one.

    Everything that a checkpoint holds is checked. If one cannot be used, the one before is tried.

    Args:
        folder: where.
        algorithm: the run's.
        fed: its clients.
        rounds: how many it has in all; None = any number.
        fresh: where it was before its first round; None = what :func:`drfl.training.loop.first` gives.
        same: whether the checkpoint's run is this one; None = take that for granted.
        key: checkpoints must be signed with; None = whatever their signatures.

    Raises:
        DamagedError: there are checkpoints, and none of them can be used.
        InputError: none of them can be used, and one is of another run, as ``same`` says, or the ``replies.csv`` beside
            it is not the one that it covers; or the hyperparameters do not fit the federation.
    """
    # The state before the first round defines which tensors there must be, and their shapes.
    start = first(algorithm, fed) if fresh is None else fresh
    lam, ambiguity = mixture_of(algorithm, start.state, fed), ambiguity_of(algorithm) or Simplex()

    def use(path: Path) -> ResumePoint:
        found = store.read(path, key)
        record = found.record
        try:
            remarks = [] if same is None else list(same(record.identity))
            replies = b""
            if record.replies is not None:
                # The checkpoint covers the beginning of the file; rows of later rounds are left out.
                size, digest = record.replies
                covered = folder / REPLIES
                remedy = "restore it, or give another 'out'"
                replies = read_bytes(covered, limit=None, follow=False, remedy=remedy)[:size]
                if len(replies) != size or hashlib.sha256(replies).hexdigest() != digest:
                    raise InputError(
                        f"{covered} does not hold the rows that the checkpoint covers: restore the file, or give "
                        "another 'out'",
                        code="damaged-file",
                        field=covered.name,
                    )
        # A checkpoint of another run is not damaged. The error is raised only if no older checkpoint fits.
        except InputError as error:
            raise _RefusedError(str(error), code=error.code, field=error.field) from None
        if found.signed and key is None:
            text = f"checkpoint {path} is signed, and without checkpoint_key nobody looked whether rightly"
            remarks.append(Notice(text, "unchecked-signature", "checkpoint_key"))
        if rounds is not None and record.round > rounds:
            raise DamagedError(f"run.json, round: {record.round} of {rounds}", field="round")
        progress = run_state_of(record, found.tensors, start, lam, ambiguity, fed.measures)
        return ResumePoint(path, progress, record.identity, tuple(remarks), replies)

    point, passed_over = _first(folder, use)
    return None if point is None else point._replace(told=(*passed_over, *point.told))


def _first(folder: Path, use: Callable[[Path], T]) -> tuple[T | None, tuple[Notice, ...]]:
    """What can be made of the newest checkpoint that can be used, and why newer ones cannot."""
    passed_over: list[Notice] = []
    errors: list[DamagedError] = []
    for path in store.checkpoints(folder):
        try:
            return use(path), tuple(passed_over)
        except DamagedError as error:
            errors.append(error)
            passed_over.append(Notice(f"checkpoint {path} cannot be used: {error}", error.code, str(path)))
    refused = next((error for error in errors if isinstance(error, _RefusedError)), None)
    if refused is not None:  # nothing is damaged where somebody gave other options
        raise InputError(str(refused), code=refused.code, field=refused.field)
    if errors:
        raise DamagedError("; ".join(passed_over), field=errors[0].field)
    return None, ()


class Checkpoints:
    """Keeps a run's progress in a folder, and has the same run go on from there: for ``drfl.run(…, checkpoints=…)``.

    Args:
        folder: where; made if need be.
        identity: what the run is known by, plain values, asked for when the first checkpoint is written, as it may take
            a while; None = its algorithm, settings, data and initial model.
        every: a checkpoint every so many rounds; None = as often as takes a twentieth of the time at most. In any case
            one where a run is stopped.
        key: to sign them with, see :func:`drfl.training.checkpoint.read_key`; None = they are not signed.
        clock: seconds that the run has taken, from any moment on.
        replies: tells how much of a deployment's ``replies.csv``, which is in the same folder, is written. Each
            checkpoint covers those rows with their length and digest.

    Raises:
        InputError: ``every`` is out of range.
        DrflError: the folder cannot be written to, or the disk is full. The checkpoints before are whole.
    """

    def __init__(
        self,
        folder: str | Path,
        identity: Callable[[], Identity] | None = None,
        every: int | None = None,
        key: bytes | None = None,
        clock: Callable[[], float] = time.perf_counter,
        replies: Callable[[], Extent] | None = None,
    ) -> None:
        if every is not None:
            checks.whole("every", every)
        self.folder, self.every, self.key = Path(folder), every, key
        self._given, self._identity = identity, identity or dict
        self._known: Identity | None = None
        self._clock, self._replies = clock, replies
        self._ended, self._took = clock(), 0.0

    def resume(
        self, algorithm: Algorithm, fed: Federation, rounds: int, fresh: RunState, settings: Mapping[str, object]
    ) -> RunState | None:
        """Where a run goes on, which is kept here from now on; None where the folder has no checkpoint.

        What is wrong with newer checkpoints that cannot be used is in the log.

        Args:
            algorithm: the run's.
            fed: its clients.
            rounds: how many it has in all.
            fresh: where it is before its first round.
            settings: of the run, plain values.

        Raises:
            InputError: the checkpoints are of another run.
            DamagedError: none of them can be used.
        """
        self._identity, self._known = self._given or partial(run_identity, algorithm, fed, settings), None
        same = partial(check_same, self._identity)
        point = resume_point(self.folder, algorithm, fed, rounds=rounds, fresh=fresh, same=same, key=self.key)
        self._ended = self._clock()
        if point is None:
            return None
        for line in point.told:
            LOG.warning(line)
        LOG.info("going on after round %d of %d", point.progress.round, rounds)
        return point.progress

    def __call__(self, progress: RunState, stopping: bool) -> None:
        """Write a checkpoint if one is due."""
        if stopping:
            due = True
        elif self.every is not None:
            due = progress.round % self.every == 0
        else:
            # Writing took `_took` seconds, which must be at most SHARE of the time since.
            due = SHARE * (self._clock() - self._ended) >= self._took
        if due:
            self.write(progress)

    def write(self, progress: RunState) -> None:
        """Write a checkpoint now."""
        began = self._clock()
        # The identity is computed with the first checkpoint, as digests of the data may take a while.
        self._known = self._known or self._identity()
        replies = None if self._replies is None else self._replies()
        try:
            store.write(self.folder, progress, self._known, replies, self.key)
        except OSError as error:
            reason = error.strerror or error
            where = f"round {progress.round} to {self.folder}"
            intact = "there is none yet"
            for path in store.checkpoints(self.folder):
                # Damaged checkpoints may remain from before the run was resumed.
                with suppress(DamagedError):
                    r = store.read(path, self.key).record.round
                    intact = f"that of round {r} is intact: make room and resume"
                    break
            raise DrflError(
                f"cannot write a checkpoint of {where} ({reason}); {intact}",
                code="cannot-write",
                field=str(self.folder),
            ) from None
        self._ended = self._clock()
        self._took = self._ended - began
