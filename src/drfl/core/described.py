"""Descriptions of functions and objects by which a run recognises the code and the options that it began with."""

from __future__ import annotations

import functools
import hashlib
import inspect
from contextlib import suppress
from types import CodeType

from torch import Tensor

from drfl.core.hashing import digest_of
from drfl.core.short_repr import stable_repr

PACKAGES = ("drfl", "torch")
"""Packages whose code is described by its name, because the versions of a run are stored anyway."""


def described(thing: object) -> str:
    """Describe a function or an object by its code and options, in the same way in every process."""
    if isinstance(thing, functools.partial):
        arguments = {str(place): value for place, value in enumerate(thing.args)}
        return _with_options(described(thing.func), {**arguments, **thing.keywords})
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    text = f"{kind.__module__}.{getattr(kind, '__qualname__', '')}"
    if not is_of_package(kind):
        if isinstance(kind, type):
            with suppress(OSError, TypeError):  # a class that was typed in has no source
                text += f" {hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()[:12]}"
        else:
            text += f" {code_of(kind)}"
    if kind is thing:
        return text
    # A torch loss has its class weights among the buffers.
    options = {**getattr(thing, "__dict__", {}), **getattr(thing, "_buffers", {})}
    return _with_options(text, {k: v for k, v in options.items() if not k.startswith("_") and k != "training"})


def is_of_package(kind: object) -> bool:
    """Return whether a function or class belongs to one of :data:`PACKAGES`."""
    return str(kind.__module__).partition(".")[0] in PACKAGES


def code_of(function: object) -> str:
    """Return a digest of a function's code, equal for equal code at any place and in any layout.

    For other objects it is the name of their type.
    """
    # The arguments of a partial do not count.
    while isinstance(function, functools.partial):
        function = function.func
    # Otherwise all functions with the same decorator would look equal.
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    if not isinstance(code, CodeType):
        return type(function).__qualname__
    return hashlib.sha256(repr(_content(code)).encode()).hexdigest()[:12]


def _content(code: CodeType) -> tuple[object, ...]:
    # The order of sets among the constants differs between processes.
    constants = [
        _content(c) if isinstance(c, CodeType) else sorted(map(repr, c)) if isinstance(c, frozenset) else repr(c)
        for c in code.co_consts
    ]
    return (code.co_code, code.co_names, code.co_varnames, *constants)


def _with_options(text: str, options: dict[str, object]) -> str:
    shown = (
        f"{name}={f'tensor {digest_of([value])[:12]}' if isinstance(value, Tensor) else stable_repr(value)}"
        for name, value in sorted(options.items())
    )
    return f"{text}({', '.join(shown)})"
