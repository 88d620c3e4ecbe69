"""Descriptions of functions and objects by which a run recognises the code and the options that it began with."""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
from collections.abc import Iterable
from contextlib import suppress
from types import CodeType, FunctionType, MethodType, ModuleType

import numpy as np
from torch import Tensor, nn

from drfl.core.hashing import digest_of
from drfl.core.short_repr import stable_repr

PACKAGES = ("drfl", "torch")
"""Packages whose code is described by its name, because the versions of a run are stored anyway."""

CONSTANTS = (bool, int, float, complex, str, bytes, tuple, frozenset, np.ndarray, Tensor)
"""Types of values outside functions that are part of the code that reads them."""


def described(thing: object, known: frozenset[int] = frozenset()) -> str:
    """Describe a function or an object by its code and options, in the same way in every process.

    Args:
        thing: The function or object.
        known: The ids of objects that are described elsewhere, such as the layers of a model, whose weights are
            compared too. Of these, only the type is named.
    """
    within = known | {id(thing)}
    if isinstance(thing, functools.partial):
        arguments = {str(place): value for place, value in enumerate(thing.args)}
        return _with_options(described(thing.func, within), {**arguments, **thing.keywords}, within)
    if isinstance(thing, MethodType):
        return f"{described(thing.__func__, within)} of {value_text(thing.__self__, within)}"
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    text = f"{kind.__module__}.{getattr(kind, '__qualname__', '')}"
    if not is_of_package(kind):
        if isinstance(kind, type):
            with suppress(OSError, TypeError):  # a class that was typed in has no source
                text += f" {hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()[:12]}"
        else:
            text += f" {code_of(kind, within)}"
    if kind is thing:
        return text
    # A torch loss has its class weights among the buffers.
    options = {**getattr(thing, "__dict__", {}), **getattr(thing, "_buffers", {})}
    if isinstance(thing, nn.Module) and id(thing) not in known:
        options |= {**thing._parameters, **thing._modules}
    return _with_options(text, {k: v for k, v in options.items() if not k.startswith("_") and k != "training"}, within)


def value_text(value: object, known: frozenset[int] = frozenset()) -> str:
    """Describe a value by its content, in the same way in every process; plain values by their ``repr``.

    ``known`` is that of :func:`described`.
    """
    if isinstance(value, Tensor):
        return f"tensor {digest_of([value])[:12]}"
    if hasattr(value, "__array__") and getattr(value, "ndim", 0):  # the repr of a large array or table is abridged
        array = np.asarray(value)
        content = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
        return f"array {array.dtype} {array.shape} {hashlib.sha256(content).hexdigest()[:12]}"
    if id(value) in known:
        return type(value).__qualname__
    within = known | {id(value)}
    if type(value) in (list, tuple, set, frozenset):
        assert isinstance(value, Iterable)
        texts = [value_text(entry, within) for entry in value]
        # The order of a set differs between processes.
        return f"{type(value).__name__}({', '.join(sorted(texts) if isinstance(value, set | frozenset) else texts)})"
    if type(value) is dict:
        return f"{{{', '.join(f'{key!r}: {value_text(entry, within)}' for key, entry in value.items())}}}"
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, FunctionType | MethodType | functools.partial | type | nn.Module):
        return described(value, known)
    # The default repr names only the type.
    return described(value, known) if type(value).__repr__ is object.__repr__ else stable_repr(value)


def is_of_package(kind: object) -> bool:
    """Return whether a function or class belongs to one of :data:`PACKAGES`."""
    return str(kind.__module__).partition(".")[0] in PACKAGES


def code_of(function: object, known: frozenset[int] = frozenset()) -> str:
    """Return a digest of a function's code, its default values and the variables that it reads.

    These are variables of enclosing functions, and constants and functions of its own module. The digest is
    equal for equal code at any place and in any layout. For other objects it is the name of their type.
    """
    # The arguments of a partial do not count.
    while isinstance(function, functools.partial):
        function = function.func
    # Otherwise all functions with the same decorator would look equal.
    chain = [function]
    while callable(wrapped := getattr(chain[-1], "__wrapped__", None)):
        chain.append(wrapped)
    code = getattr(chain[-1], "__code__", None)
    if not isinstance(code, CodeType):
        return type(function).__qualname__
    known |= set(map(id, chain))
    values = list[object]()
    for link in chain:
        values += getattr(link, "__defaults__", None) or ()
        values += sorted((getattr(link, "__kwdefaults__", None) or {}).items())
        for cell in getattr(link, "__closure__", None) or ():
            with suppress(ValueError):  # the variable has no value yet
                values.append(cell.cell_contents)
        if isinstance(link, FunctionType):
            values += sorted(_outside(link).items())
    content, texts = _content(code), [value_text(value, known) for value in values]
    return hashlib.sha256(repr((content, *texts) if texts else content).encode()).hexdigest()[:12]


def _outside(function: FunctionType) -> dict[str, object]:
    """Return the constants of its module that a function reads, and the code of functions there that it calls.

    Other packages do not count, nor do objects that may change during a run, such as a list of messages.
    """
    found, waiting = dict[str, object](), [function]
    while waiting:
        reader = waiting.pop()
        for name in (_globals_of(reader.__code__) & reader.__globals__.keys()) - found.keys():
            value = reader.__globals__[name]
            if isinstance(value, FunctionType) and value.__module__ == function.__module__:
                found[name] = _content(value.__code__)
                waiting.append(value)
            elif isinstance(value, CONSTANTS):
                found[name] = value
    return found


def _globals_of(code: CodeType) -> set[str]:
    """Return the names outside all functions that code reads and does not set."""
    steps = list(dis.get_instructions(code))
    read, written = ({s.argval for s in steps if s.opname == f"{what}_GLOBAL"} for what in ("LOAD", "STORE"))
    return read.union(*(_globals_of(inner) for inner in code.co_consts if isinstance(inner, CodeType))) - written


def _content(code: CodeType) -> tuple[object, ...]:
    # The order of sets among the constants differs between processes.
    constants = [
        _content(c) if isinstance(c, CodeType) else sorted(map(repr, c)) if isinstance(c, frozenset) else repr(c)
        for c in code.co_consts
    ]
    return (code.co_code, code.co_names, code.co_varnames, *constants)


def _with_options(text: str, options: dict[str, object], known: frozenset[int]) -> str:
    return f"{text}({', '.join(f'{name}={value_text(value, known)}' for name, value in sorted(options.items()))})"
