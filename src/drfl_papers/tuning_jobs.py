"""The papers' jobs for `drfl tune`, which finds this module by its entry point in the group ``drfl.tuning_jobs``."""

from __future__ import annotations

from collections.abc import Mapping

from drfl.core.errors import InputError
from drfl.experiments.config.config import load_config
from drfl.experiments.tuning.job import JUDGED, TunedMethod, TuningJob, of_values
from drfl_papers.plan import base
from drfl_papers.specification import PAPERS, load_job, load_spec, names


def job(name: str, changes: Mapping[str, object], *, stand_in: bool = False) -> TuningJob:
    """A job of the papers.

    Args:
        name: one of :func:`job_names`.
        changes: keys of a `Config` that take the place of the job's.
        stand_in: use the data that stand in for those of the paper.

    Raises:
        InputError: no stand-in, or an impossible value.
    """
    found = load_job(name)
    if stand_in and found.stand_in is None:
        raise InputError(
            f"the job '{name}' has no stand-in: leave --stand-in out", code="unused-option", field="stand_in"
        )
    values = found.chosen(stand_in)
    config = load_config(None, {**values, **changes, **JUDGED})
    other = "or tune on what stands in for it, by --stand-in" if found.stand_in and not stand_in else ""
    return of_values(name, values, changes, config, methods=methods_of(name), stand_in=stand_in, without_data=other)


def job_names() -> list[str]:
    """The papers' jobs."""
    return sorted(path.stem for path in (PAPERS / "jobs").glob("*.toml"))


def methods_of(job: str) -> dict[str, TunedMethod]:
    """The methods that the papers' tables and figures run on a job with hyperparameters tuned for it.

    Args:
        job: its name.

    Raises:
        InputError: two of them have one name and differ.
    """
    found: dict[str, TunedMethod] = {}
    for spec in map(load_spec, names()):
        if all(base(spec, setting) != job for setting in spec.settings):
            continue
        for row in spec.methods:
            if row.tuned is not True:
                continue  # it is not tuned, or goes by another row's values
            more = {} if row.rounds is None else {"rounds": row.rounds}
            method = TunedMethod(row.algorithm, row.parameters, {**row.job, **more}, held=True)
            if found.setdefault(row.name, method) != method:
                raise InputError(
                    f"{spec.name}: {row.name} is another method than in the specifications before it",
                    code="duplicate-name",
                    field=row.name,
                )
    return found
