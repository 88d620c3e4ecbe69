"""Objects by the texts that configurations use for them, as in ``simplex:floor=0.01``."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from drfl.core.errors import InputError, unknown

T = TypeVar("T")

TYPES: Mapping[object, Callable[[str], float]] = {float: float, "float": float, int: int, "int": int}
"""The options that can be given: numbers."""


def named(what: str, known: Mapping[str, Callable[..., T]], text: str) -> T:
    """What a text of the form ``name:option=number,…`` stands for; case does not matter, nor - for _.

    Args:
        what: the kind of object, e.g. ``"ambiguity set"``.
        known: how to make one, by name; its options are those arguments that are numbers.
        text: the text.

    Raises:
        InputError: there is no such name, an option is unknown, missing, given twice or no number, or out of range.
    """
    name, _, rest = (part.strip() for part in text.partition(":"))
    # Names are written with dashes; people also type capitals and underscores.
    key = name.lower().replace("_", "-")
    if key not in known:
        raise unknown(what, name, known)
    # A text can only give numbers; other parameters keep their defaults.
    parameters = [p for p in inspect.signature(known[key]).parameters.values() if p.annotation in TYPES]
    options = {p.name: TYPES[p.annotation] for p in parameters}

    def refused(reason: str) -> InputError:
        form = ",".join(f"{option}=number" for option in options)
        remedy = f"the form name:option=number,… is here {key}:{form}" if options else f"write {key} alone"
        return InputError(f"{what} '{text}': {reason}; {remedy}", code="invalid-format", field=what)

    given: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        option, _, number = (piece.strip() for piece in part.partition("="))
        if option not in options:
            raise refused(f"it has no option '{option}'")
        if option in given:
            raise refused(f"{option} is given twice")
        try:
            given[option] = options[option](number)
        except ValueError:
            kind = "whole number" if options[option] is int else "number"
            raise refused(f"{option}={number} is no {kind}") from None
    if missing := [p.name for p in parameters if p.default is p.empty and p.name not in given]:
        raise refused(f"{missing[0]} is missing")
    return known[key](**given)


def text_of(known: Mapping[str, Callable[..., object]], thing: object) -> str:
    """The shortest text that :func:`named` makes a dataclass of numbers from: options with their defaults are left out.

    Raises:
        ValueError: The dataclass is not a known one, or one of its fields is not a number.
    """
    name = next((name for name, make in known.items() if make is type(thing)), None)
    if name is None:
        raise ValueError(f"{type(thing).__name__} has no name")
    options: list[str] = []
    for field in dataclasses.fields(cast("Any", thing)):
        value = getattr(thing, field.name)
        if value == field.default:
            continue
        if not isinstance(value, int | float):
            raise ValueError(f"{field.name} = {value!r} has no text")
        options.append(f"{field.name}={value!r}")  # repr keeps every digit, so the text gives an equal object
    return f"{name}:{','.join(options)}" if options else name
