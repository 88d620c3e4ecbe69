"""Guards and failure models from what a configuration says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from pydantic import TypeAdapter, ValidationError

from drfl.errors import InputError, unknown
from drfl.registry import named
from drfl.resilience import Clip, FailureModel, Guard, PeerAudit, RobustClip, Trim

PLAIN: Mapping[str, Callable[..., Guard]] = {"robust": RobustClip, "clip": Clip, "trim": Trim, "peers": PeerAudit}


@dataclass(frozen=True)
class ProbeAudit:
    """Stands for an :class:`drfl.resilience.Audit` by rows of the clients' own data, which only a run has.

    Args:
        rows: of each client.
        factor: see Audit.
        slack: see Audit.
    """

    rows: int = 16
    factor: float = 2.0
    slack: float = 1.0


KNOWN: Mapping[str, Callable[..., Guard | ProbeAudit]] = {**PLAIN, "probe": ProbeAudit}
"""Guards by name."""


def guards_of(texts: tuple[str, ...] | None) -> tuple[Guard | ProbeAudit, ...]:
    """Guards from texts such as "clip:bound=3"; None = the wide default, "none" = none.

    Raises:
        InputError: see :func:`drfl.registry.named`.
    """
    if texts is None:
        return (RobustClip(),)
    if [text.strip().lower() for text in texts] == ["none"]:
        return ()
    return tuple(named("guard", KNOWN, text) for text in texts)


def failures_of(table: Mapping[str, float]) -> FailureModel:
    """A failure model from its numbers by name.

    Raises:
        InputError: a name is unknown, or a value out of range.
    """
    known = [field.name for field in fields(FailureModel)]
    for name in table:
        if name not in known:
            raise unknown("fault", name, known)
    try:
        return TypeAdapter(FailureModel).validate_python(dict(table))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"faults: {where}{': ' if where else ''}{first.get('ctx', {}).get('error', first['msg'])}"
        ) from None
