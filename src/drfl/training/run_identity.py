"""The values that identify a run. A run can only be resumed from progress of the same run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from drfl.core.described import value_text
from drfl.core.errors import InputError
from drfl.core.hashing import digest_of
from drfl.core.short_repr import BRIEF
from drfl.federation.algorithm import Algorithm
from drfl.federation.federation import Federation

Identity = Mapping[str, object]
"""The plain values that a run must share with the progress from which it resumes."""


def run_identity(algorithm: Algorithm, fed: Federation, settings: Mapping[str, object]) -> dict[str, object]:
    """Describe a run by plain values, except the rows of the clients, whose digest may take a while.

    Args:
        algorithm: The algorithm; its fields, and theirs in turn, are listed one by one.
        fed: The clients.
        settings: Settings of the run, plain values.
    """
    return {
        **_fields("algorithm", algorithm),
        **settings,
        **fed.describe_task(),
        "clients": fed.n,
        "shares": digest_of([fed.shares]),
        "model": digest_of([fed.w0]),
    }


def _fields(name: str, thing: object) -> dict[str, object]:
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        return {name: value_text(thing)}
    fields: dict[str, object] = {name: type(thing).__name__}
    for field in dataclasses.fields(thing):
        fields |= _fields(f"{name}.{field.name}", getattr(thing, field.name))
    return fields


def check_same(own: Identity, kept: Identity, what: str, instead: str) -> None:
    """Check that a run may be resumed from progress of the run with the identity ``kept``.

    Args:
        own: The identity of the run.
        kept: That of the progress.
        what: What belongs to another run, with the verb, for the message.
        instead: What to use instead of the original value.

    Raises:
        InputError: If the identities differ. The message names the first difference.
    """
    for name in {**own, **kept}:
        if own.get(name) != kept.get(name):
            before, now = (BRIEF.repr(values.get(name, "not set")) for values in (kept, own))
            raise InputError(
                f"{what} to a run with {name} = {before}, not {now}. Use the original value, or {instead}.",
                code="other-run",
                field=name,
            )
