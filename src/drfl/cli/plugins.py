"""Commands that installed packages add, found by their entry points in the group ``drfl.commands``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

import typer

from drfl.cli import signals
from drfl.core.screen import say

GROUP = "drfl.commands"


def add_commands(app: typer.Typer, arguments: Sequence[str]) -> None:
    """Add the commands of other packages to the grammar, if these arguments can need one.

    An entry point names a function that typer can call, which returns an exit code, such as one made by
    :func:`drfl.cli.options.command`. Looking for entry points takes longer than everything else before a command
    starts, so drfl does it for the list of all commands and for names that it does not know.
    """
    first = arguments[0] if arguments else "--help"
    own = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    own |= {group.typer_instance.info.name for group in app.registered_groups if group.typer_instance}
    if first in own or (first.startswith("-") and first != "--help"):
        return
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        if point.name in own:
            continue  # a second installation of the same package, or a name that is drfl's
        try:
            function = point.load()
        except Exception as error:
            say(f"drfl: the command '{point.name}' ({point.value}) cannot be loaded: {error!r}", err=True)
            continue
        own.add(point.name)
        app.command(point.name)(_stoppable(function))


def _stoppable(function: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(function)
    def called(*values: object, **named: object) -> int:
        with signals.as_stopped():
            return function(*values, **named)

    return called
