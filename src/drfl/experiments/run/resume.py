"""Resume a run, only with the same settings on the same data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from drfl.core.errors import InputError, Notice, listing
from drfl.core.json_toml import read_toml
from drfl.core.short_repr import BRIEF
from drfl.core.user_code import block_folder
from drfl.experiments.config.about_run import run_toml
from drfl.experiments.config.config import Config
from drfl.experiments.config.data_settings import DataSettings
from drfl.experiments.config.ready_run import Running
from drfl.experiments.config.run_settings import RunSettings
from drfl.experiments.run.artifacts import FREE, decisive_settings, versions
from drfl.experiments.run.manifest import CHECKPOINT, CONFIG, Kind, check_signatures
from drfl.experiments.run.run_directory import ClaimedFolder, check_free, check_manifest
from drfl.training.checkpoint import Checkpoints, DamagedError, ResumePoint, read_key, resume_point
from drfl.training.checkpoint.record import first_fault
from drfl.training.run_state import CheckpointWriter

ROUNDING = ("threads",)
"""Keys that affect the last digits at most, because convolutions and large products may be summed in another order."""

FILES = "files."
"""The prefix of the user's Python files among the settings."""

Word = Annotated[str, Field(max_length=200, pattern="^[ -~]*$")]
"""A text that a terminal can show: a version or the name of a package."""


class RunIdentity(BaseModel):
    """The identity of a run in its checkpoint, see :func:`identity`."""

    model_config = ConfigDict(strict=True, frozen=True)

    config: dict[str, Any]
    data: str
    sites: dict[str, str]
    model: str
    task: dict[str, str]
    versions: dict[Word, Word]


def identity(job: Running) -> dict[str, object]:
    """Return the configuration, digests of data and initial model, the task in words, and versions, as plain values."""
    return {
        "config": decisive_settings(job), **job.digests, "sites": job.site_digests, "task": job.fed.describe_task(),
        "versions": versions(),
    }  # fmt: skip


def check_same(job: Running, kept: Mapping[str, object]) -> list[Notice]:
    """Check that a run may resume from a checkpoint.

    Returns:
        Differences that matter only for rounding, each in a sentence: other versions, or another number of threads.

    Raises:
        DamagedError: If ``kept`` is not the identity of a run.
        InputError: If they differ; names the first difference.
    """
    try:
        stored = RunIdentity.model_validate(dict(kept))
    except ValidationError as error:
        raise DamagedError(f"run.json, identity.{first_fault(error)}") from None
    # Compare settings first, because their message is more specific than that of a digest.
    check_settings(job, stored.config)
    current = RunIdentity.model_validate(identity(job))
    changed = [f"'{name}'" for name, digest in current.sites.items() if stored.sites.get(name, digest) != digest]
    if changed:
        raise InputError(
            f"the data have changed since the run to resume started, at {listing(changed, 'site')}: restore them, or "
            f"{job.settings.new_folder}",
            code="other-run",
            field="data",
        )
    for part in ("data", "model"):
        if getattr(current, part) != getattr(stored, part):
            raise InputError(
                f"the run to resume has {('other data' if part == 'data' else 'another initial model')} "
                f"of the same name: use the original, or {job.settings.new_folder}",
                code="other-run",
                field=part,
            )
    for part in {**current.task, **stored.task}:
        then, this = (task.get(part, "not set") for task in (stored.task, current.task))
        if then != this:
            raise InputError(
                f"the run to resume has {part} = {BRIEF.repr(then)}, not {BRIEF.repr(this)}: use that, or "
                f"{job.settings.new_folder}",
                code="other-run",
                field=part,
            )
    before, now, own_settings = stored.versions, current.versions, decisive_settings(job)
    pairs = {name: (before.get(name), now.get(name)) for name in sorted({*before, *now})}
    unset = "not set"
    # Settings and versions that change only the last digits give warnings, not errors.
    pairs |= {
        name: (BRIEF.repr(stored.config.get(name, unset)), repr(own_settings.get(name, unset))) for name in ROUNDING
    }
    return [
        Notice(f"the checkpoint was written with {name} {then}, not {this}: digits may differ", "other-version", name)
        for name, (then, this) in pairs.items()
        if then != this
    ]


def check_settings(job: Running, kept: Mapping[str, object]) -> None:
    """Check that a run has the :func:`decisive_settings` that were stored, apart from :data:`ROUNDING`."""
    _check_equal(decisive_settings(job), {k: v for k, v in kept.items() if k not in FREE}, job.settings.new_folder)


def check_data_settings(config: Config, directory: Path | None) -> None:
    """Check, before data are loaded, that work to resume has the same settings of data and clients.

    Otherwise an error could name a setting that follows from them, such as the stored cohort for another number of
    clients.
    """
    path = None if directory is None else _config_in(directory)
    if path is not None:
        kept = read_toml(path, follow=False, remedy="start again with `overwrite`")
        names = kept.keys() & DataSettings.model_fields.keys() - {*FREE}
        own = {name: value for name, value in config.description.items() if name in names}
        _check_equal(own, {name: kept[name] for name in own}, config.new_folder)


def _check_equal(current: Mapping[str, object], kept: Mapping[str, object], new_folder: str) -> None:
    from drfl.report.groups import flatten  # imported here because it imports pandas

    # Flatten, so that a message names the one key that differs.
    own, stored = flatten(current), flatten(kept)
    # evaluate_every often follows from rounds, which is then the option to name.
    for name in sorted({*own, *stored} - {*ROUNDING}, key=lambda name: (name == "evaluate_every", name)):
        if own.get(name) != stored.get(name) and name.startswith(FILES):
            raise InputError(
                f"{name.removeprefix(FILES)} has changed since the run to resume started: restore it, or "
                f"{new_folder} to start again",
                code="other-run",
                field=name.removeprefix(FILES),
            )
        if own.get(name) != stored.get(name):
            raise InputError(
                f"the run to resume has {name} = {_value_text(stored, name)}, not "
                f"{_value_text(own, name)}: pass the same options, or {new_folder}",
                code="other-run",
                field=name,
            )


def _value_text(values: Mapping[str, object], name: str) -> str:
    return BRIEF.repr(values[name]) if name in values else "no value"


def check_folder(
    directory: Path | None,
    kind: Kind,
    *,
    resume: bool,
    overwrite: bool,
    given: bool = True,
    trust: bool = False,
    key: object = None,
) -> Path | None:
    """Check the folder of new or resumed work, before anything in it is used.

    Args:
        directory: The folder; None if the user names none.
        kind: The kind of results.
        resume: Whether to continue the work in it. Otherwise there must be none, unless the user overwrites it.
        overwrite: Whether the user asked to overwrite the folder.
        given: Whether the user gave a configuration to start with if there is nothing to resume.
        trust: Whether modules in the folder may be imported.
        key: The path of the key that signed the work to resume, from an option or from the user's own file; None if
            there is none.

    Returns:
        The configuration file of the work to resume; None if there is none yet.

    Raises:
        InputError: If there is nothing to resume, a signature is wrong, or the folder cannot be used.
    """
    if not resume:
        if directory is not None:
            check_free(directory, kind, overwrite=overwrite)
        return None
    if directory is None:
        raise InputError(
            f"`resume` requires `out`, the folder of the {kind} to resume", code="needs-option", field="resume"
        )
    if overwrite:
        raise InputError(
            "`resume` continues the results in the folder, and `overwrite` replaces them: remove one of them",
            code="conflicting-options",
            field="resume",
        )
    # The folder may come from another person: a module in it must not be imported in place of another one.
    if not trust:
        block_folder(directory)
    # Check all signatures before any file of the folder is parsed.
    check_folder_signatures(directory, key)
    try:
        # Checks that the folder is of this kind and contains no links.
        manifest = check_manifest(directory, kind, may_exist=True)
    except OSError as error:
        raise InputError(
            f"cannot read {directory} ({error.strerror}): pass another `out`",
            code="file-unreadable",
            field=str(directory),
        ) from None
    path = None if manifest is None else _config_in(directory)
    if path is None and not given:
        raise InputError(
            f"there is no {kind} to resume in {directory}: pass its options to start one there",
            code="nothing-to-resume", field=str(directory),
        )  # fmt: skip
    return path


def _config_in(directory: Path) -> Path | None:
    """Return the configuration of the unfinished work in a folder, or of its results; None if it has neither."""
    # Unfinished work comes first, because results beside it may be older.
    return next((path for path in (directory / CHECKPOINT / CONFIG, directory / CONFIG) if path.is_file()), None)


def check_stored_config(directory: Path, job: Running) -> None:
    """Check that the run to resume has the configuration in its folder, if there is one."""
    path = _config_in(directory)
    if path is None:
        return
    check_settings(job, read_toml(path, follow=False, remedy="start again with `overwrite`"))


def key_of(settings: RunSettings, directory: Path) -> bytes | None:
    """Return the key that signs a run's checkpoints; None if they are not signed.

    Raises:
        InputError: If it cannot be read, is not a key, or is in the folder that it protects.
    """
    path = settings.checkpoint_key
    if path is None:
        return None
    key = read_key(path)
    # Anyone who can write to the folder could replace the key together with the signed files.
    if path.resolve().is_relative_to(directory.resolve()):
        raise InputError(
            f"`checkpoint_key` '{path}' is in {directory}, the folder that it protects: move it elsewhere",
            code="invalid-value",
            field="checkpoint_key",
        )
    return key


def check_folder_signatures(directory: Path, path: object) -> None:
    """Check that all files that resuming reads in a folder are signed, if the user gives the key.

    A key that only the folder's own configuration names proves nothing: an attacker who can write to the folder can
    name another key there.

    ``path`` is that of the key, from an option or from the user's own file.
    """
    if path is not None:
        check_signatures(directory, read_key(Path(str(path))))


def load_resume_point(
    folder: Path, job: Running, warn: Callable[[Notice], None], key: bytes | None = None
) -> ResumePoint | None:
    """Return the point from which a run resumes; None if it starts from the beginning, because no checkpoint can be
    used.

    Raises:
        InputError: If the checkpoint is of another run, none has the key's signature, or the ``replies.csv`` of a
            deployment is not the one that they cover.
    """
    try:
        point = resume_point(
            folder,
            job.algorithm,
            job.fed,
            rounds=job.settings.rounds,
            fresh=job.first,
            same=partial(check_same, job),
            key=key,
        )
    except DamagedError as error:
        if key is not None:  # the key may be wrong, and new checkpoints must not replace good ones
            raise InputError(
                f"{error}: cannot resume with this key; pass the right one, or start again with " "`overwrite`",
                code="damaged-checkpoint", field="checkpoint_key",
            ) from None  # fmt: skip
        warn(Notice(f"{error}; the run starts from the beginning", "damaged-checkpoint", str(folder)))
        return None
    if point is None:
        return None
    resumed = Notice(f"resuming after round {point.progress.round} of {job.settings.rounds}", "resumed")
    for notice in (*point.notices, resumed):
        warn(notice)
    return point


def checkpoint_writer(
    claim: ClaimedFolder, job: Running, key: bytes | None = None, replies: Callable[[], tuple[int, str]] | None = None
) -> CheckpointWriter | None:
    """Mark the run in a folder as begun, and return the writer of its checkpoints; None if there are to be none."""
    # Do this even without checkpoints, so that the folder of a killed run is recognised as unfinished.
    claim.begin(run_toml(job.about))
    every = job.settings.checkpoint_every
    same = partial(identity, job)
    return None if every == 0 else Checkpoints(claim.checkpoints, same, every, key, replies=replies)
