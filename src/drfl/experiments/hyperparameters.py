"""Hyperparameters by name: what an algorithm takes, checked and built from plain values."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping

from pydantic import TypeAdapter, ValidationError

from drfl import ambiguity, sampling
from drfl.algorithm import Algorithm
from drfl.algorithms import ALGORITHMS
from drfl.ambiguity import AmbiguitySet
from drfl.errors import InputError, unknown
from drfl.local import LocalSGD
from drfl.sampling import Sampling

Value = bool | int | float | str | None

SAMPLINGS: dict[str, Sampling] = {
    "with-replacement": sampling.with_replacement,
    "without-replacement": sampling.without_replacement,
    "everybody": sampling.everybody,
}
"""Ways to draw the cohort from λ, by the names that configurations use."""

LOCAL = tuple(field.name for field in dataclasses.fields(LocalSGD))
"""The local solver's parameters; a configuration gives them beside the algorithm's own."""


def canonical(kind: str, name: str, known: Mapping[str, object]) -> str:
    """The known name that equals ``name`` up to case, with - and _ alike.

    Raises:
        InputError: there is none; the nearest is suggested.
    """
    plain = {k.lower().replace("_", "-"): k for k in known}
    try:
        return plain[name.lower().replace("_", "-")]
    except KeyError:
        raise unknown(kind, name, known) from None


def defaults_of(algorithm: str) -> dict[str, Value]:
    """Each parameter's default as a plain value; those without one (``m``) are left out."""
    values: dict[str, Value] = {}
    for field in dataclasses.fields(ALGORITHMS[algorithm]):
        if field.name == "sampling":
            values["sampling"] = next(name for name, draw in SAMPLINGS.items() if draw is field.default)
        elif field.name == "ambiguity":
            values["ambiguity"] = "simplex"
        elif field.name != "local" and field.default is not dataclasses.MISSING:
            values[field.name] = field.default
    return {**values, **dataclasses.asdict(_local_of(algorithm))}


def takes(algorithm: str, name: str) -> bool:
    """Whether an algorithm, or the local solver within it, has this parameter."""
    return name in LOCAL or name in {field.name for field in dataclasses.fields(ALGORITHMS[algorithm])} - {"local"}


def _local_of(algorithm: str) -> LocalSGD:
    """The algorithm's default local solver."""
    field = next(field for field in dataclasses.fields(ALGORITHMS[algorithm]) if field.name == "local")
    return typing.cast(Callable[[], LocalSGD], field.default_factory)()


def make(algorithm: str, values: Mapping[str, Value]) -> Algorithm:
    """An algorithm from plain values.

    Args:
        algorithm: its name in :data:`drfl.algorithms.ALGORITHMS`.
        values: its own and the local solver's parameters; ``sampling`` and ``ambiguity`` by name, ``"full"`` for a
            batch of all samples, ``"none"`` for None.

    Raises:
        InputError: unknown name, wrong type or impossible value.
    """
    cls = ALGORITHMS[algorithm]
    known = [*(field.name for field in dataclasses.fields(cls) if field.name != "local"), *LOCAL]
    for name in values:
        if name not in known:
            raise unknown(f"parameter of {algorithm}", name, known)
    given = _checked(algorithm, LocalSGD, {k: v for k, v in values.items() if k in LOCAL})
    local = dataclasses.replace(_local_of(algorithm), **given)
    own = _checked(algorithm, cls, {k: v for k, v in values.items() if k not in LOCAL})
    return cls(local=local, **own)


def _checked(algorithm: str, cls: type, values: Mapping[str, Value]) -> dict[str, typing.Any]:
    hints = typing.get_type_hints(cls)
    return {name: _convert(f"{algorithm}.{name}", hints[name], value) for name, value in values.items()}


def _convert(name: str, hint: typing.Any, value: Value) -> object:  # noqa: ANN401 - a type hint has no type
    if hint is Sampling:
        return SAMPLINGS[canonical("sampling", str(value), SAMPLINGS)]
    if hint is AmbiguitySet:
        return ambiguity.parse(str(value))
    if (value == "full" and hint == int | None) or (value == "none" and types.NoneType in typing.get_args(hint)):
        return None
    if isinstance(value, bool) and hint is not bool:  # Python would take true for 1
        raise InputError(f"{name} = {str(value).lower()}: give a number")
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise InputError(f"{name} = {value!r}: {reason[0].lower()}{reason[1:]}") from None
