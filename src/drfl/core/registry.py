"""Create objects from short texts in configurations, such as ``simplex:floor=0.01``, and the reverse."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from drfl.core.errors import InputError, unknown

T = TypeVar("T")

TYPES: Mapping[object, Callable[[str], float]] = {float: float, "float": float, int: int, "int": int}
"""Types of the options that a text can set, with their parsers. Only numbers are possible."""


def from_text(what: str, known: Mapping[str, Callable[..., T]], text: str) -> T:
    """Create the object that a text ``name:option=number,…`` describes.

    Case does not matter, and _ may be written for -.

    Args:
        what: Kind of object for messages, such as ``"ambiguity set"``.
        known: Constructors by name. Their options are the parameters that are numbers.
        text: The text.

    Raises:
        InputError: If the name or an option is unknown, or an option is missing, repeated, not a number or out of
            range.
    """
    name, _, rest = (part.strip() for part in text.partition(":"))
    # Names are written with hyphens, but people also type capitals and underscores.
    key = name.lower().replace("_", "-")
    if key not in known:
        raise unknown(what, name, known)
    return call_with(what, text, key, known[key], rest)


def call_with(what: str, text: str, name: str, make: Callable[..., T], rest: str) -> T:
    """Create an object with the options ``option=number,…``.

    Args:
        what: Kind of object for messages.
        text: The whole text for messages.
        name: The part of the text that names the constructor, for messages.
        make: The constructor. Its options are the parameters that are numbers.
        rest: The part of the text with the options.

    Raises:
        InputError: If an option is unknown, missing, repeated, not a number or out of range.
    """
    # A text can only set numbers; other parameters keep their defaults.
    parameters = [p for p in inspect.signature(make).parameters.values() if p.annotation in TYPES]
    options = {p.name: TYPES[p.annotation] for p in parameters}

    def error(reason: str) -> InputError:
        form = ",".join(f"{option}=number" for option in options)
        remedy = f"Write it as {name}:{form}" if options else f"Write {name} without options"
        return InputError(f"{what} '{text}': {reason}. {remedy}", code="invalid-format", field=what)

    values: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        option, _, number = (piece.strip() for piece in part.partition("="))
        if option not in options:
            raise error(f"unknown option '{option}'")
        if option in values:
            raise error(f"option {option} is repeated")
        try:
            values[option] = options[option](number)
        except ValueError:
            kind = "an integer" if options[option] is int else "a number"
            raise error(f"{option} must be {kind}, got '{number}'") from None
    if missing := [p.name for p in parameters if p.default is p.empty and p.name not in values]:
        raise error(f"option {missing[0]} is missing")
    return make(**values)


def text_of(known: Mapping[str, Callable[..., object]], thing: object) -> str:
    """Return the shortest text from which :func:`from_text` creates a dataclass of numbers; defaults are omitted.

    Raises:
        ValueError: If the class is not in ``known``, or one of the fields is not a number.
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
        options.append(f"{field.name}={value!r}")  # repr keeps every digit, so the text gives an equal object.
    return f"{name}:{','.join(options)}" if options else name
