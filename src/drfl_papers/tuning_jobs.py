"""The papers' jobs for `drfl tune`, which loads this module through the entry point group ``drfl.tuning_jobs``."""

from __future__ import annotations

from collections.abc import Mapping

from drfl.core.errors import InputError
from drfl.experiments.config.config import load_config
from drfl.experiments.tuning.job import VALIDATION_SETTINGS, TunedMethod, TuningJob, make_job
from drfl_papers.plan import base
from drfl_papers.specification import PAPERS, load_job, load_spec, names


def job(name: str, changes: Mapping[str, object], *, stand_in: bool = False) -> TuningJob:
    """Make one of the papers' jobs.

    Raises:
        InputError: If there is no stand-in, or a value is invalid.
    """
    file = load_job(name)
    if stand_in and file.stand_in is None:
        raise InputError(
            f"the job '{name}' has no stand-in. Remove `stand_in`.", code="unused-option", field="stand_in"
        )
    values = file.chosen(stand_in)
    config = load_config(None, {**values, **changes, **VALIDATION_SETTINGS})
    other = "or tune on the stand-in with --stand-in" if file.stand_in and not stand_in else ""
    return make_job(name, values, changes, config, methods=methods_of(name), stand_in=stand_in, without_data=other)


def job_names() -> list[str]:
    """List the names of the papers' jobs."""
    return sorted(path.stem for path in (PAPERS / "jobs").glob("*.toml"))


def methods_of(job: str) -> dict[str, TunedMethod]:
    """Return the methods of the papers' tables and figures that run on a job with hyperparameters tuned for it.

    Raises:
        InputError: If two different methods have the same name.
    """
    methods: dict[str, TunedMethod] = {}
    for spec in map(load_spec, names()):
        if all(base(spec, setting) != job for setting in spec.settings):
            continue
        for row in spec.methods:
            if row.tuned is not True:
                continue  # it is not tuned, or uses another row's values
            more = {} if row.rounds is None else {"rounds": row.rounds}
            method = TunedMethod(row.algorithm, row.parameters, {**row.job, **more}, held=True)
            if methods.setdefault(row.name, method) != method:
                raise InputError(
                    f"{spec.name}: {row.name} differs from the method of the same name in earlier specifications",
                    code="duplicate-name",
                    field=row.name,
                )
    return methods
