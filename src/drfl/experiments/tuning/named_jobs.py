"""Jobs for `drfl tune` by name: those of installed packages, found by their entry points, or a TOML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from drfl.core.errors import InputError
from drfl.core.plugins import plugins
from drfl.experiments.config.hyperparameters import canonical
from drfl.experiments.tuning.job import TuningJob, from_file


class NamedJobs(Protocol):
    """The functions of an object, or a module, that an entry point of the group ``drfl.tuning_jobs`` names."""

    def job_names(self) -> Sequence[str]:
        """The names of its jobs."""
        ...

    def job(self, name: str, changes: Mapping[str, object], *, stand_in: bool = False) -> TuningJob:
        """One of them, with some values changed; with ``stand_in`` on data that stand in for those of a paper."""
        ...


def resolve(text: str, changes: Mapping[str, object], *, stand_in: bool = False, trust: bool = False) -> TuningJob:
    """A job by its name, or by its file.

    Args:
        text: a name such as "mnist-linear", or the path of a TOML file as `drfl compare` takes it.
        changes: keys of a `Config` that take the place of the job's.
        stand_in: use the data that stand in for those of a paper.
        trust: see :func:`drfl.experiments.config.config.load_config`.

    Raises:
        InputError: no such job or file, no stand-in, or an impossible value.
    """
    if Path(text).suffix == ".toml":
        if stand_in:
            raise InputError(
                "--stand-in is for the papers' jobs: remove it beside a file", code="unused-option", field="stand_in"
            )
        return from_file(Path(text), changes, trust=trust)
    known = {name: jobs for _, jobs in plugins("drfl.tuning_jobs") for name in cast("NamedJobs", jobs).job_names()}
    try:
        name = canonical("job", text, known)
    except InputError as error:
        raise InputError(
            f"{error}, or give a TOML file, whose name ends in .toml", code=error.code, field=error.field
        ) from None
    return cast("NamedJobs", known[name]).job(name, changes, stand_in=stand_in)
