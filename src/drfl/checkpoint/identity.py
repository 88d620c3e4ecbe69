"""What a run is known by, so that one is not taken for another: its algorithm, settings, data and initial model."""

from __future__ import annotations

import dataclasses
import re
import reprlib
from collections.abc import Callable, Mapping

from drfl.algorithm import Algorithm
from drfl.checkpoint.files import Identity
from drfl.errors import InputError, Notice
from drfl.federation import Federation
from drfl.hashing import digest_of

ADDRESS = re.compile(r" at 0x[0-9a-f]+")

SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = 200
"""Writes values in messages, of which a line should remain."""


def run_identity(algorithm: Algorithm, fed: Federation, settings: Mapping[str, object]) -> dict[str, object]:
    """A run as plain values.

    Args:
        algorithm: its fields, and those of what is in them, are told one by one.
        fed: its clients.
        settings: of the run, plain values.
    """
    return {
        **_fields("algorithm", algorithm),
        **settings,
        "clients": fed.n,
        "data": fed.data_digest(),
        "model": digest_of([fed.w0]),
    }


def _fields(name: str, thing: object) -> dict[str, object]:
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        return {name: ADDRESS.sub("", repr(thing))}
    found: dict[str, object] = {name: type(thing).__name__}
    for field in dataclasses.fields(thing):
        found |= _fields(f"{name}.{field.name}", getattr(thing, field.name))
    return found


def check_same(own: Callable[[], Identity], kept: Identity) -> list[Notice]:
    """Make sure that a run may go on from a checkpoint; no remarks, see :data:`drfl.checkpoint.selection.Same`.

    Args:
        own: gives the run's identity.
        kept: the checkpoint's.

    Raises:
        InputError: they differ; names the first difference.
    """
    ours = own()
    for name in {**ours, **kept}:
        if ours.get(name) != kept.get(name):
            before, now = (SHORT.repr(values.get(name, "not set")) for values in (kept, ours))
            raise InputError(
                f"the checkpoints are of a run with {name} = {before}, not {now}: give what it was begun with, or "
                "another folder",
                code="other-run",
                field=name,
            )
    return []
