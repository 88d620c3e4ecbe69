"""Guards, aggregators and failure models from what a configuration says of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from pydantic import TypeAdapter, ValidationError

from drfl.core.errors import InputError, unknown
from drfl.core.registry import named
from drfl.resilience import (
    Aggregator,
    CentredClip,
    Clip,
    CoordinateMedian,
    FailureModel,
    GeometricMedian,
    Guard,
    Krum,
    MedianClip,
    PeerAudit,
    RobustClip,
    StepBound,
    Trim,
    TrimmedMean,
)

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


@dataclass(frozen=True)
class ProbeRule:
    """Stands for a :class:`drfl.resilience.ProbeCosine` likewise.

    Args:
        rows: of each client.
        cosine: see ProbeCosine.
        length: see ProbeCosine.
    """

    rows: int = 16
    cosine: float = 0.2
    length: float = 2.0


KNOWN: Mapping[str, Callable[..., Guard | ProbeAudit]] = {**PLAIN, "probe": ProbeAudit}
"""Guards by name."""


def uses_rows(guards: tuple[str, ...] | None, aggregator: str | None) -> bool:
    """Whether a guard or the aggregator compares what clients send with rows that the server holds."""
    rules = (*guards_of(guards), aggregator_of(aggregator))
    return any(isinstance(rule, ProbeAudit | ProbeRule) for rule in rules)


def guards_of(texts: tuple[str, ...] | None) -> tuple[Guard | ProbeAudit, ...]:
    """Guards from texts such as "clip:bound=3"; None = the wide default, "none" = none.

    Raises:
        InputError: see :func:`drfl.core.registry.named`.
    """
    if texts is None:
        # The default is wide enough to leave honest reports unchanged.
        return (RobustClip(),)
    if [text.strip().lower() for text in texts] == ["none"]:
        return ()
    return tuple(named("guard", KNOWN, text) for text in texts)


AGGREGATORS: Mapping[str, Callable[..., Aggregator | ProbeRule]] = {
    "median-clip": MedianClip,
    "trimmed-mean": TrimmedMean,
    "median": CoordinateMedian,
    "geometric-median": GeometricMedian,
    "krum": Krum,
    "centred-clip": CentredClip,
    "probe": ProbeRule,
}
"""Byzantine-robust rules by name."""


def aggregator_of(text: str | None) -> Aggregator | ProbeRule | None:
    """A rule from a text such as "krum:f=2"; None = none.

    Raises:
        InputError: see :func:`drfl.core.registry.named`.
    """
    return None if text is None else named("aggregator", AGGREGATORS, text)


def step_bound_of(factor: float) -> StepBound | None:
    """The bound on steps; None for 0.

    Raises:
        InputError: the factor is neither 0 nor above 1.
    """
    if factor and not 1 < factor < math.inf:
        raise InputError(
            f"step_bound must be above 1, or 0 for none, not {factor:g}: the usual step itself is 1",
            code="out-of-range",
            field="step_bound",
        )
    return StepBound(factor) if factor else None


def failures_of(table: Mapping[str, float]) -> FailureModel:
    """A failure model from its numbers by name.

    Raises:
        InputError: a name is unknown, or a value out of range.
    """
    # Check the names first: pydantic would not suggest the nearest one.
    known = [field.name for field in fields(FailureModel)]
    for name in table:
        if name not in known:
            raise unknown("fault", name, known)
    try:
        return TypeAdapter(FailureModel).validate_python(dict(table))
    except ValidationError as error:
        # An error that concerns several fields has an empty location.
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"faults: {where}{': ' if where else ''}{first.get('ctx', {}).get('error', first['msg'])}",
            code="invalid-value",
            field="faults",
        ) from None
