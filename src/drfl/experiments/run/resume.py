"""Going on with a run: only with the same job on the same data."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from drfl.core.errors import InputError, Notice
from drfl.core.files import read_toml
from drfl.core.hashing import digest_of
from drfl.experiments.config.about_run import run_toml
from drfl.experiments.config.ready_run import Running
from drfl.experiments.config.run_settings import RunSettings
from drfl.experiments.run.artifacts import FREE, decisive_settings, versions
from drfl.experiments.run.manifest import CHECKPOINT, CONFIG, Kind, check_signatures
from drfl.experiments.run.run_directory import ClaimedFolder, held
from drfl.training.checkpoint import Checkpoints, DamagedError, ResumePoint, read_key, resume_point
from drfl.training.checkpoint.record import first_fault
from drfl.training.run_state import CheckpointWriter

ROUNDING = ("threads",)
"""Keys that have a say in the last digits at most: convolutions and large products may be summed in another order."""

FILES = "files."
"""What the names of the user's Python files begin with among the settings."""

SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = 200
"""Writes values of a file in messages, of which a line should remain."""


Word = Annotated[str, Field(max_length=200, pattern="^[ -~]*$")]
"""What can be shown on a terminal: a version or its package's name."""


class RunIdentity(BaseModel):
    """What a checkpoint says of its run, see :func:`identity`."""

    model_config = ConfigDict(strict=True, frozen=True)

    config: dict[str, Any]
    data: str
    model: str
    versions: dict[Word, Word]


def identity(job: Running) -> dict[str, object]:
    """The configuration, what the data and the initial model are (as digests), and versions, as plain values."""
    data = job.data
    layout = job.task.layout
    # Include names: equal numbers under other names are other clients.
    named = "\n".join((*data.names, *layout.names, *map(str, layout.shapes)))
    return {
        "config": decisive_settings(job),
        "data": digest_of(data.tensors(), named),
        "model": digest_of([job.task.w0], named),
        "versions": versions(),
    }


def check_same(job: Running, kept: Mapping[str, object]) -> list[Notice]:
    """Make sure that a run may go on from a checkpoint.

    Args:
        job: the run.
        kept: the checkpoint's :func:`identity`.

    Returns:
        Differences that need not matter, each in a sentence: other versions, or another number of threads, may round
        otherwise.

    Raises:
        DamagedError: it is no identity of a run.
        InputError: they differ; names the first difference.
    """
    try:
        theirs = RunIdentity.model_validate(dict(kept))
    except ValidationError as error:
        raise DamagedError(f"run.json, identity.{first_fault(error)}") from None
    # Compare settings first: their message is more specific than that of a digest.
    check_settings(job, theirs.config)
    own = RunIdentity.model_validate(identity(job))
    for what in ("data", "model"):
        if getattr(own, what) != getattr(theirs, what):
            raise InputError(
                "the run to resume is one on "
                f"{('other data' if what == 'data' else 'another initial model')} of the same name: "
                "resume with what it started with, or start again in another --out",
                code="other-run",
                field=what,
            )
    before, now, ours = theirs.versions, own.versions, decisive_settings(job)
    pairs = {name: (before.get(name), now.get(name)) for name in sorted({*before, *now})}
    unset = "not set"
    # Settings and versions that change only the last digits give warnings, not errors.
    pairs |= {name: (SHORT.repr(theirs.config.get(name, unset)), repr(ours.get(name, unset))) for name in ROUNDING}
    return [
        Notice(
            f"the checkpoint was written with {name} {then}, this is {this}: digits may differ", "other-version", name
        )
        for name, (then, this) in pairs.items()
        if then != this
    ]


def check_settings(job: Running, kept: Mapping[str, object]) -> None:
    """Make sure that a run is the one that was kept, going by its :func:`decisive_settings` less :data:`ROUNDING`.

    Raises:
        InputError: they differ; names the first difference.
    """
    # Flatten, so that a message names the one key that differs.
    ours, theirs = _flat(decisive_settings(job)), _flat({k: v for k, v in kept.items() if k not in FREE})
    for name in sorted({*ours, *theirs} - {*ROUNDING}):
        if ours.get(name) != theirs.get(name) and name.startswith(FILES):
            raise InputError(
                f"{name.removeprefix(FILES)} is not what it was when the run to resume was begun: resume "
                "with what it was, or start again in another --out",
                code="other-run",
                field=name.removeprefix(FILES),
            )
        if ours.get(name) != theirs.get(name):
            raise InputError(
                f"the run to resume has {name} = {_shown(theirs, name)}, not {_shown(ours, name)}: resume "
                "with the same options, or start again in another --out",
                code="other-run",
                field=name,
            )


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in table.items():
        found.update(_flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value})
    return found


def _shown(values: Mapping[str, object], name: str) -> str:
    return SHORT.repr(values[name]) if name in values else "no value"


def kept_config(directory: Path | None, kind: Kind = "run", *, overwrite: bool, given: bool) -> Path | None:
    """The configuration file that a run or comparison to be resumed left; None where there is no such one yet.

    Args:
        directory: its folder.
        kind: which of the two.
        overwrite: whether it was asked to replace what is there.
        given: whether there is a configuration to begin with where there is nothing to resume.

    Raises:
        InputError: there is nothing to go on with.
    """
    if directory is None:
        raise InputError(
            f"--resume needs --out, the folder of the {kind} to go on with", code="needs-option", field="resume"
        )
    if overwrite:
        raise InputError(
            "--resume goes on with what is there and --overwrite replaces it: leave one of them out",
            code="conflicting-options",
            field="resume",
        )
    try:
        # Checks that the folder is of this kind and contains no links.
        manifest = held(directory, kind, resume=True)
    except OSError as error:
        raise InputError(
            f"cannot read {directory} ({error.strerror}): give another --out",
            code="file-unreadable",
            field=str(directory),
        ) from None
    path = None if manifest is None else _config_in(directory)
    if path is None and not given:
        raise InputError(
            f"there is no {kind} in {directory} to resume: give the options of one to start it there",
            code="nothing-to-resume", field=str(directory),
        )  # fmt: skip
    return path


def _config_in(directory: Path) -> Path | None:
    """The configuration of the work under way in a folder, or of its results; None if it has neither."""
    # Work under way comes first: results beside it may be older.
    return next((path for path in (directory / CHECKPOINT / CONFIG, directory / CONFIG) if path.is_file()), None)


def check_kept(directory: Path, job: Running) -> None:
    """Make sure that a run to resume is the one whose configuration its folder holds, if there is one.

    Raises:
        InputError: they differ, or the configuration cannot be read.
    """
    path = _config_in(directory)
    if path is None:
        return
    check_settings(job, read_toml(path, follow=False, remedy="start again with --overwrite"))


def key_of(settings: RunSettings, directory: Path) -> bytes | None:
    """The key that a run's checkpoints are signed with; None where they are not to be.

    Args:
        settings: of the run.
        directory: the run's folder.

    Raises:
        InputError: it cannot be read, is no key, or lies in the folder that it is to protect.
    """
    path = settings.checkpoint_key
    if path is None:
        return None
    key = read_key(path)
    # Anyone who can write to the folder could replace the key along with what it signs.
    if path.resolve().is_relative_to(directory.resolve()):
        raise InputError(
            f"checkpoint_key '{path}' lies in {directory}, which it is to protect: keep it elsewhere",
            code="invalid-value",
            field="checkpoint_key",
        )
    return key


def check_received(directory: Path | None, path: object) -> None:
    """Make sure that all that resuming reads in a folder is signed, if the user gives the key.

    A key that only the folder's own configuration names proves nothing: whoever wrote the one could name the other.

    Args:
        directory: the folder.
        path: of the key, from an option or from a file of the user's; None = there is none.

    Raises:
        InputError: see :func:`drfl.experiments.run.manifest.check_signatures`, or it is no key.
    """
    if directory is not None and path is not None:
        check_signatures(directory, read_key(Path(str(path))))


def load_resume_point(
    claim: ClaimedFolder, job: Running, warn: Callable[[Notice], None], key: bytes | None = None
) -> ResumePoint | None:
    """Find where a run was when it was stopped; None if it starts from the beginning, as no checkpoint can be used.

    Args:
        claim: its folder.
        job: the run.
        warn: gets a line if a checkpoint is damaged or was written by other versions.
        key: from :func:`key_of`.

    Raises:
        InputError: the checkpoint is of another run, none has the signature that the key asks for, or the
            ``replies.csv`` of a deployment is not the one that they cover.
    """
    try:
        point = resume_point(
            claim.checkpoints,
            job.algorithm,
            job.fed,
            rounds=job.settings.rounds,
            fresh=job.first,
            same=partial(check_same, job),
            key=key,
        )
    except DamagedError as error:
        if key is not None:  # the key may be the wrong one: new checkpoints must not push out good ones
            raise InputError(
                f"{error}: nothing can be resumed with this key; give the right one, or start "
                "again with --overwrite",
                code="damaged-checkpoint", field="checkpoint_key",
            ) from None  # fmt: skip
        warn(Notice(f"{error}; the run starts from the beginning", "damaged-checkpoint", str(claim.checkpoints)))
        return None
    if point is None:
        return None
    resumed = Notice(f"going on after round {point.progress.round} of {job.settings.rounds}", "resumed")
    for notice in (*point.told, resumed):
        warn(notice)
    return point


def checkpoint_writer(
    claim: ClaimedFolder, job: Running, key: bytes | None = None, replies: Callable[[], tuple[int, str]] | None = None
) -> CheckpointWriter | None:
    """What keeps the progress of a run in its folder, in which work begins here; None if it keeps no checkpoints.

    Args:
        claim: its folder.
        job: the run.
        key: from :func:`key_of`.
        replies: see :class:`drfl.training.checkpoint.Checkpoints`.

    Raises:
        InputError: the folder cannot be written to.
    """
    # Even without checkpoints, so that the folder of a killed run is recognised as unfinished.
    claim.begin(run_toml(job.about))
    every = job.settings.checkpoint_every
    same = partial(identity, job)
    return None if every == 0 else Checkpoints(claim.checkpoints, same, every, key, replies=replies)
