"""Convert the tutorials' notebooks, with their stored outputs, to pages of the documentation site."""

from __future__ import annotations

import base64
import functools
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"


class NotebookPage(NamedTuple):
    """A page made from a notebook.

    Args:
        text: in Markdown.
        pictures: file name as used in the text → content.
    """

    text: str
    pictures: dict[str, bytes]


@functools.cache
def page(path: Path) -> NotebookPage:
    """Convert a notebook with its outputs."""
    import nbformat  # imported here because it takes seconds, like nbconvert
    from nbconvert import MarkdownExporter

    notebook = nbformat.read(path, as_version=4)
    pictures = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(data.pop("image/png"))
                data["text/markdown"] = f"![What the cell above draws]({name})"
            elif "text/html" in data:
                # so that a table wider than the screen can be scrolled
                data["text/html"] = f'<div class="shown">{data["text/html"]}</div>'
    text, _ = MarkdownExporter().from_notebook_node(notebook)
    title, _, rest = text.partition("\n")
    head = (
        f'<a href="{path.name}" download>This page is a notebook: download it</a>, or open it in a checkout, in '
        f"`docs/tutorials`. The outputs are those of `python scripts/tutorials.py {path.stem}`."
    )
    return NotebookPage(f"{title}\n\n{head}\n{rest}", pictures)


def pages() -> dict[str, Path]:
    """Return the notebooks by the path of their page in the site."""
    return {f"tutorials/{path.stem}.md": path for path in sorted(FOLDER.glob("*.ipynb"))}
