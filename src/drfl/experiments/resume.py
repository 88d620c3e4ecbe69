"""Going on with a run that was stopped or killed."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from drfl.algorithm import Keeper, Progress
from drfl.checkpoint import Checkpoints, DamagedError, read_key, resume_point
from drfl.data.files import atomic_write
from drfl.errors import InputError
from drfl.experiments.build import Running
from drfl.experiments.claim import Claim
from drfl.experiments.config import Config
from drfl.experiments.identity import check_same, check_settings, identity
from drfl.experiments.manifest import CHECKPOINT, CONFIG, Kind, has_checkpoints
from drfl.experiments.place import held
from drfl.experiments.rundir import config_toml


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
        raise InputError(f"--resume needs --out, the folder of the {kind} to go on with")
    if overwrite:
        raise InputError("--resume goes on with what is there and --overwrite replaces it: leave one of them out")
    try:
        manifest = held(directory, kind, resume=True)
    except OSError as error:
        raise InputError(f"cannot read {directory} ({error.strerror}): give another --out") from None
    for path in (directory / CHECKPOINT / CONFIG, directory / CONFIG) if manifest is not None else ():
        if path.is_file():
            return path
    if not given:
        raise InputError(f"there is no {kind} in {directory} to resume: give the options of one to start it there")
    return None


def is_finished(directory: Path, job: Running) -> bool:
    """Whether a run's results are there and nothing is left to go on with.

    Raises:
        InputError: they are those of another run.
    """
    if not (directory / "summary.json").is_file() or has_checkpoints(directory):
        return False
    try:
        kept = tomllib.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read {directory / CONFIG} ({error}): start anew with --overwrite") from None
    check_settings(job, kept)
    return True


def key_of(config: Config, directory: Path) -> bytes | None:
    """The key that a run's checkpoints are signed with; None where they are not to be.

    Args:
        config: of the run.
        directory: the run's folder.

    Raises:
        InputError: it cannot be read, is no key, or lies in the folder that it is to protect.
    """
    path = config.checkpoint_key
    if path is None:
        return None
    key = read_key(path)
    if path.resolve().is_relative_to(directory.resolve()):
        raise InputError(f"checkpoint_key '{path}' lies in {directory}, which it is to protect: keep it elsewhere")
    return key


def begin(claim: Claim, job: Running, warn: Callable[[str], None], key: bytes | None = None) -> Progress | None:
    """Where a run was when it was stopped; None where it had kept nothing yet.

    Args:
        claim: its folder.
        job: the run.
        warn: gets a line where a checkpoint is damaged or was written by other versions.
        key: from :func:`key_of`.

    Raises:
        InputError: the checkpoint is of another run, or none can be used.
    """
    try:
        point = resume_point(
            claim.checkpoints,
            job.algorithm,
            job.fed,
            rounds=job.config.rounds,
            same=partial(check_same, job),
            key=key,
        )
    except DamagedError as error:
        raise InputError(f"{error}: nothing can be resumed, start anew with --overwrite") from None
    if point is None:
        return None
    for line in (*point.told, f"going on after round {point.progress.round} of {job.config.rounds}"):
        warn(line)
    return point.progress


def keeper(claim: Claim, job: Running, key: bytes | None = None) -> Keeper | None:
    """Who keeps the progress of a run in its folder; None where it is not to be kept.

    Args:
        claim: its folder.
        job: the run.
        key: from :func:`key_of`.

    Raises:
        InputError: the folder cannot be written to.
    """
    every = job.config.checkpoint_every
    if every == 0:
        return None
    try:
        with atomic_write(claim.checkpoints / CONFIG) as file:
            file.write(config_toml(job.config, job.data.n).encode())
    except OSError as error:
        raise InputError(f"cannot write into {claim.directory} ({error.strerror}): give another --out") from None
    return Checkpoints(claim.checkpoints, partial(identity, job), every, key)
