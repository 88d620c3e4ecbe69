"""A report as a single HTML page."""

from __future__ import annotations

import functools
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from drfl.core.output_files import write_bytes
from drfl.report.content import Document, to_plain

if TYPE_CHECKING:
    from jinja2 import Environment


def render_html(document: Document) -> str:
    """Render the page as one HTML text; the same document gives the same text.

    The page loads nothing from the network and runs no script. Its content security policy forbids both.
    """
    style = resources.files("drfl.report").joinpath("style.css").read_text(encoding="utf-8").strip()
    return _environment().get_template("report.html.j2").render(document=to_plain(document), style=style)


def write_html(document: Document, path: Path) -> None:
    """Write the page to a file atomically.

    Args:
        document: The content.
        path: The file, in an existing folder; an existing file is replaced.

    Raises:
        InputError: If the file cannot be written.
    """
    write_bytes(render_html(document).encode(), Path(path))


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("drfl.report"),
        # Names of clients and columns come from users and sites, and must not become HTML.
        autoescape=True,
        # A misspelt name in a template is then an error instead of an empty text.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
