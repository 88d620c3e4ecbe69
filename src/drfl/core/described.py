"""Descriptions of functions and objects by which a run recognises the code and the options that it began with."""

from __future__ import annotations

import functools
import hashlib
import inspect
from contextlib import suppress
from typing import Any

from torch import Tensor

from drfl.core.hashing import digest_of
from drfl.core.short_repr import stable_repr


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
