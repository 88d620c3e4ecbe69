"""Screen output. All printed text passes one filter that removes terminal control characters."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.style import StyleType
from rich.table import Table
from rich.text import Text

from drfl.core.errors import printable

LONGEST = 200
"""Maximum number of characters in a table cell."""

PIPE_WIDTH = 160
"""Maximum width in characters of a table that is not printed on a terminal."""


class Screen(Console):
    """A console for lines and tables. It prints each text as one line, without markup.

    Args:
        stderr: Whether to write to stderr instead of stdout.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        terminal = (sys.stderr if stderr else sys.stdout).isatty()
        # A file or pipe has no width: rich would assume 80 columns and shorten the numbers of wider tables.
        width = None if terminal or "COLUMNS" in os.environ else PIPE_WIDTH
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=not terminal, width=width)

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 - as in the base class
        """Print each text as one line, and render any other object with rich."""
        super().print(*(plain(with_options(part)) if isinstance(part, str) else part for part in objects), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the filtered segments of anything that rich prints, including bars and tables."""
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text.isprintable() or text == "\n":
                yield segment
            else:
                clean = "\n".join(map(printable, text.split("\n")))
                yield Segment(clean, segment.style)


class ScreenTable(Table):
    """A table whose cells are one-line plain text. Pass :class:`rich.text.Text` for anything else.

    Args:
        headings: Column headings.
        title: Text above the table.
        text: Headings of the columns with text. The others have numbers, which end at the right. None = all have text.
        no_wrap: Headings of the columns whose cells never take several lines.
        options: Options of :class:`rich.table.Table`.
    """

    def __init__(
        self,
        *headings: str,
        title: str | None = None,
        text: Collection[str] | None = None,
        no_wrap: Collection[str] = (),
        **options: Any,  # noqa: ANN401 - as in the base class
    ) -> None:
        super().__init__(title=None if title is None else plain(title), title_justify="left", **options)
        for heading in headings:
            justify = "left" if text is None or heading in text else "right"
            self.add_column(heading, justify=justify, no_wrap=heading in no_wrap)

    def add_column(self, header: RenderableType = "", *args: Any, **options: Any) -> None:  # noqa: ANN401
        """Add a column. If the table is too wide, long cells take several lines, and no text is cut."""
        super().add_column(header, *args, **{"overflow": "fold", **options})

    def add_row(self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False) -> None:
        """Add a row."""
        shown = (Text(printable(cell, LONGEST)) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*shown, style=style, end_section=end_section)


warnings: list[str] = []
"""The warnings that the command has printed. The JSON object of an error repeats them."""


option_names: dict[str, str] = {}
"""Setting → its option, such as "data_schema" → "--schema", while a command runs; empty in Python."""

SETTING = re.compile(r"`(\w+)(?: = ([^`]*))?`")
"""A setting in a message: its name in backticks, perhaps with a value."""

QUOTE = "'"


def with_options(text: str) -> str:
    """Replace the settings in a message by the options of the command.

    Messages write a setting as Python and TOML files do, in backticks. A command prints "--lr 0.1" for "`lr = 0.1`".
    """

    def as_option(found: re.Match[str]) -> str:
        option, value = option_names.get(found[1]), found[2]
        if option is None:
            return found[0]
        return option if value is None else f"{option} {shlex.quote(value.strip(QUOTE))}"

    return SETTING.sub(as_option, text)


def say(text: object, err: bool = False) -> None:
    """Print a text as one line on stdout, or on stderr if ``err`` is true."""
    print(printable(with_options(str(text))), file=sys.stderr if err else sys.stdout, flush=True)


def plain(text: str) -> Text:
    """Convert a string to one line of rich text without markup, for example for the title of a table."""
    return Text(printable(text))


class OneLine(logging.Formatter):
    """A log formatter that removes terminal control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, name options as the command does, and remove control characters from each of its lines."""
        return "\n".join(printable(line) for line in with_options(super().format(record)).split("\n"))
