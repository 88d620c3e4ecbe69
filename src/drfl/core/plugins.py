"""Objects that installed packages add to drfl, found by their entry points."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points

from drfl.core.screen import say


def plugins(group: str) -> Iterator[tuple[str, object]]:
    """Load the entry points of a group, in the order of their names.

    A plug-in that cannot be loaded does not stop drfl: it is left out, and one line on stderr names it.

    Yields:
        Names and what they stand for.
    """
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        try:
            loaded = point.load()
        except Exception as error:
            say(f"drfl: cannot load the plug-in '{point.name}' ({point.value}): {error!r}", err=True)
        else:
            yield point.name, loaded
