"""The folder of a run: whether it may be used, who holds the lock, and results put there whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from drfl.core.atomic_files import atomic_write, is_file, is_folder, missing_folders, remove_empty, remove_known
from drfl.core.errors import DivergedError, InputError, Notice
from drfl.experiments.run.manifest import (
    CHECKPOINT,
    COMMANDS,
    CONFIG,
    KINDS,
    LOCK,
    NAME,
    OUTCOMES,
    STAGE,
    SUMMARY,
    Kind,
    Manifest,
    check_links,
    clear,
    clear_checkpoint,
    entries,
    foreign,
    has_checkpoints,
    is_finished,
    read_manifest,
)
from drfl.training.checkpoint import sign


def default_directory(root: Path, name: str) -> Path:
    """``root/name``, or ``root/name-2`` and so on where that is taken."""
    path, k = root / name, 1
    while os.path.lexists(path):
        k += 1
        path = root / f"{name}-{k}"
    return path


def check_free(path: Path, kind: Kind, *, overwrite: bool = False) -> None:
    """Make sure that a folder of results can be written at ``path``, and leave nothing behind.

    Args:
        path: where; a link to a folder is one.
        kind: what is to be written.
        overwrite: whether a folder of this kind may be there.

    Raises:
        InputError: something is there already, what is there and may be overwritten is of another kind or not drfl's,
            or the place cannot be written to.
    """
    try:
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file: give another --out", code="not-a-folder", field=str(path))
        if path.resolve() in (Path.cwd(), *Path.cwd().parents):
            raise InputError(
                f"{path} is the folder you are in, or around it: give another --out",
                code="unsafe-folder",
                field=str(path),
            )
        place = path
        while not place.exists():
            place = place.parent
        try:  # a permission check is not enough: root passes it even if nothing can be created
            os.rmdir(tempfile.mkdtemp(prefix=".drfl-", dir=place))
        except OSError as error:
            raise InputError(
                f"cannot write into {place} ({error.strerror}): give another --out",
                code="cannot-write",
                field=str(place),
            ) from None
        held(path, kind, overwrite=overwrite)
    except OSError as error:  # such as a name that is too long
        raise InputError(
            f"cannot write into {path} ({error.strerror}): give another --out", code="cannot-write", field=str(path)
        ) from None


def held(path: Path, kind: Kind, *, resume: bool = False, overwrite: bool = False) -> Manifest | None:
    """The manifest of a folder of this kind; None where there is nothing yet.

    Args:
        path: the folder.
        kind: what it should be.
        resume: whether it may be there, as what is there is gone on with.
        overwrite: whether it may be there, as what is there is replaced.

    Raises:
        InputError: it may not be there, it is of another kind or not drfl's, or a link or a file of somebody else lies
            where drfl would write.
        OSError: it cannot be read.
    """
    if not path.is_dir() or not entries(path):
        return None
    manifest = read_manifest(path)
    if manifest is None:
        raise InputError(
            f"{path} holds something else than a {kind} of drfl, which stays: give another --out",
            code="foreign-folder",
            field=str(path),
        )
    if manifest.kind != kind:
        raise InputError(
            f"{path} holds a {manifest.kind}, not a {kind}: give another --out", code="foreign-folder", field=str(path)
        )
    if not resume and not overwrite:
        if not is_finished(path):
            remedy = "--resume to continue it, or --overwrite" if kind in COMMANDS else "--overwrite"
            raise InputError(
                f"{path} holds a {kind} that has not ended: give {remedy}", code="unfinished-run", field=str(path)
            )
        raise InputError(
            f"{path} exists already: give another --out, or --overwrite to replace it",
            code="already-exists",
            field=str(path),
        )
    # A link could redirect writes and deletions outside the folder.
    check_links(path)
    for name in foreign(path, manifest):
        if name in KINDS[kind].fixed:
            raise InputError(
                f"{path / name} is in the way and not of this {kind}: move it elsewhere",
                code="foreign-file",
                field=str(path / name),
            )
    check_cells(path, manifest.cells)
    return manifest


def check_cells(path: Path, cells: Collection[str]) -> None:
    """Make sure that sub-folders which are runs of their own are that, or not there.

    Raises:
        InputError: one is a link, or holds something else.
        OSError: one cannot be read.
    """
    for name in cells:
        cell = path / name
        if os.path.lexists(cell) and not is_folder(cell):
            raise InputError(
                f"{cell} is no folder but a link or a file: take it away", code="link-in-the-way", field=str(cell)
            )
        held(cell, "run", resume=True)


@dataclass
class ClaimedFolder:
    """A folder that this process alone writes to.

    Args:
        directory: where.
        manifest: what it is, and what of it is drfl's so far.
        finished: set once the results are whole and there is nothing to resume.
        continued: whether work was under way in it before.
        key: that its files are signed with; None = they are not signed.
    """

    directory: Path
    manifest: Manifest
    finished: bool = False
    continued: bool = False
    key: bytes | None = None

    @property
    def checkpoints(self) -> Path:
        """Where work under way is kept."""
        return self.directory / CHECKPOINT

    @property
    def resumable(self) -> bool:
        """Whether there is something to go on with: a checkpoint, or a cell that was begun or has ended."""
        cells = self.manifest.cells
        begun = any((self.directory / cell).is_dir() or (self.checkpoints / f"{cell}.json").is_file() for cell in cells)
        return begun or has_checkpoints(self.directory)

    def begin(self, config: str) -> None:
        """Record that work is under way, whatever results are there: it resumes until the claim has finished.

        Args:
            config: the configuration of the work, from which it resumes.

        Raises:
            InputError: the folder cannot be written to.
        """
        try:
            with atomic_write(self.checkpoints / CONFIG) as file:
                file.write(sign(self.key, f"{CHECKPOINT}/{CONFIG}", config.encode()))
        except OSError as error:
            raise InputError(
                f"cannot write into {self.directory} ({error.strerror}): give another --out",
                code="cannot-write", field=str(self.directory),
            ) from None  # fmt: skip

    def write(self, manifest: Manifest) -> None:
        """Keep another manifest from now on.

        Raises:
            OSError: it cannot be written.
        """
        manifest.write(self.directory, self.key)
        self.manifest = manifest


@contextmanager
def claimed(
    directory: Path,
    kind: Kind = "run",
    *,
    resume: bool = False,
    overwrite: bool = False,
    anew: bool = False,
    cells: tuple[str, ...] = (),
    config: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
    key: bytes | None = None,
) -> Iterator[ClaimedFolder]:
    """Hold a folder, which is made if need be; a second process is refused for as long.

    Afterwards what it kept to go on with is gone if it has finished or diverged. Otherwise that stays, and so does the
    record of work under way, unless the work was refused before its first checkpoint. A folder in which nothing would
    be left is removed.

    Args:
        directory: the folder; a link to one stands for it.
        kind: what it is to hold.
        resume: whether what lies there is gone on with.
        overwrite: whether what lies there is replaced: checkpoints and cells now, results once there are others.
        anew: take a folder that was not there, with a number added to the name if need be.
        cells: sub-folders that are to be runs of their own.
        config: the configuration of work that can resume, see :meth:`Claim.begin`. Work to resume keeps its own until
            it was checked.
        tell: gets a line where files that are not drfl's stay in a folder that is overwritten.
        key: to sign the files with that resuming reads.

    Raises:
        InputError: another process holds it, it holds something else, or it cannot be written to.
    """
    made: list[Path] = []
    lock = None
    try:
        directory, made = _make(directory, anew)
        lock, new = _locked(directory, kind, resume, overwrite, key)
        claim = _taken(directory, kind, cells, config, resume, overwrite, new, tell, key)
    except (InputError, OSError) as error:  # a failed attempt leaves nothing behind
        if lock is not None:
            lock.release()
        remove_empty(made)
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"cannot write into {directory} ({error.strerror}): give another --out",
            code="cannot-write",
            field=str(directory),
        ) from None
    refused = False
    try:
        yield claim
    except DivergedError:  # a repetition would diverge again
        claim.finished = True
        raise
    except InputError:
        refused = True
        raise
    finally:
        with suppress(OSError):
            # Clean up under the lock, before another process can take the folder.
            begun = is_file(claim.checkpoints / CONFIG)
            if claim.finished or not (claim.resumable or (begun and (claim.continued or not refused))):
                clear_checkpoint(claim.directory, claim.manifest.kind)
                if entries(claim.directory) == {NAME, CHECKPOINT} and entries(claim.checkpoints) == {LOCK}:
                    (claim.directory / NAME).unlink()
                if is_file(claim.checkpoints / LOCK):
                    (claim.checkpoints / LOCK).unlink()
                remove_empty([claim.checkpoints])
        lock.release()
        remove_empty(made)


def tidy(directory: Path, kind: Kind = "run") -> None:
    """Remove what a process left in a folder that was killed after the results were whole.

    Raises:
        InputError: another process holds it, it holds something else, or it cannot be written to.
    """
    if os.path.lexists(directory / CHECKPOINT):
        with claimed(directory, kind, resume=True) as claim:
            claim.finished = True


def _make(directory: Path, anew: bool) -> tuple[Path, list[Path]]:
    """A folder, and what had to be made for it; where it must be a new one, the next free name is taken."""
    while True:
        place = default_directory(directory.parent, directory.name) if anew else directory
        # List them before they are made: a failed attempt removes these and no others.
        made = missing_folders(place)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            # mkdir is atomic: only one of two processes gets a new folder.
            place.mkdir(exist_ok=not anew)
            return place, made
        except FileExistsError:  # another process was faster
            if not anew:
                raise
        except OSError:
            remove_empty(made)
            raise


def _locked(directory: Path, kind: Kind, resume: bool, overwrite: bool, key: bytes | None) -> tuple[FileLock, bool]:
    """The lock of a folder that may be taken, and whether nothing was there.

    The manifest comes first: a process killed at any time leaves a folder that is known again.
    """
    new = held(directory, kind, resume=resume, overwrite=overwrite) is None
    if new:
        # Remove partial manifests that a killed process left.
        for name in {path.name for path in directory.iterdir()} - entries(directory):
            (directory / name).unlink(missing_ok=True)
        Manifest.new(kind).write(directory, key)
    (directory / CHECKPOINT).mkdir(exist_ok=True)
    # The operating system releases the lock with the process, however that ends.
    lock = FileLock(directory / CHECKPOINT / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(
            f"another process is running in {directory}: wait for it, or give another --out",
            code="folder-in-use",
            field=str(directory),
        ) from None
    return lock, new


def _taken(
    directory: Path,
    kind: Kind,
    cells: tuple[str, ...],
    config: str | None,
    resume: bool,
    overwrite: bool,
    new: bool,
    tell: Callable[[str], None],
    key: bytes | None,
) -> ClaimedFolder:
    """The folder that this process has locked, with the manifest that it finds or makes."""
    # Read again under the lock: another process may have written since.
    manifest = held(directory, kind, resume=True) or Manifest.new(kind)
    if manifest.files and not (new or resume or overwrite):
        raise InputError(
            f"{directory} exists already: give another --out, or --overwrite to replace it",
            code="already-exists",
            field=str(directory),
        )
    check_cells(directory, cells)
    claim = ClaimedFolder(directory, manifest, continued=resume and is_file(directory / CHECKPOINT / CONFIG), key=key)
    # Remove cells now, but keep results until new ones replace them.
    if overwrite and manifest.cells:
        clear(directory, manifest, key)
        claim.write(Manifest.new(kind, cells=cells))
    elif overwrite:
        # A process killed at any time leaves the work before with its own configuration, or the new work with the new
        # one, and never the results before as if they were those of the new work.
        if config is not None and not is_file(claim.checkpoints / CONFIG):
            claim.begin(config)
        clear_checkpoint(directory, kind, begun=config is not None)
    if config is not None and not claim.continued:
        claim.begin(config)
    if cells and claim.manifest.cells != cells:
        claim.write(Manifest.new(kind, claim.manifest.files, cells))
    own = (f"{CHECKPOINT}/{name}" for name in sorted(entries(claim.checkpoints) - {LOCK, CONFIG}))
    left = [*foreign(directory, claim.manifest), *own] if overwrite else []
    if left:
        text = f"{directory}: left as they were, as they are not of the {kind}: {', '.join(left)}"
        tell(Notice(text, "foreign-file", str(directory)))
    return claim


@contextmanager
def filled(claim: ClaimedFolder) -> Iterator[Path]:
    """A temporary folder whose files take their places in the folder, summary.json last, when the block succeeds.

    Results that an earlier run or an earlier end of this run left there, and that are not written again, go.

    Raises:
        InputError: the place cannot be written to, or a file of somebody else is in the way.
    """
    # Inside the folder, so that moving a file copies nothing.
    stage = claim.checkpoints / STAGE
    try:
        _empty(stage, claim)
        stage.mkdir()
        yield stage
        # The summary marks the results as complete, so it moves last.
        names = sorted((path.name for path in stage.iterdir()), key=lambda name: (name == SUMMARY, name))
        before = claim.manifest
        for name in names:
            path = claim.directory / name
            if os.path.lexists(path) and name not in claim.manifest.files:
                raise InputError(
                    f"{path} is in the way and not of this {claim.manifest.kind}: move it elsewhere",
                    code="foreign-file",
                    field=str(path),
                )
        for name in {CONFIG, OUTCOMES, SUMMARY}.intersection(names):  # resuming reads these
            (stage / name).write_bytes(sign(claim.key, name, (stage / name).read_bytes()))
        # listed first, so that a process killed in between leaves no file that is not known
        claim.write(Manifest.new(before.kind, tuple({*before.files, *names}), before.cells))
        for name in names:
            # Atomic, as both paths are on the same file system.
            os.replace(stage / name, claim.directory / name)
        for name in set(before.files).difference(names):
            if is_file(claim.directory / name):
                (claim.directory / name).unlink()
        claim.write(Manifest.new(before.kind, tuple(names), before.cells))
    except OSError as error:
        raise InputError(
            f"cannot write {claim.directory}: {error.strerror}", code="cannot-write", field=str(claim.directory)
        ) from None
    finally:
        _empty(stage, claim)


def _empty(stage: Path, claim: ClaimedFolder) -> None:
    remove_known(stage, KINDS[claim.manifest.kind].files)
