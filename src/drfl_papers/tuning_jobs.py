"""The papers' jobs, as jobs whose hyperparameters are looked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from drfl.core.errors import InputError
from drfl.experiments.config.config import load_config
from drfl.experiments.config.hyperparameters import canonical
from drfl_papers.plan import base
from drfl_papers.specification import PAPERS, load_job, load_spec, names
from drfl.experiments.tuning.job import JUDGED, Method, TuningJob, from_file, of_values


def resolve(text: str, changes: Mapping[str, object], *, stand_in: bool = False, trust: bool = False) -> TuningJob:
    """A job by its name among the papers', or by its file.

    Args:
        text: a name such as "mnist-linear", or the path of a TOML file as `drfl compare` takes it.
        changes: keys of a `Config` that take the place of the job's.
        stand_in: take what is run where the paper's data cannot be had.
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
    name = _known(text)
    job = load_job(name)
    if stand_in and job.stand_in is None:
        raise InputError(
            f"the job '{name}' has no stand-in: leave --stand-in out", code="unused-option", field="stand_in"
        )
    values = job.chosen(stand_in)
    config = load_config(None, {**values, **changes, **JUDGED})
    other = "or tune on what stands in for it, by --stand-in" if job.stand_in and not stand_in else ""
    return of_values(name, values, changes, config, methods=methods_of(name), stand_in=stand_in, without_data=other)


def methods_of(job: str) -> dict[str, Method]:
    """The methods that the papers' tables and figures run on a job with hyperparameters tuned for it.

    Args:
        job: its name.

    Raises:
        InputError: two of them have one name and differ.
    """
    found: dict[str, Method] = {}
    for spec in map(load_spec, names()):
        if all(base(spec, setting) != job for setting in spec.settings):
            continue
        for row in spec.methods:
            if row.tuned is not True:
                continue  # it is not tuned, or goes by another row's values
            more = {} if row.rounds is None else {"rounds": row.rounds}
            method = Method(row.algorithm, row.parameters, {**row.job, **more}, held=True)
            if found.setdefault(row.name, method) != method:
                raise InputError(
                    f"{spec.name}: {row.name} is another method than in the specifications before it",
                    code="duplicate-name",
                    field=row.name,
                )
    return found


def _known(text: str) -> str:
    known = sorted(path.stem for path in (PAPERS / "jobs").glob("*.toml"))
    try:
        return canonical("job", text, dict.fromkeys(known))
    except InputError as error:
        raise InputError(
            f"{error}, or give a TOML file, whose name ends in .toml", code=error.code, field=error.field
        ) from None
