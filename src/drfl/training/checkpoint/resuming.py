"""Store a run's progress in a folder, and find the checkpoint from which the same run can be resumed."""

from __future__ import annotations

import hashlib
import logging
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
from drfl.federation.algorithm import Algorithm, ambiguity_of, mixture_of
from drfl.federation.federation import Federation
from drfl.training.checkpoint import store
from drfl.training.checkpoint.state_schema import DamagedError, run_state_of
from drfl.training.checkpoint.store import REPLIES, Files
from drfl.training.run_identity import Identity, check_same, run_identity
from drfl.training.run_state import RunState, first

if TYPE_CHECKING:
    from drfl.training.checkpoint.record import Extent

T = TypeVar("T")

LOG = logging.getLogger("drfl")

SHARE = 0.05
"""Maximum share of the time that checkpoints take by default."""

Same = Callable[[Identity], Sequence[Notice]]
"""Checks that a checkpoint belongs to the run to resume, and returns remarks on it.

It raises InputError if the checkpoint belongs to another run, and DamagedError if the identity is not valid.
"""


class ResumePoint(NamedTuple):
    """A checkpoint from which a run can be resumed.

    Args:
        folder: Folder of the checkpoint.
        progress: The state of the run.
        identity: Identity of the run that wrote the checkpoint.
        notices: Notices: first the newer checkpoints that cannot be used, with the reasons, then remarks.
        replies: The rows of a deployment's ``replies.csv`` that the checkpoint's digest covers.
    """

    folder: Path
    progress: RunState
    identity: Identity
    notices: tuple[Notice, ...] = ()
    replies: bytes = b""


class _RefusedError(DamagedError):
    """A whole checkpoint that cannot be used, with the text of an InputError."""


def _check_same(own: Callable[[], Identity], kept: Identity) -> list[Notice]:
    # The identity is computed only if there is a checkpoint, because digests of the data may take a while.
    check_same(own(), kept, "the checkpoints belong", "another folder")
    return []


def newest(folder: Path, key: bytes | None = None) -> Files | None:
    """Read the newest checkpoint in a folder whose files are whole; None if the folder has no checkpoints.

    It does not check whether an algorithm can be resumed from it, see :func:`resume_point`.

    Args:
        folder: The folder.
        key: Key with which the checkpoint must be signed; None = signatures are not checked.

    Raises:
        DamagedError: If there are checkpoints, but none of them is whole.
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
    """Find the newest checkpoint in a folder from which a run can be resumed; None if the folder has no checkpoints.

    The whole content of a checkpoint is checked. If a checkpoint cannot be used, the one before it is tried.

    Args:
        folder: The folder.
        algorithm: The run's algorithm.
        fed: The clients.
        rounds: Number of rounds of the run; None = any number.
        fresh: The run before its first round; None = from :func:`drfl.training.run_state.first`.
        same: Checks that the checkpoint belongs to this run; None = not checked.
        key: Key with which checkpoints must be signed; None = signatures are not checked.

    Raises:
        DamagedError: If there are checkpoints, but none of them can be used.
        InputError: If the newest usable checkpoint has more rounds than the run; if no checkpoint can be used and one
            of them belongs to another run according to ``same``, or does not match the ``replies.csv`` beside it; or if
            the hyperparameters do not fit the federation.
    """
    # The state before the first round determines the names and shapes of the tensors.
    start = first(algorithm, fed) if fresh is None else fresh
    lam, ambiguity = mixture_of(algorithm, start.state, fed), ambiguity_of(algorithm) or Simplex()

    def use(path: Path) -> ResumePoint:
        files = store.read(path, key)
        record = files.record
        try:
            remarks = [] if same is None else list(same(record.identity))
            replies = b""
            if record.replies is not None:
                # The checkpoint covers the beginning of the file; rows of later rounds are ignored.
                size, digest = record.replies
                covered = folder / REPLIES
                remedy = "restore it, or set another 'out'"
                replies = read_bytes(covered, limit=None, follow=False, remedy=remedy)[:size]
                if len(replies) != size or hashlib.sha256(replies).hexdigest() != digest:
                    raise InputError(
                        f"{covered} does not contain the rows that the checkpoint covers. Restore the file, or set "
                        "another 'out'.",
                        code="damaged-file",
                        field=covered.name,
                    )
        # A checkpoint of another run is not damaged. The error is raised only if no older checkpoint fits.
        except InputError as error:
            raise _RefusedError(str(error), code=error.code, field=error.field) from None
        if files.signed and key is None:
            text = (
                f"checkpoint {path} is signed, but its signature was not verified because `checkpoint_key` is not set"
            )
            remarks.append(Notice(text, "unchecked-signature", "checkpoint_key"))
        if rounds is not None and record.round > rounds:
            # Do not use an older checkpoint, which would discard rounds that the user may want.
            raise InputError(
                f"the run in {folder} already has {record.round} rounds, but `rounds` is {rounds}: set `rounds` to at "
                f"least {record.round}, or use another folder",
                code="out-of-range",
                field="rounds",
            )
        progress = run_state_of(record, files.tensors, start, lam, ambiguity, fed.measures)
        return ResumePoint(path, progress, record.identity, tuple(remarks), replies)

    point, unusable = _first(folder, use)
    return None if point is None else point._replace(notices=(*unusable, *point.notices))


def _first(folder: Path, use: Callable[[Path], T]) -> tuple[T | None, tuple[Notice, ...]]:
    """Use the newest checkpoint that can be used; also return why newer ones cannot be used."""
    unusable: list[Notice] = []
    errors: list[DamagedError] = []
    for path in store.checkpoints(folder):
        try:
            return use(path), tuple(unusable)
        except DamagedError as error:
            errors.append(error)
            unusable.append(Notice(f"checkpoint {path} cannot be used: {error}", error.code, str(path)))
    refused = next((error for error in errors if isinstance(error, _RefusedError)), None)
    if refused is not None:  # the checkpoints are intact, but the options differ
        raise InputError(str(refused), code=refused.code, field=refused.field)
    if errors:
        raise DamagedError("; ".join(unusable), field=errors[0].field)
    return None, ()


class Checkpoints:
    """Stores a run's progress in a folder and resumes the same run from there: for ``drfl.run(…, checkpoints=…)``.

    Args:
        folder: The folder, which is created if necessary.
        identity: Returns the plain values that identify the run. It is called when the first checkpoint is written,
            because it may take a while. None = algorithm, settings, data and initial model.
        every: Write a checkpoint every this many rounds; None = as often as possible within 5 % of the time. A
            checkpoint is always written when the run is stopped.
        key: Key with which checkpoints are signed, see :func:`drfl.training.checkpoint.read_key`; None = not signed.
        clock: Clock in seconds, with any starting point.
        replies: Returns how much of a deployment's ``replies.csv``, in the same folder, is written. Each checkpoint
            covers those rows with their length and digest.

    Raises:
        InputError: If ``every`` is out of range.
        DrflError: If the folder cannot be written or the disk is full. Earlier checkpoints remain whole.
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
            checks.integer("every", every)
        self.folder, self.every, self.key = Path(folder), every, key
        self._user_identity, self._identity = identity, identity or dict
        self._values: Identity | None = None
        self._clock, self._replies = clock, replies
        self._last_write, self._write_time = clock(), 0.0

    def __repr__(self) -> str:
        every = "" if self.every is None else f", every={self.every}"
        return f"Checkpoints('{self.folder}'{every}{'' if self.key is None else ', signed'})"

    def resume(
        self, algorithm: Algorithm, fed: Federation, rounds: int, fresh: RunState, settings: Mapping[str, object]
    ) -> RunState | None:
        """Return the state from which a run resumes; None if the folder has no checkpoint. Store its progress here.

        Newer checkpoints that cannot be used are logged as warnings, with the reasons.

        Args:
            algorithm: The run's algorithm.
            fed: The clients.
            rounds: Number of rounds of the run.
            fresh: The run before its first round.
            settings: Settings of the run, plain values.

        Raises:
            InputError: If the checkpoints belong to another run, or have more rounds than the run.
            DamagedError: If none of them can be used.
        """

        def identity() -> Identity:
            return run_identity(algorithm, fed, settings) | {"data": fed.data_digest()}

        self._identity, self._values = self._user_identity or identity, None
        same = partial(_check_same, self._identity)
        point = resume_point(self.folder, algorithm, fed, rounds=rounds, fresh=fresh, same=same, key=self.key)
        self._last_write = self._clock()
        if point is None:
            return None
        for line in point.notices:
            LOG.warning(line)
        LOG.info("resuming after round %d of %d", point.progress.round, rounds)
        return point.progress

    def __call__(self, progress: RunState, stopping: bool) -> None:
        """Write a checkpoint if one is due."""
        if stopping:
            due = True
        elif self.every is not None:
            due = progress.round % self.every == 0
        else:
            # Writing took `_write_time` seconds, which may be at most SHARE of the time since.
            due = SHARE * (self._clock() - self._last_write) >= self._write_time
        if due:
            self.write(progress)

    def write(self, progress: RunState) -> None:
        """Write a checkpoint now."""
        began = self._clock()
        # Compute it with the first checkpoint, because digests of the data may take a while.
        self._values = self._values or self._identity()
        replies = None if self._replies is None else self._replies()
        try:
            store.write(self.folder, progress, self._values, replies, self.key)
        except OSError as error:
            reason = error.strerror or error
            where = f"round {progress.round} to {self.folder}"
            intact = "there is no earlier checkpoint"
            for path in store.checkpoints(self.folder):
                # Damaged checkpoints from before the run was resumed may remain.
                with suppress(DamagedError):
                    r = store.read(path, self.key).record.round
                    intact = f"the checkpoint of round {r} is intact. Make room and resume."
                    break
            raise DrflError(
                f"cannot write the checkpoint of {where} ({reason}); {intact}",
                code="cannot-write",
                field=str(self.folder),
            ) from None
        # The time between writes is measured from the end of the last one, so writing does not count as training.
        self._last_write = self._clock()
        self._write_time = self._last_write - began
