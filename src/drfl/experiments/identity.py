"""What a run and its checkpoint must have in common."""

from __future__ import annotations

import reprlib
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from drfl.checkpoint import DamagedError
from drfl.checkpoint.record import first_fault
from drfl.digest import digest_of
from drfl.errors import InputError
from drfl.experiments.build import Running
from drfl.experiments.rundir import config_toml, versions

FREE = ("data_dir", "checkpoint_every", "checkpoint_key")
"""Keys of a configuration that have no say in the results."""

ROUNDING = ("threads",)
"""Keys that have a say in the last digits at most: convolutions and large products may be summed in another order."""

SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = 200
"""Writes values of a file in messages, of which a line should remain."""


Word = Annotated[str, Field(max_length=200, pattern="^[ -~]*$")]
"""What can be shown on a terminal: a version or its package's name."""


class Identity(BaseModel):
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
    named = "\n".join((*data.names, *layout.names, *map(str, layout.shapes)))
    return {
        "config": settings(job),
        "data": digest_of(data.tensors(), named),
        "model": digest_of([job.task.w0], named),
        "versions": versions(),
    }


def settings(job: Running) -> dict[str, object]:
    """The configuration with every default spelt out, but for what has no say in the results."""
    full = tomllib.loads(config_toml(job.config, job.data.n))
    return {name: value for name, value in full.items() if name not in FREE}


def check_same(job: Running, kept: Mapping[str, object]) -> list[str]:
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
        theirs = Identity.model_validate(dict(kept))
    except ValidationError as error:
        raise DamagedError(f"run.json, identity.{first_fault(error)}") from None
    check_settings(job, theirs.config)
    own = Identity.model_validate(identity(job))
    for what in ("data", "model"):
        if getattr(own, what) != getattr(theirs, what):
            raise InputError(
                f"the run to resume is one on {'other data' if what == 'data' else 'another initial model'} of the "
                "same name: resume with what it started with, or start anew in another --out"
            )
    before, now, ours = theirs.versions, own.versions, settings(job)
    pairs = {name: (before.get(name), now.get(name)) for name in sorted({*before, *now})}
    unset = "not set"
    pairs |= {name: (SHORT.repr(theirs.config.get(name, unset)), repr(ours.get(name, unset))) for name in ROUNDING}
    return [
        f"the checkpoint was written with {name} {then}, this is {this}: digits may differ"
        for name, (then, this) in pairs.items()
        if then != this
    ]


def check_settings(job: Running, kept: Mapping[str, object]) -> None:
    """Make sure that a run is the one that was kept, going by its :func:`settings` less :data:`ROUNDING`.

    Raises:
        InputError: they differ; names the first difference.
    """
    ours, theirs = _flat(settings(job)), _flat({k: v for k, v in kept.items() if k not in FREE})
    for name in sorted({*ours, *theirs} - {*ROUNDING}):
        if ours.get(name) != theirs.get(name):
            raise InputError(
                f"the run to resume has {name} = {_shown(theirs, name)}, not {_shown(ours, name)}: resume with the "
                "same options, or start anew in another --out"
            )


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in table.items():
        found.update(_flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value})
    return found


def _shown(values: Mapping[str, object], name: str) -> str:
    return SHORT.repr(values[name]) if name in values else "no value"
