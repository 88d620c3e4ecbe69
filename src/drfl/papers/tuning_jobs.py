"""The papers' jobs, as jobs whose hyperparameters are looked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from drfl.errors import InputError
from drfl.experiments.config import load_config
from drfl.experiments.hyperparameters import canonical
from drfl.papers.specification import DEFAULTS, PAPERS, Specification, load_job, load_spec, names
from drfl.tuning.job import JUDGED, TuningJob, from_file, of_values


def resolve(text: str, changes: Mapping[str, object], *, stand_in: bool = False) -> TuningJob:
    """A job by its name among the papers', or by its file.

    Args:
        text: a name such as "mnist-linear", or the path of a TOML file as `drfl compare` takes it.
        changes: keys of a `Config` that take the place of the job's.
        stand_in: take what is run where the paper's data cannot be had.

    Raises:
        InputError: no such job or file, no stand-in, or an impossible value.
    """
    if Path(text).suffix == ".toml":
        if stand_in:
            raise InputError("--stand-in is for the papers' jobs: leave it out beside a file")
        return from_file(Path(text), changes)
    name = _known(text)
    values: dict[str, object] = {**DEFAULTS, **load_job(name)}
    if stand_in:
        name, changed = _stand_in(name)
        values |= changed
    return of_values(name, values, changes, load_config(None, {**values, **changes, **JUDGED}), stand_in=stand_in)


def _known(text: str) -> str:
    known = sorted(path.stem for path in (PAPERS / "jobs").glob("*.toml"))
    try:
        return canonical("job", text, dict.fromkeys(known))
    except InputError as error:
        raise InputError(f"{error}, or give a TOML file, whose name ends in .toml") from None


def _stand_in(job: str) -> tuple[str, Mapping[str, object]]:
    """The name of the hyperparameter file and the changed keys of a job's stand-in, as the papers' tables have it."""
    found: list[tuple[str, Mapping[str, object]]] = []
    for spec in map(load_spec, names()):
        own = _of(spec) if spec.job == job else None
        if own is not None and own not in found:
            found.append(own)
    if not found:
        raise InputError(f"the job '{job}' has no stand-in: leave --stand-in out")
    if len(found) > 1:
        raise InputError(f"the job '{job}' has {len(found)} stand-ins: say which data by --set dataset=NAME")
    return found[0]


def _of(spec: Specification) -> tuple[str, Mapping[str, object]] | None:
    if spec.stand_in is None or (spec.stand_in.tuned or spec.tuned) is None:
        return None
    return str(spec.stand_in.tuned or spec.tuned), spec.stand_in.job
