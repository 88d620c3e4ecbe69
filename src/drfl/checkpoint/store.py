"""The folder where a run keeps its last two checkpoints.

A checkpoint is a folder ``round-00000120`` with ``state.safetensors`` (vectors), ``run.json`` (the rest) and
``SHA256SUMS``, which ``sha256sum -c`` checks. It is written under a temporary name, brought to the disk and renamed: it
is whole or not there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, cast

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from drfl.algorithm import Progress, State
from drfl.checkpoint.damage import DamagedError
from drfl.checkpoint.log import log_rows, log_tensors
from drfl.checkpoint.tree import restored, tensors_of
from drfl.data.files import remove_known
from drfl.errors import DrflError

FORMAT = 1
"""Goes up when a checkpoint is written that older versions would misread."""

KEPT = 2
STATE, RUN, SUMS = "state.safetensors", "run.json", "SHA256SUMS"

FILES = re.compile(r"state\.safetensors|run\.json|SHA256SUMS|HMAC-SHA256")
"""The names of files that a checkpoint may have; nothing else is ever removed."""

SHARE = 0.05
"""Unless told how often, checkpoints take at most this share of the time."""

Identity = Mapping[str, object]
"""What a run must have in common with its checkpoint, as plain values."""


class Found(NamedTuple):
    """A checkpoint that can be read.

    Args:
        folder: where.
        identity: of the run that wrote it.
        content: the rest of its ``run.json``.
        tensors: its vectors by name.
        damaged: newer ones that cannot be used, each in a sentence.
    """

    folder: Path
    identity: Identity
    content: Mapping[str, object]
    tensors: Mapping[str, Tensor]
    damaged: tuple[str, ...]

    def progress(self, fresh: State) -> Progress:
        """Where the run was.

        Args:
            fresh: a first state of the same algorithm on the same federation.

        Raises:
            DamagedError: it does not fit the state.
        """
        number = {name: cast("int", self.content[name]) for name in ("round", "skipped")}
        ledger, seconds = cast("dict[str, int]", self.content["ledger"]), cast("float", self.content["seconds"])
        state, rows = restored(fresh, self.tensors), log_rows(self.tensors)
        return Progress(number["round"], number["skipped"], state, rows, ledger, seconds, self.tensors.get("point"))


class Checkpoints:
    """Keeps a run's progress in a folder: a :class:`drfl.algorithm.Keeper`.

    Args:
        folder: where; made if need be.
        identity: of the run; asked for when the first checkpoint is written, as it may take a while.
        every: a checkpoint every so many rounds; None = as often as takes a twentieth of the time at most. In any case
            one where a run is stopped.

    Raises:
        DrflError: the folder cannot be written to, or the disk is full. The checkpoints before are whole.
    """

    def __init__(self, folder: Path, identity: Callable[[], Identity], every: int | None = None) -> None:
        self.folder, self.every = folder, every
        self._identity, self._known = identity, None
        self._ended, self._took = time.perf_counter(), 0.0

    def __call__(self, progress: Progress, stopping: bool) -> None:
        """Write a checkpoint if one is due."""
        if stopping or self._due(progress.round):
            self.write(progress)

    def write(self, progress: Progress) -> None:
        """Write a checkpoint now."""
        began = time.perf_counter()
        self._known = self._known or self._identity()
        try:
            _write(self.folder, progress, self._known)
        except OSError as error:
            reason = error.strerror or error
            where = f"round {progress.round} to {self.folder}"
            raise DrflError(f"cannot write a checkpoint of {where} ({reason}); {self._intact()}") from None
        self._ended = time.perf_counter()
        self._took = self._ended - began

    def _intact(self) -> str:
        held = _all(self.folder)
        return (
            f"that of round {int(held[-1].name[6:])} is intact: make room and resume" if held else "there is none yet"
        )

    def _due(self, r: int) -> bool:
        if self.every is not None:
            return r % self.every == 0
        return SHARE * (time.perf_counter() - self._ended) >= self._took


def newest(folder: Path) -> Found | None:
    """The newest checkpoint in a folder that is whole; None where there never was one.

    Raises:
        DamagedError: there are checkpoints, and none of them can be used.
    """
    damaged: list[str] = []
    for path in reversed(_all(folder)):
        try:
            return _read(path, tuple(damaged))
        except DamagedError as error:
            damaged.append(f"checkpoint {path} cannot be used: {error}")
    if damaged:
        raise DamagedError("; ".join(damaged))
    return None


def _all(folder: Path) -> list[Path]:
    """The checkpoints, oldest first."""
    return sorted(path for path in folder.glob("round-*") if path.name[6:].isdigit())


def _write(folder: Path, progress: Progress, identity: Identity) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"round-{progress.round:08d}"
    temporary = folder / f".{final.name}.part"
    remove_known(temporary, FILES)
    temporary.mkdir()
    try:
        content = {**progress._asdict(), "identity": identity, "format": FORMAT}
        tensors = {**tensors_of(content.pop("state")), **log_tensors(content.pop("rows"))}
        point = content.pop("point")
        files = {
            STATE: save_tensors(tensors if point is None else {**tensors, "point": point.cpu()}),
            RUN: (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode(),
        }
        files[SUMS] = _sums(files)
        for name, data in files.items():
            _put(temporary / name, data)
        _flush(temporary)
        remove_known(final, FILES)
        os.rename(temporary, final)
        _flush(folder)
    except BaseException:
        remove_known(temporary, FILES)
        raise
    for old in _all(folder)[:-KEPT]:
        remove_known(old, FILES)


def _sums(files: Mapping[str, bytes]) -> bytes:
    """As ``sha256sum`` writes them."""
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()).encode()


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


def _read(path: Path, damaged: tuple[str, ...]) -> Found:
    try:
        files = {name: (path / name).read_bytes() for name in (STATE, RUN, SUMS)}
        if files.pop(SUMS) != _sums(files):
            raise DamagedError("its checksums do not fit")
        content = json.loads(files[RUN])
        if content.pop("format") != FORMAT:
            raise DamagedError("another version of drfl wrote it")
        return Found(path, content.pop("identity"), content, load_tensors(files[STATE]), damaged)
    except OSError as error:
        raise DamagedError(f"{Path(error.filename or path).name}: {error.strerror}") from None
    except (ValueError, KeyError, AttributeError, SafetensorError) as error:
        raise DamagedError(f"it is not whole ({error})") from None
