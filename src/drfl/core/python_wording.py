"""The wording of messages in Python: names of arguments instead of options of the command."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from drfl.core.errors import DrflError, Notice

P = ParamSpec("P")
T = TypeVar("T")

COMMAND = re.compile(r"'drfl \w+ --resume --out [^']*'")
"""A command that continues unfinished work."""

OPTION = re.compile(r"(?<![\w-])--(?:no-)?([a-z][a-z-]*)")

SWITCHES = frozenset(("resume", "overwrite", "stand_in"))
"""Arguments that are true or false."""


def in_python(text: str) -> str:
    """Return a message with arguments in place of options, such as ``overwrite=True`` for ``--overwrite``."""

    def argument(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_")
        return f"{name}=True" if name in SWITCHES else name

    # Whole commands first, because they contain options.
    plain = OPTION.sub(argument, COMMAND.sub("the same call with resume=True", text))
    return Notice(plain, text.code, text.field) if isinstance(text, Notice) else plain


def with_python_wording(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function raise drfl's errors with :func:`in_python` wording."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        try:
            return function(*args, **options)
        except DrflError as error:
            # The same exception with another text, so that its type, code and traceback stay.
            error.args = tuple(in_python(part) if isinstance(part, str) else part for part in error.args)
            raise

    return call
