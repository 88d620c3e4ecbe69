"""Plug-ins: objects that installed packages add to drfl through entry points."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points

from drfl.core.screen import say


def plugins(group: str) -> Iterator[tuple[str, object]]:
    """Load the entry points of a group, in the order of their names.

    A plug-in that cannot be loaded is skipped, with one line on stderr that names it.

    Yields:
        The name and the loaded object of each entry point.
    """
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        try:
            loaded = point.load()
        except Exception as error:
            say(f"drfl: cannot load the plug-in '{point.name}' ({point.value}): {error!r}", err=True)
        else:
            yield point.name, loaded
