"""The folder of a run: check it, lock it, and write results into it atomically."""

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
from drfl.core.output_files import writing_into
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
    foreign_names,
    is_finished,
    read_manifest,
)
from drfl.training.checkpoint import sign, store


def default_directory(root: Path, name: str) -> Path:
    """Return ``root/name``, or ``root/name-2`` and so on if that exists."""
    path, k = root / name, 1
    while os.path.lexists(path):
        k += 1
        path = root / f"{name}-{k}"
    return path


def check_free(path: Path, kind: Kind, *, overwrite: bool = False) -> None:
    """Check that a folder of results can be written at ``path``, and leave nothing behind.

    With ``overwrite``, a folder of this kind may exist.

    Raises:
        InputError: If something exists already, or may be overwritten but is of another kind or not drfl's, or the
            folder cannot be written to.
    """
    with writing_into(path):  # a name may be too long, for example
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file: pass another `out`", code="not-a-folder", field=str(path))
        if path.resolve() in (Path.cwd(), *Path.cwd().parents):
            raise InputError(
                f"{path} is the current folder or contains it: pass another `out`",
                code="unsafe-folder",
                field=str(path),
            )
        place = path
        while not place.exists():
            place = place.parent
        with writing_into(place):
            # A permission check is not enough, because root passes it even if nothing can be created.
            os.rmdir(tempfile.mkdtemp(prefix=".drfl-", dir=place))
        check_manifest(path, kind, may_exist=overwrite)


def check_manifest(path: Path, kind: Kind, *, may_exist: bool) -> Manifest | None:
    """Return the manifest of a folder of this kind; None if there is nothing yet.

    Raises:
        InputError: If it may not exist, is of another kind or not drfl's, or has a link or another file in the place of
            one of drfl's.
        OSError: If it cannot be read.
    """
    if not path.is_dir() or not entries(path):
        return None
    manifest = read_manifest(path)
    if manifest is None:
        raise InputError(
            f"{path} is not empty and not a {kind} of drfl: pass another `out`",
            code="foreign-folder",
            field=str(path),
        )
    if manifest.kind != kind:
        raise InputError(
            f"{path} holds a {manifest.kind}, not a {kind}: pass another `out`", code="foreign-folder", field=str(path)
        )
    if not may_exist:
        if not is_finished(path):
            remedy = "`resume` to continue it, or `overwrite`" if kind in COMMANDS else "`overwrite`"
            raise InputError(
                f"{path} holds an unfinished {kind}: give {remedy}", code="unfinished-run", field=str(path)
            )
        raise InputError(
            f"{path} exists already: pass another `out`, or `overwrite` to replace it",
            code="already-exists",
            field=str(path),
        )
    # A link could redirect writes and deletions outside the folder.
    check_links(path)
    for name in foreign_names(path, manifest):
        if name in KINDS[kind].fixed:
            raise InputError(
                f"{path / name} is not a file of this {kind}, but has the name of one: move it elsewhere",
                code="foreign-file",
                field=str(path / name),
            )
    check_cells(path, manifest.cells)
    return manifest


def check_cells(path: Path, cells: Collection[str]) -> None:
    """Check that sub-folders are runs, or do not exist.

    Raises:
        InputError: If one is a link, or holds something else.
        OSError: If one cannot be read.
    """
    for name in cells:
        cell = path / name
        if os.path.lexists(cell) and not is_folder(cell):
            raise InputError(
                f"{cell} is a link or a file, not a folder: remove it", code="link-in-the-way", field=str(cell)
            )
        check_manifest(cell, "run", may_exist=True)


@dataclass
class ClaimedFolder:
    """A folder that only this process writes to.

    Args:
        directory: The folder.
        manifest: Its manifest.
        finished: Set when the results are complete and there is nothing to resume.
        continued: Whether it held unfinished work before.
        key: Signs its files; None = they are not signed.
    """

    directory: Path
    manifest: Manifest
    finished: bool = False
    continued: bool = False
    key: bytes | None = None

    @property
    def checkpoints(self) -> Path:
        """The sub-folder of unfinished work."""
        return self.directory / CHECKPOINT

    @property
    def is_resumable(self) -> bool:
        """Whether there is something to resume: a checkpoint, or a run that has started or ended."""
        cells = self.manifest.cells
        begun = any((self.directory / cell).is_dir() or (self.checkpoints / f"{cell}.json").is_file() for cell in cells)
        files = (path for depth in ("", "*/") for path in self.checkpoints.glob(f"{depth}round-*/*"))
        # A damaged checkpoint counts, but not other files in its place.
        return begun or any(store.FILES.fullmatch(path.name) for path in files)

    def begin(self, config: str) -> None:
        """Mark the folder's work as unfinished until the claim has finished, even if it holds results.

        The work resumes from ``config``.
        """
        with writing_into(self.directory), atomic_write(self.checkpoints / CONFIG) as file:
            file.write(sign(self.key, f"{CHECKPOINT}/{CONFIG}", config.encode()))

    def write(self, manifest: Manifest) -> None:
        """Replace the manifest.

        Raises:
            OSError: If it cannot be written.
        """
        manifest.write(self.directory, self.key)
        self.manifest = manifest


@contextmanager
def claim_folder(
    directory: Path,
    kind: Kind = "run",
    *,
    resume: bool = False,
    overwrite: bool = False,
    numbered: bool = False,
    cells: tuple[str, ...] = (),
    config: str | None = None,
    warn: Callable[[str], None] = lambda line: None,
    key: bytes | None = None,
) -> Iterator[ClaimedFolder]:
    """Lock a folder, which is made if it does not exist. A second process gets an error.

    When the block ends, files for resuming are removed if the work has finished or diverged. Otherwise they stay,
    together with the mark of unfinished work, unless the work was refused before its first checkpoint. A folder that
    would be empty is removed.

    Args:
        directory: The folder, or a link to one.
        kind: The kind of results.
        resume: Whether to continue the work in it.
        overwrite: Whether to replace it: checkpoints and runs now, results when there are new ones.
        numbered: Make a new folder, with a number added to its name if it exists.
        cells: The sub-folders that will be runs.
        config: The configuration of work that can resume, see :meth:`ClaimedFolder.begin`. Work to resume keeps its own
            until it has been checked.
        warn: Called with a line if files that are not drfl's stay in a folder that is overwritten.
        key: Signs the files that resuming reads.

    Raises:
        InputError: If another process has locked it, it holds something else, or it cannot be written to.
    """
    made: list[Path] = []
    lock = None
    try:
        directory, made = _make_folder(directory, numbered)
        lock = _lock_folder(directory, kind, resume or overwrite, key)
        claim = _prepare_folder(directory, kind, cells, config, resume, overwrite, warn, key)
    except (InputError, OSError) as error:  # leave nothing behind
        if lock is not None:
            lock.release()
        remove_empty(made)
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"cannot write into {directory} ({error.strerror}): pass another `out`",
            code="cannot-write",
            field=str(directory),
        ) from None
    refused = False
    try:
        yield claim
    except DivergedError:  # it would diverge again
        claim.finished = True
        raise
    except InputError:
        refused = True
        raise
    finally:
        with suppress(OSError):
            # Clean up under the lock, before another process can lock the folder.
            begun = is_file(claim.checkpoints / CONFIG)
            if claim.finished or not (claim.is_resumable or (begun and (claim.continued or not refused))):
                clear_checkpoint(claim.directory, claim.manifest.kind)
                if entries(claim.directory) == {NAME, CHECKPOINT} and entries(claim.checkpoints) == {LOCK}:
                    (claim.directory / NAME).unlink()
                if is_file(claim.checkpoints / LOCK):
                    (claim.checkpoints / LOCK).unlink()
                remove_empty([claim.checkpoints])
        lock.release()
        remove_empty(made)


def tidy(directory: Path, kind: Kind = "run") -> None:
    """Remove the remains of a process in a folder if it was killed after the results were complete.

    Raises:
        InputError: If another process has locked it, it holds something else, or it cannot be written to.
    """
    if os.path.lexists(directory / CHECKPOINT):
        with claim_folder(directory, kind, resume=True) as claim:
            claim.finished = True


def _make_folder(directory: Path, numbered: bool) -> tuple[Path, list[Path]]:
    """Make a folder, with the next free name if it must be new; return it and all folders that were made."""
    while True:
        place = default_directory(directory.parent, directory.name) if numbered else directory
        # Listed before they are made, so that a failed attempt removes these and no others.
        made = missing_folders(place)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            # mkdir is atomic, so only one of two processes gets a new folder.
            place.mkdir(exist_ok=not numbered)
            return place, made
        except FileExistsError:  # another process made it first
            if not numbered:
                raise
        except OSError:
            remove_empty(made)
            raise


def _lock_folder(directory: Path, kind: Kind, may_exist: bool, key: bytes | None) -> FileLock:
    """Lock a folder.

    The manifest is written first, so that a folder can be identified even if the process is killed.
    """
    if check_manifest(directory, kind, may_exist=may_exist) is None:
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
            f"another process uses {directory}: wait for it, or pass another `out`",
            code="folder-in-use",
            field=str(directory),
        ) from None
    return lock


def _prepare_folder(
    directory: Path,
    kind: Kind,
    cells: tuple[str, ...],
    config: str | None,
    resume: bool,
    overwrite: bool,
    warn: Callable[[str], None],
    key: bytes | None,
) -> ClaimedFolder:
    """Check the folder under its lock, and prepare it for the work."""
    # Read again under the lock, because another process may have written meanwhile.
    manifest = check_manifest(directory, kind, may_exist=True) or Manifest.new(kind)
    if manifest.files and not (resume or overwrite):
        raise InputError(
            f"{directory} exists already: pass another `out`, or `overwrite` to replace it",
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
        # A process that is killed leaves either the old work with its configuration or the new work with the new one,
        # and never old results that look like those of the new work.
        if config is not None and not is_file(claim.checkpoints / CONFIG):
            claim.begin(config)
        clear_checkpoint(directory, kind, begun=config is not None)
    if config is not None and not claim.continued:
        claim.begin(config)
    if cells and claim.manifest.cells != cells:
        claim.write(Manifest.new(kind, claim.manifest.files, cells))
    unfinished = (f"{CHECKPOINT}/{name}" for name in sorted(entries(claim.checkpoints) - {LOCK, CONFIG}))
    kept = [*foreign_names(directory, claim.manifest), *unfinished] if overwrite else []
    if kept:
        text = f"{directory}: files that are not of the {kind} were kept: {', '.join(kept)}"
        warn(Notice(text, "foreign-file", str(directory)))
    return claim


@contextmanager
def fill_folder(claim: ClaimedFolder) -> Iterator[Path]:
    """Yield a temporary folder whose files are moved into the folder, summary.json last, if the block succeeds.

    Results of earlier work that are not written again are removed.

    Raises:
        InputError: If the folder cannot be written to, or a file that is not drfl's has the name of a result.
    """
    # Create it inside the folder, so that files are moved and not copied.
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
                    f"{path} is not a file of this {claim.manifest.kind}, but has the name of one: move it elsewhere",
                    code="foreign-file",
                    field=str(path),
                )
        for name in {CONFIG, OUTCOMES, SUMMARY}.intersection(names):  # files that resuming reads
            (stage / name).write_bytes(sign(claim.key, name, (stage / name).read_bytes()))
        # List them first, so that a process that is killed leaves no unknown file.
        claim.write(Manifest.new(before.kind, tuple({*before.files, *names}), before.cells))
        for name in names:
            # This is atomic, because both paths are on the same file system.
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
