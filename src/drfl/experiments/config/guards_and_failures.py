"""Guards, aggregation rules and failure models from their texts in a configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import cast

from pydantic import TypeAdapter, ValidationError

from drfl.core.errors import InputError, unknown
from drfl.core.registry import from_text, text_of
from drfl.core.short_repr import stable_repr
from drfl.experiments.config.strict import value_problem
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
    """A placeholder for a :class:`drfl.resilience.Audit` on rows of the clients' own data, which only a run has.

    ``rows`` is the number of rows from each client.
    """

    rows: int = 16
    factor: float = 2.0
    slack: float = 1.0


@dataclass(frozen=True)
class ProbeRule:
    """A placeholder for a :class:`drfl.resilience.ProbeCosine` on rows of the clients' own data.

    ``rows`` is the number of rows from each client.
    """

    rows: int = 16
    cosine: float = 0.2
    length: float = 2.0


KNOWN: Mapping[str, Callable[..., Guard | ProbeAudit]] = {**PLAIN, "probe": ProbeAudit}
"""Guards by name."""


def guards_of(given: object) -> tuple[Guard | ProbeAudit, ...]:
    """Return guards from texts such as "clip:bound=3" or objects; None gives the wide default, "none" no guard."""
    if given is None:
        # The default is wide enough to leave the reports of honest clients unchanged.
        return (RobustClip(),)
    each = [*given] if isinstance(given, list | tuple) else [given]
    if [guard.strip().lower() for guard in each if isinstance(guard, str)] == ["none"] and len(each) == 1:
        return ()
    guards: list[Guard | ProbeAudit] = []
    for guard in each:
        if isinstance(guard, str):
            guards.append(from_text("guard", {**KNOWN, "none": _not_alone}, guard))
        elif isinstance(guard, ProbeAudit) or _has_method(guard, "judge"):
            guards.append(cast("Guard", guard))
        else:
            raise wrong_type_error("guard", guard, "drfl.resilience.RobustClip()", "robust:k=3")
    return tuple(guards)


def _not_alone() -> Guard:
    raise InputError(
        "`guards` has 'none' and other guards. Remove one of them", code="conflicting-options", field="guards"
    )


def guard_texts(guards: tuple[Guard | ProbeAudit, ...]) -> list[str] | None:
    """Return the texts that :func:`guards_of` makes the guards from; None for the default."""
    if guards == (RobustClip(),):
        return None
    return [rule_text(KNOWN, guard) for guard in guards] or ["none"]


def rule_text(known: Mapping[str, Callable[..., object]], rule: object) -> str:
    """Return the text of a rule in files: the text that makes it, or the ``repr`` of a user's own rule."""
    try:
        return text_of(known, rule)
    except ValueError:
        return stable_repr(rule)


def _has_method(thing: object, name: str) -> bool:
    # A class has the functions of its objects, but cannot be used as one of them.
    return not isinstance(thing, type) and callable(getattr(thing, name, None))


def wrong_type_error(what: str, given: object, example: str, text: str) -> InputError:
    """Return the error for a value that is not a rule of this kind."""
    named = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
    return InputError(
        f"`{what}`: expected an object such as {example} or a text such as '{text}', got {named}",
        code="wrong-type",
        field=what,
    )


AGGREGATORS: Mapping[str, Callable[..., Aggregator | ProbeRule]] = {
    "median-clip": MedianClip,
    "trimmed-mean": TrimmedMean,
    "median": CoordinateMedian,
    "geometric-median": GeometricMedian,
    "krum": Krum,
    "centred-clip": CentredClip,
    "probe": ProbeRule,
}
"""Robust aggregation rules by name."""


def aggregator_of(given: object) -> Aggregator | ProbeRule | None:
    """Return an aggregation rule from a text such as "krum:f=2" or an object; None returns None."""
    if isinstance(given, str):
        return from_text("aggregator", AGGREGATORS, given)
    if given is None or isinstance(given, ProbeRule) or _has_method(given, "expected"):
        return cast("Aggregator | ProbeRule | None", given)
    raise wrong_type_error("aggregator", given, "drfl.resilience.Krum(f=2)", "krum:f=2")


def aggregator_text(rule: Aggregator | ProbeRule | None) -> str | None:
    """Return the text that :func:`aggregator_of` makes the rule from."""
    return None if rule is None else rule_text(AGGREGATORS, rule)


def step_bound_of(given: object) -> StepBound | None:
    """Return the bound on updates from its factor or as it is; None if the factor is 0."""
    if given is None or isinstance(given, StepBound):
        return given
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise wrong_type_error("step_bound", given, "drfl.resilience.StepBound(100)", "100")
    if given and not 1 < given < math.inf:
        raise InputError(
            f"`step_bound` must be above 1 (the cohort's median update), or 0 for no bound, got {given:g}",
            code="out-of-range",
            field="step_bound",
        )
    return StepBound(given) if given else None


def step_bound_text(bound: StepBound | None) -> float | str:
    """Return the value that :func:`step_bound_of` makes the bound from, or the ``repr`` if it has other limits."""
    if bound is None:
        return 0.0
    return float(bound.factor) if bound == StepBound(bound.factor) else repr(bound)


def fault_numbers(texts: Iterable[str]) -> dict[str, float]:
    """Return the numbers of a failure model by name from texts such as "drop=0.3"."""
    numbers: dict[str, float] = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        try:
            numbers[name] = float(value)
        except ValueError:
            raise InputError(
                f"`faults` '{text}': expected NAME=NUMBER, e.g. drop=0.3", code="invalid-format", field="fault"
            ) from None
    return numbers


def failures_of(given: object) -> FailureModel | None:
    """Return a failure model from its numbers by name, from texts or as it is; None without failures."""
    if given is None or isinstance(given, FailureModel):
        return given
    texts = [given] if isinstance(given, str) else given
    if isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts):
        given = fault_numbers(texts)
    if not isinstance(given, Mapping):
        raise wrong_type_error("faults", given, "drfl.resilience.FailureModel(drop=0.3)", "drop=0.3")
    # Check the names first: pydantic would not suggest the nearest one.
    known = [field.name for field in fields(FailureModel)]
    for name in given:
        if name not in known:
            raise unknown("fault", str(name), known)
        value = given[name]
        if any(isinstance(number, str) for number in (value if isinstance(value, list | tuple) else [value])):
            raise InputError(f"`faults`: {name} must be a number, got {value!r}", code="invalid-value", field="faults")
    try:
        return TypeAdapter(FailureModel).validate_python(dict(given))
    except ValidationError as error:
        # An error that concerns several fields has an empty location.
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"`faults`: {where}{': ' if where else ''}{first.get('ctx', {}).get('error', value_problem(error))}",
            code="invalid-value",
            field="faults",
        ) from None


def failures_table(model: FailureModel | None) -> dict[str, object] | None:
    """Return the table that :func:`failures_of` makes the model from."""
    if model is None:
        return None
    return {f.name: value for f in fields(model) if (value := getattr(model, f.name)) != f.default}
