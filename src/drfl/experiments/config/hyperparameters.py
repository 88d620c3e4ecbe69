"""Algorithms and their hyperparameters by name: what one takes, checked and built from plain values."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable, Mapping

from pydantic import TypeAdapter, ValidationError

from drfl import ambiguity
from drfl.algorithms import ALGORITHMS, BASELINES, EVERYBODY
from drfl.ambiguity import AMBIGUITY_SETS, AmbiguitySet
from drfl.core import user_code
from drfl.core.errors import InputError, unknown
from drfl.core.registry import text_of
from drfl.federation import sampling
from drfl.federation.algorithm import Algorithm
from drfl.federation.sampling import Sampling
from drfl.optim import local_optimizers, schedules, server_optimizers
from drfl.optim.local import LocalSGD
from drfl.optim.local_optimizers import LocalOptimizer
from drfl.optim.schedules import Schedule
from drfl.optim.server_optimizers import ServerOptimizer

Value = bool | int | float | str | None

SAMPLINGS: dict[str, Sampling] = {
    "with-replacement": sampling.with_replacement,
    "without-replacement": sampling.without_replacement,
    "everybody": sampling.everybody,
    "uniform-weighted": sampling.uniform_weighted,
}
"""Ways to draw the cohort from λ, by the names that configurations use."""

KNOWN = {**ALGORITHMS, **BASELINES}
"""Every algorithm that has a name."""

PARSED: dict[type, Callable[[str], object]] = {
    Schedule: schedules.parse,
    LocalOptimizer: local_optimizers.parse,
    ServerOptimizer: server_optimizers.parse,
}
"""Objects that configurations give by name, as in ``cosine:rounds=100``."""

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


def algorithm_name(text: str) -> str:
    """The name of an algorithm: a known one up to case, or a reference to a class of the user's own, which is loaded.

    Raises:
        InputError: there is none of that name, or what the reference names is no algorithm.
    """
    if not user_code.is_reference(text):
        return canonical("algorithm", text, KNOWN)
    algorithm_class(text.strip())
    return text.strip()


def algorithm_class(name: str) -> type[Algorithm]:
    """The class behind a name from :func:`algorithm_name`.

    Raises:
        InputError: what a reference names is no class of algorithms.
    """
    if not user_code.is_reference(name):
        return KNOWN[name]
    found = user_code.load("algorithm", name)
    if not isinstance(found, type):
        raise InputError(
            f"algorithm '{name}' is a {type(found).__name__}, not a class: name a class of algorithms",
            code="wrong-type",
            field="algorithm",
        )
    for part in ("init", "round"):
        if not callable(getattr(found, part, None)):
            raise InputError(
                f"algorithm '{name}' has no method '{part}': see drfl.Algorithm for what it needs",
                code="wrong-type",
                field="algorithm",
            )
    if not dataclasses.is_dataclass(found):
        raise InputError(
            f"algorithm '{name}' is no dataclass: put @dataclass(frozen=True) before the class",
            code="wrong-type",
            field="algorithm",
        )
    own = {field.name: field for field in dataclasses.fields(found)}
    if "local" not in own or own["local"].default_factory is dataclasses.MISSING:
        raise InputError(
            f"algorithm '{name}' lacks the field of what clients run: local: LocalSGD = "
            "field(default_factory=LocalSGD)",
            code="wrong-type",
            field="algorithm",
        )
    return typing.cast("type[Algorithm]", found)


def _fields(algorithm: str) -> tuple[dataclasses.Field[typing.Any], ...]:
    # Algorithm is a protocol, which cannot say that its classes are dataclasses.
    return dataclasses.fields(typing.cast("typing.Any", algorithm_class(algorithm)))


ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def plain(value: object) -> Value:
    """A hyperparameter as files hold it: a number, or the text that it is made from.

    Raises:
        ValueError: It has no text, such as an object of a user's class.
    """
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, tuple(PARSED)):
        return str(value)
    name = next((name for name, draw in SAMPLINGS.items() if draw is value), None)
    return text_of(AMBIGUITY_SETS, value) if name is None else name


def defaults_of(algorithm: str) -> dict[str, Value]:
    """Each parameter's default as a plain value; those without one, or whose default has no text, are left out."""
    values: dict[str, Value] = {}
    for field in _fields(algorithm):
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        if field.name != "local" and default is not dataclasses.MISSING:
            with contextlib.suppress(ValueError):
                values[field.name] = plain(default)
    return {**values, **plain_local(_local_of(algorithm))}


def plain_local(local: LocalSGD) -> dict[str, Value]:
    """A local solver's fields as plain values."""
    return {name: plain(getattr(local, name)) for name in LOCAL}


def parameters_of(algorithm: Algorithm, clients: int) -> dict[str, Value]:
    """The fields of an algorithm and of its local solver as plain values, the size of the cohort among them.

    A field that has no text appears as its ``repr``, unless it has its default.

    Args:
        algorithm: The algorithm.
        clients: N, for the default size of a cohort.
    """
    found: dict[str, Value] = {}
    for field in dataclasses.fields(algorithm) if dataclasses.is_dataclass(algorithm) else ():
        value = getattr(algorithm, field.name)
        if field.name == "local":
            found |= plain_local(value)
            continue
        try:
            found[field.name] = plain(value)
        except ValueError:
            if value is not field.default:
                # Drop memory addresses: they differ between processes, and equal runs would look different.
                found[field.name] = ADDRESS.sub("", repr(value))
    if "m" in found and found["m"] is None:
        found["m"] = default_cohort(type(algorithm), clients)
    return found


def default_cohort(algorithm: type[Algorithm], clients: int) -> int:
    """The size of an algorithm's cohort if none is given."""
    return clients if issubclass(algorithm, EVERYBODY) else sampling.size(None, clients)


def over_defaults(algorithm: str, given: Mapping[str, Value]) -> dict[str, Value]:
    """All parameters: those given over the defaults, of which epochs that are given take the place of steps."""
    values = defaults_of(algorithm)
    if given.get("epochs") not in (None, "none"):
        values["steps"] = None
    # "full", as files spell None out, is None if that is the default: a run that is read back is the same one.
    usual = {name for name, value in given.items() if value == "full" and values.get(name, value) is None}
    return {**values, **{name: None if name in usual else value for name, value in given.items()}}


def takes(algorithm: str, name: str) -> bool:
    """Whether an algorithm, or the local solver within it, has this parameter."""
    return name in LOCAL or name in {field.name for field in _fields(algorithm)} - {"local"}


def _local_of(algorithm: str) -> LocalSGD:
    """The algorithm's default local solver."""
    field = next(field for field in _fields(algorithm) if field.name == "local")
    return typing.cast(Callable[[], LocalSGD], field.default_factory)()


def make(algorithm: str, values: Mapping[str, Value]) -> Algorithm:
    """An algorithm from plain values.

    Args:
        algorithm: its name, see :func:`algorithm_name`.
        values: its own and the local solver's parameters; ``sampling`` and ``ambiguity`` by name, ``"full"`` for a
            batch of all samples, ``"none"`` for None.

    Raises:
        InputError: unknown name, wrong type or impossible value.
    """
    items = tuple((name, type(value), value) for name, value in values.items())  # typed: 1 and true are equal in Python
    return _made(algorithm, algorithm_class(algorithm), items)


# A configuration is checked by building its algorithms; the run takes the same ones. The class is part of the key, as
# the user's file may change.
@functools.lru_cache(maxsize=256)
def _made(algorithm: str, cls: type[Algorithm], items: tuple[tuple[str, type, Value], ...]) -> Algorithm:
    values, label = {name: value for name, _, value in items}, user_code.label_of(algorithm)
    known = [*(field.name for field in _fields(algorithm) if field.name != "local"), *LOCAL]
    for name in values:
        if name not in known:
            raise unknown(f"parameter of {label}", name, known, field=f"{label}.{name}")
    # In files, the local solver and the algorithm share one table.
    given = _checked(label, LocalSGD, {k: v for k, v in values.items() if k in LOCAL})
    # `epochs` replaces `steps`, whose default would conflict with it.
    without = {"steps": None} if given.get("epochs") is not None and "steps" not in given else {}
    local = dataclasses.replace(_local_of(algorithm), **without, **given)
    own = _checked(label, cls, {k: v for k, v in values.items() if k not in LOCAL})
    missing = [
        f.name
        for f in _fields(algorithm)
        if f.name not in (*own, "local")
        and f.init
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise InputError(
            f"{label} needs a value of {missing[0]}: give --param {label}.{missing[0]}=VALUE",
            code="missing-option",
            field=f"{label}.{missing[0]}",
        )
    try:
        return typing.cast("Callable[..., Algorithm]", cls)(local=local, **own)
    except InputError:
        raise
    except Exception as error:  # of a class of the user's own
        raise InputError(
            f"{label}: {' '.join(str(error).split()) or type(error).__name__}", code="user-code-failed", field=label
        ) from error


def _checked(algorithm: str, cls: type, values: Mapping[str, Value]) -> dict[str, typing.Any]:
    hints = typing.get_type_hints(cls)
    return {name: _convert(f"{algorithm}.{name}", hints[name], value) for name, value in values.items()}


def _convert(name: str, hint: typing.Any, value: Value) -> object:  # noqa: ANN401 - a type hint has no type
    if hint is Sampling:
        return SAMPLINGS[canonical("sampling", str(value), SAMPLINGS)]
    if hint is AmbiguitySet:
        return ambiguity.parse(str(value))
    if hint == ServerOptimizer | None and value is None:
        return None
    if (value == "full" and hint == int | None) or (value == "none" and types.NoneType in typing.get_args(hint)):
        return None
    for kind, parse in PARSED.items():
        if hint in (kind, kind | None):
            return parse(str(value))
    if isinstance(value, bool) and hint is not bool:  # Python would take true for 1
        raise InputError(f"{name} = {str(value).lower()}: give a number", code="wrong-type", field=name)
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise InputError(
            f"{name} = {value!r}: {reason[0].lower()}{reason[1:]}", code="wrong-type", field=name
        ) from None
