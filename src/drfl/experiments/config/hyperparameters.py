"""Algorithms and their hyperparameters by name, checked and built from plain values."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Collection, Mapping

from pydantic import TypeAdapter, ValidationError

from drfl.algorithms import ALGORITHMS, BASELINES, CLIENT_SIDE
from drfl.ambiguity import AmbiguitySet, by_name
from drfl.core import user_code
from drfl.core.errors import InputError, unknown
from drfl.core.short_repr import stable_repr
from drfl.experiments.config.strict import value_problem
from drfl.federation import sampling
from drfl.federation.algorithm import LOCAL_FIELD, Algorithm, default_cohort
from drfl.federation.sampling import Sampling
from drfl.optim import local_optimizers, schedules, server_optimizers
from drfl.optim.local import LocalSGD
from drfl.optim.local_optimizers import LocalOptimizer
from drfl.optim.schedules import Schedule
from drfl.optim.server_optimizers import ServerOptimizer

Value = bool | int | float | str | None

T = typing.TypeVar("T")

SAMPLINGS: dict[str, Sampling] = {
    "with-replacement": sampling.with_replacement,
    "without-replacement": sampling.without_replacement,
    "everybody": sampling.all_clients,
    "uniform-weighted": sampling.uniform_weighted,
}
"""Ways to draw the cohort from λ, by their names in configurations."""

KNOWN = {**ALGORITHMS, **CLIENT_SIDE, **BASELINES}
"""All algorithms with a name."""

PARSERS: dict[type, Callable[[str], object]] = {
    Schedule: schedules.parse,
    LocalOptimizer: local_optimizers.parse,
    ServerOptimizer: server_optimizers.parse,
}
"""Objects that configurations give as text, as in ``cosine:rounds=100``."""

LOCAL = tuple(field.name for field in dataclasses.fields(LocalSGD))
"""The local solver's parameters, which configurations list beside the algorithm's own."""


def canonical(kind: str, name: str, known: Mapping[str, object]) -> str:
    """Return the known name that equals ``name`` up to case, and up to - for _.

    Raises:
        InputError: If there is none; suggests the nearest name.
    """
    plain = {k.lower().replace("_", "-"): k for k in known}
    try:
        return plain[name.lower().replace("_", "-")]
    except KeyError:
        raise unknown(kind, name, known) from None


def algorithm_name(text: str, own: Collection[str] = ()) -> str:
    """Return the name of an algorithm: a known name up to case, or a reference to a user's class, which is loaded.

    ``own`` are algorithms that run. Among them a user's class can be named without its file.
    """
    if not user_code.is_reference(text):
        classes = {user_code.label_of(name): name for name in own if user_code.is_reference(name)}
        # If both run, the name without a file is drfl's own algorithm.
        classes = {label: name for label, name in classes.items() if label not in own}
        name = canonical("algorithm", text.strip(), {**KNOWN, **classes})
        return classes.get(name, name)
    algorithm_class(text.strip())
    return text.strip()


def by_algorithm(tables: Mapping[str, T], own: Collection[str] = ()) -> dict[str, T]:
    """Return tables of parameters by the names of their algorithms, see :func:`algorithm_name`."""
    named: dict[str, T] = {}
    for text, table in tables.items():
        name = algorithm_name(text, own)
        if name in named:
            raise InputError(
                f"the table algorithms.{name} occurs twice: remove one", code="given-twice", field=f"algorithms.{name}"
            )
        named[name] = table
    return named


def algorithm_class(name: str) -> type[Algorithm]:
    """Return the class behind a name from :func:`algorithm_name`."""
    if not user_code.is_reference(name):
        return KNOWN[name]
    loaded = user_code.load("algorithm", name)
    if not isinstance(loaded, type):
        raise InputError(
            f"algorithm '{name}' is a {type(loaded).__name__}, not a class: pass the class of an algorithm",
            code="wrong-type",
            field="algorithm",
        )
    for part in ("init", "round"):
        if not callable(getattr(loaded, part, None)):
            raise InputError(
                f"algorithm '{name}' has no method '{part}': see drfl.Algorithm for the required methods",
                code="wrong-type",
                field="algorithm",
            )
    if not dataclasses.is_dataclass(loaded):
        raise InputError(
            f"algorithm '{name}' is not a dataclass: put @dataclass(frozen=True) before the class, which needs the "
            f"field {LOCAL_FIELD}",
            code="wrong-type",
            field="algorithm",
        )
    fields = {field.name: field for field in dataclasses.fields(loaded)}
    if "local" not in fields or fields["local"].default_factory is dataclasses.MISSING:
        raise InputError(
            f"algorithm '{name}' has no local solver: add the field {LOCAL_FIELD}", code="wrong-type", field="algorithm"
        )
    return typing.cast("type[Algorithm]", loaded)


def _fields(algorithm: str) -> tuple[dataclasses.Field[typing.Any], ...]:
    # The protocol Algorithm cannot express that its classes are dataclasses.
    return dataclasses.fields(typing.cast("typing.Any", algorithm_class(algorithm)))


def to_plain(value: object) -> Value:
    """Return a hyperparameter as files hold it: a number, or the text that it is made from.

    Raises:
        ValueError: If it has no text, such as an object of a user's class.
    """
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, tuple(PARSERS)):
        return str(value)
    name = next((name for name, draw in SAMPLINGS.items() if draw is value), None)
    return by_name.text_of_set(value) if name is None else name


def defaults_of(algorithm: str) -> dict[str, Value]:
    """Return the default of each parameter as a plain value. Parameters whose default has no text are omitted."""
    values: dict[str, Value] = {}
    for field in _fields(algorithm):
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        if field.name != "local" and default is not dataclasses.MISSING:
            with contextlib.suppress(ValueError):
                values[field.name] = to_plain(default)
    return {**values, **local_to_plain(_local_of(algorithm))}


def local_to_plain(local: LocalSGD) -> dict[str, Value]:
    """Return a local solver's fields as plain values."""
    return {name: to_plain(getattr(local, name)) for name in LOCAL}


def parameters_of(algorithm: Algorithm, clients: int) -> dict[str, Value]:
    """Return the fields of an algorithm and of its local solver as plain values, including the size of the cohort.

    A field without a text appears as its ``repr``, unless it has its default value.
    """
    parameters: dict[str, Value] = {}
    for field in dataclasses.fields(algorithm) if dataclasses.is_dataclass(algorithm) else ():
        value = getattr(algorithm, field.name)
        if field.name == "local":
            parameters |= local_to_plain(value)
            continue
        try:
            parameters[field.name] = to_plain(value)
        except ValueError:
            if value is not field.default:
                # Memory addresses would make equal runs look different.
                parameters[field.name] = stable_repr(value)
    if "m" in parameters and parameters["m"] is None:
        parameters["m"] = default_cohort(type(algorithm), clients)
    return parameters


def with_defaults(algorithm: str, given: Mapping[str, Value]) -> dict[str, Value]:
    """Return all parameters: those given, then the defaults. If epochs are given they replace steps."""
    values = defaults_of(algorithm)
    if given.get("epochs") not in (None, "none"):
        values["steps"] = None
    # Files write None as "full". It is read as None if that is the default, so a stored run equals the original.
    usual = {name for name, value in given.items() if value == "full" and values.get(name, value) is None}
    return {**values, **{name: None if name in usual else value for name, value in given.items()}}


def has_parameter(algorithm: str, name: str) -> bool:
    """Return whether an algorithm, or its local solver, has this parameter."""
    return name in LOCAL or name in {field.name for field in _fields(algorithm)} - {"local"}


def _local_of(algorithm: str) -> LocalSGD:
    field = next(field for field in _fields(algorithm) if field.name == "local")
    return typing.cast(Callable[[], LocalSGD], field.default_factory)()


def own_sets(algorithm: str, values: Mapping[str, Value]) -> list[str]:
    """Return the references to users' ambiguity sets among an algorithm's parameters."""
    hints = typing.get_type_hints(algorithm_class(algorithm))
    references = (by_name.reference_in(value) for name, value in values.items() if hints.get(name) is AmbiguitySet)
    return [reference for reference in references if reference is not None]


def make_algorithm(algorithm: str, values: Mapping[str, Value]) -> Algorithm:
    """Make an algorithm from plain values.

    Args:
        algorithm: Its name, see :func:`algorithm_name`.
        values: Its parameters and those of its local solver; ``sampling`` and ``ambiguity`` by name, ``"full"`` for a
            batch of all samples, ``"none"`` for None.
    """
    items = tuple((name, type(value), value) for name, value in values.items())  # with types, as 1 == True in Python
    sets = tuple(by_name.own_set(reference) for reference in own_sets(algorithm, values))
    return _make_cached(algorithm, algorithm_class(algorithm), sets, items)


# A configuration builds its algorithms to check them, and the run uses the same objects. The user's classes are part of
# the key, because the user's file may change.
@functools.lru_cache(maxsize=256)
def _make_cached(
    algorithm: str, cls: type[Algorithm], sets: tuple[object, ...], items: tuple[tuple[str, type, Value], ...]
) -> Algorithm:
    values, label = {name: value for name, _, value in items}, user_code.label_of(algorithm)
    known = [*(field.name for field in _fields(algorithm) if field.name != "local"), *LOCAL]
    for name in values:
        if name not in known:
            raise unknown("parameter", name, known, field=f"{label}.{name}", place=f"of {label}")
    # In files, the local solver and the algorithm share one table.
    local_values = _convert_values(label, LocalSGD, {k: v for k, v in values.items() if k in LOCAL})
    # `epochs` replaces `steps`, whose default would conflict with it.
    without = {"steps": None} if local_values.get("epochs") is not None and "steps" not in local_values else {}
    local = dataclasses.replace(_local_of(algorithm), **without, **local_values)
    own_values = _convert_values(label, cls, {k: v for k, v in values.items() if k not in LOCAL})
    missing = [
        f.name
        for f in _fields(algorithm)
        if f.name not in (*own_values, "local")
        and f.init
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise InputError(
            f"{label} needs a value for {missing[0]}: pass `param = {label}.{missing[0]}=VALUE`",
            code="missing-option",
            field=f"{label}.{missing[0]}",
        )
    try:
        return typing.cast("Callable[..., Algorithm]", cls)(local=local, **own_values)
    except InputError:
        raise
    except Exception as error:  # a user's class may raise anything
        raise InputError(
            f"{label}: {' '.join(str(error).split()) or type(error).__name__}", code="user-code-failed", field=label
        ) from error


def _convert_values(algorithm: str, cls: type, values: Mapping[str, Value]) -> dict[str, typing.Any]:
    """Convert plain values to the types of a class's fields."""
    hints, converted = typing.get_type_hints(cls), dict[str, typing.Any]()
    for field, value in values.items():
        name, hint = f"{algorithm}.{field}", hints[field]
        parse = next((parse for kind, parse in PARSERS.items() if hint in (kind, kind | None)), None)
        if hint is Sampling:
            converted[field] = SAMPLINGS[canonical("sampling", str(value), SAMPLINGS)]
        elif hint is AmbiguitySet:
            converted[field] = by_name.parse(str(value))
        elif (
            (hint == ServerOptimizer | None and value is None)
            or (value == "full" and hint == int | None)
            or (value == "none" and types.NoneType in typing.get_args(hint))
        ):
            converted[field] = None
        elif parse is not None:
            converted[field] = parse(str(value))
        elif isinstance(value, bool) and hint is not bool:  # Python would accept true as 1
            raise InputError(f"{name} = {str(value).lower()}: expected a number", code="wrong-type", field=name)
        else:
            try:
                converted[field] = TypeAdapter(hint).validate_python(value)
            except ValidationError as error:
                raise InputError(f"{name} {value_problem(error)}", code="wrong-type", field=name) from None
    return converted
