"""Representations of objects: short ones, and ones that are the same in every process."""

from __future__ import annotations

import dataclasses
import re
import reprlib
from typing import Any

BRIEF = reprlib.Repr()
BRIEF.maxstring = BRIEF.maxother = 200
"""Abbreviates values in messages, which should stay on one line."""


def stable_repr(thing: object) -> str:
    """Return the ``repr`` without memory addresses, which differ between processes."""
    return re.sub(" at 0x[0-9a-fA-F]+", "", repr(thing))  # numpy writes capitals


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
