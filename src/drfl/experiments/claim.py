"""A run's folder while it runs: held by one process, with the checkpoints to resume from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from drfl.data.files import missing_folders, remove_empty
from drfl.errors import DivergedError, InputError
from drfl.experiments.place import default_directory
from drfl.experiments.rundir import FILES

FOLDER, CONFIG, LOCK = "checkpoint", "config.toml", "lock"


@dataclass
class Claim:
    """A folder that this process alone writes to.

    Args:
        directory: the run's folder.
        fresh: whether what lies there is of an earlier run, to be replaced.
        finished: set once the results are whole and there is nothing to resume.
    """

    directory: Path
    fresh: bool = True
    finished: bool = False

    @property
    def checkpoints(self) -> Path:
        """Where its checkpoints lie."""
        return self.directory / FOLDER


@contextmanager
def claimed(directory: Path, *, fresh: bool = True, anew: bool = False) -> Iterator[Claim]:
    """Hold a run's folder, which is made if need be; a second process is refused for as long.

    Afterwards its checkpoints are gone if the run has finished or diverged; otherwise they stay. A folder in which
    nothing would be left is removed.

    Args:
        directory: the run's folder.
        fresh: whether what lies there is of an earlier run: its checkpoints go now, its results once there are others.
        anew: take a folder that was not there, with a number added to the name if need be.

    Raises:
        InputError: another process holds it, or it cannot be written to.
    """
    made: list[Path] = []
    try:
        directory, made = _make(directory, anew)
        claim = Claim(directory, fresh)
        claim.checkpoints.mkdir(exist_ok=True)
        lock = FileLock(claim.checkpoints / LOCK, timeout=0)
        lock.acquire()
    except Timeout:
        raise InputError(f"another process is running in {directory}: wait for it, or give another --out") from None
    except OSError as error:
        remove_empty(made)
        raise InputError(f"cannot write into {directory} ({error.strerror}): give another --out") from None
    try:
        if fresh:
            _clear(claim.checkpoints, but=(LOCK,))
        yield claim
    except DivergedError:  # it would diverge again
        claim.finished = True
        raise
    finally:
        if claim.finished or not any(claim.checkpoints.glob("round-*")):
            shutil.rmtree(claim.checkpoints, ignore_errors=True)
        lock.release()
        remove_empty(made)


def _make(directory: Path, anew: bool) -> tuple[Path, list[Path]]:
    """A folder, and what had to be made for it; where it must be a new one, the next free name is taken."""
    while True:
        place = default_directory(directory.parent, directory.name) if anew else directory
        made = missing_folders(place)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.mkdir(exist_ok=not anew)
            return place, made
        except FileExistsError:  # another process was faster
            if not anew:
                raise
        except OSError:
            remove_empty(made)
            raise


@contextmanager
def filled(claim: Claim) -> Iterator[Path]:
    """A temporary folder whose files take their places in the run's folder, summary.json last, when the block succeeds.

    What an earlier run left there goes; where this run is resumed, only results that it does not write any more.

    Raises:
        InputError: the place cannot be written to.
    """
    stage = claim.checkpoints / ".results"
    try:
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir()
        yield stage
        names = sorted((path.name for path in stage.iterdir()), key=lambda name: (name == "summary.json", name))
        for name in names:
            os.replace(stage / name, claim.directory / name)
        if claim.fresh:
            _clear(claim.directory, but=(FOLDER, *names))
        for name in set(FILES).difference(names):
            (claim.directory / name).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {claim.directory}: {error.strerror}") from None
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _clear(folder: Path, but: Collection[str]) -> None:
    for path in folder.iterdir():
        if path.name not in but:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
