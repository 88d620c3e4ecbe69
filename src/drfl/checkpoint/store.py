"""The folder where a run keeps its last two checkpoints.

Each is written under a temporary name, brought to the disk and renamed: it is whole or not there. What is in one, see
:mod:`drfl.checkpoint.files`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from safetensors.torch import save as save_tensors

from drfl import checks
from drfl.algorithm import Algorithm
from drfl.atomic_files import remove_known
from drfl.checkpoint.files import (
    RUN,
    SIGNATURE,
    STATE,
    SUMS,
    DamagedError,
    Identity,
    checkpoints,
    name_of,
    read,
    signature,
    sums_of,
)
from drfl.checkpoint.identity import check_same, run_identity
from drfl.checkpoint.log import log_tensors
from drfl.checkpoint.selection import resume_point
from drfl.checkpoint.state_tensors import FORMAT, PARTS, tensors_of
from drfl.errors import DrflError
from drfl.federation import Federation
from drfl.run_state import RunState

LOG = logging.getLogger("drfl")

KEPT = 2

FILES = re.compile(r"state\.safetensors|run\.json|SHA256SUMS|HMAC-SHA256")
"""The names of files that a checkpoint may have; nothing else is ever removed."""

SHARE = 0.05
"""Unless told how often, checkpoints take at most this share of the time."""


class Checkpoints:
    """Keeps a run's progress in a folder, and has the same run go on from there: for ``drfl.run(…, checkpoints=…)``.

    Args:
        folder: where; made if need be.
        identity: what the run is known by, plain values, asked for when the first checkpoint is written, as it may take
            a while; None = its algorithm, settings, data and initial model.
        every: a checkpoint every so many rounds; None = as often as takes a twentieth of the time at most. In any case
            one where a run is stopped.
        key: to sign them with, see :func:`drfl.checkpoint.read_key`; None = they are not signed.
        clock: seconds that the run has taken, from any moment on.

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
    ) -> None:
        if every is not None:
            checks.whole("every", every)
        self.folder, self.every, self.key = Path(folder), every, key
        self._given, self._identity = identity, identity or dict
        self._known: Identity | None = None
        self._clock = clock
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
        if stopping or self._due(progress.round):
            self.write(progress)

    def write(self, progress: RunState) -> None:
        """Write a checkpoint now."""
        began = self._clock()
        self._known = self._known or self._identity()
        try:
            _write(self.folder, progress, self._known, self.key)
        except OSError as error:
            reason = error.strerror or error
            where = f"round {progress.round} to {self.folder}"
            raise DrflError(
                f"cannot write a checkpoint of {where} ({reason}); {self._intact()}",
                code="cannot-write",
                field=str(self.folder),
            ) from None
        self._ended = self._clock()
        self._took = self._ended - began

    def _intact(self) -> str:
        for path in checkpoints(self.folder):
            try:
                return f"that of round {read(path, self.key).record.round} is intact: make room and resume"
            except DamagedError:  # passed over when the run was resumed
                continue
        return "there is none yet"

    def _due(self, r: int) -> bool:
        if self.every is not None:
            return r % self.every == 0
        return SHARE * (self._clock() - self._ended) >= self._took


def _write(folder: Path, progress: RunState, identity: Identity, key: bytes | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / name_of(progress.round)
    temporary = folder / f".{final.name}.part"
    remove_known(temporary, FILES)
    temporary.mkdir()
    try:
        for name, data in _files(progress, identity, key).items():
            _put(temporary / name, data)
        _flush(temporary)
        remove_known(final, FILES)
        os.rename(temporary, final)
        _flush(folder)
    except BaseException:
        remove_known(temporary, FILES)
        raise
    # those with a higher number were passed over: they must not push out the ones that can be used
    mine = [path for path in checkpoints(folder) if int(path.name[6:]) <= progress.round]
    for old in mine[KEPT:]:
        remove_known(old, FILES)


def _files(progress: RunState, identity: Identity, key: bytes | None) -> dict[str, bytes]:
    """The files of a checkpoint by name."""
    content = {**progress._asdict(), "identity": identity, "format": FORMAT}
    tensors = log_tensors(content.pop("rows"))
    for name in PARTS:
        tensors.update(tensors_of(content.pop(name), name))
    point = content.pop("point")
    files = {
        STATE: save_tensors(tensors if point is None else {**tensors, "point": point.cpu()}),
        RUN: (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode(),
    }
    sums = sums_of(files)
    signed = {} if key is None else {SIGNATURE: signature(key, name_of(progress.round), sums)}
    return {**files, SUMS: sums, **signed}


def _put(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
