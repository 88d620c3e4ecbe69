"""Representations of objects: short ones, and ones that are the same in every process."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import re
import reprlib
from contextlib import suppress
from typing import Any

from torch import Tensor

from drfl.core.hashing import digest_of

BRIEF = reprlib.Repr()
BRIEF.maxstring = BRIEF.maxother = 200
"""Abbreviates values in messages, which should stay on one line."""


def stable_repr(thing: object) -> str:
    """Return the ``repr`` without memory addresses, which differ between processes."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(thing))


def described(thing: object) -> str:
    """Describe a function or an object by its code and options, in the same way in every process.

    The code is the qualified name, with a digest of the source unless it belongs to drfl or torch.
    """

    def value_text(value: object) -> str:
        return f"tensor {digest_of([value])[:16]}" if isinstance(value, Tensor) else stable_repr(value)

    def with_options(text: str, options: dict[str, object]) -> str:
        return f"{text}({', '.join(f'{name}={value_text(value)}' for name, value in sorted(options.items()))})"

    if isinstance(thing, functools.partial):
        arguments = {str(place): value for place, value in enumerate(thing.args)}
        return with_options(described(thing.func), {**arguments, **thing.keywords})
    code: Any = thing if hasattr(thing, "__qualname__") else type(thing)
    text = f"{code.__module__}.{code.__qualname__}"
    if str(code.__module__).partition(".")[0] not in ("drfl", "torch"):
        with suppress(OSError, TypeError):  # code that was typed in has no source
            text += f" {hashlib.sha256(inspect.getsource(code).encode()).hexdigest()[:16]}"
    if code is thing:
        return text
    # A torch loss has its class weights among the buffers.
    options = {**getattr(thing, "__dict__", {}), **getattr(thing, "_buffers", {})}
    public = {name: value for name, value in options.items() if not name.startswith("_") and name != "training"}
    return with_options(text, public)


def short_repr(self: Any) -> str:  # noqa: ANN401 - any dataclass
    """Return the class with the fields that differ from their defaults, such as ``DRFA(m=10, gamma=0.01)``."""
    parts = []
    for field in dataclasses.fields(self):
        value = getattr(self, field.name)
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is dataclasses.MISSING or (value is not default and value != default):
            shown = value.__name__ if callable(value) and hasattr(value, "__name__") else repr(value)
            parts.append(f"{field.name}={shown}")
    return f"{type(self).__name__}({', '.join(parts)})"
