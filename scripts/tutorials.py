"""Run the tutorials' notebooks and store their outputs.

    python scripts/tutorials.py [NAME ...]

A notebook runs in a copy of the folders that it reads, so that it leaves no files behind. Its cells and their outputs
are stored in docs/tutorials, from which the site is built, without terminal escape codes and paths of this machine.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing the packages for notebooks takes seconds
    from nbformat import NotebookNode

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
READ = ("examples/own/hospitals", "evidence/results/drdm-table-3")
"""Folders of the repository that notebooks read."""
TIMEOUT = 900
"""Maximum duration of a cell in seconds."""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\[[0-9;]+m")
"""Terminal escape codes. Colour codes also match without their first byte, which Flower's output loses."""
WARNING_PLACE = re.compile(r"(?<!\S)\S*ipykernel_\d+/\d+\.py:\d+: (.*\n)  .*\n?")
"""The place of a warning in a notebook's temporary file, the warning, and the line of code."""
KEPT = ("text/plain", "text/html", "text/markdown", "image/png")
"""Kinds of output that the site shows."""


@contextmanager
def copy_of_the_tree() -> Iterator[Path]:
    """Create a temporary docs/tutorials with the files that its notebooks read."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for path in READ:
            shutil.copytree(ROOT / path, root / path)
        folder = root / "docs" / "tutorials"
        folder.mkdir(parents=True)
        yield folder


def executed(notebook: NotebookNode) -> NotebookNode:
    """Run a notebook from beginning to end, and return it with its outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: If a cell fails.
    """
    from nbclient import NotebookClient

    # Use the commands of this environment regardless of the shell's PATH, and one thread, because the runs are small.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["OMP_NUM_THREADS"] = "1"
    with copy_of_the_tree() as folder:
        NotebookClient(notebook, timeout=TIMEOUT, resources={"metadata": {"path": str(folder)}}).execute()
        return cleaned(notebook, folder)


def cleaned(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Remove content that differs between machines and between runs, as far as it can be recognised."""
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for cell in notebook.cells:
        cell.metadata = {"tags": cell.metadata.tags} if cell.metadata.get("tags") else {}
        if cell.cell_type != "code":
            continue
        cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr" or "TqdmWarning" not in out.text]
        for out in cell.outputs:
            if "text" in out:
                out.text = plain(out.text, folder)
            if "data" in out:
                out.data = {kind: plain(out.data[kind], folder) for kind in KEPT if kind in out.data}
                out.metadata = {}
        cell.outputs = joined(cell.outputs)
    return notebook


def plain(text: str, folder: Path) -> str:
    """Remove terminal escape codes and the places of warnings, and make paths relative to the notebook's folder."""
    return WARNING_PLACE.sub(r"\1", ESCAPES.sub("", text)).replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")


def joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Join successive pieces of a stream into one output."""
    found: list[NotebookNode] = []
    for out in outputs:
        if found and out.output_type == found[-1].output_type == "stream" and out.name == found[-1].name:
            found[-1].text += out.text
        else:
            found.append(out)
    return found


def main() -> None:
    """Run the named notebooks, or all."""
    import nbformat

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sorted(path.stem for path in TUTORIALS.glob("*.ipynb"))
    parser.add_argument("names", nargs="*", choices=known, default=[], help="all, if none is named")
    for name in parser.parse_args().names or known:
        path = TUTORIALS / f"{name}.ipynb"
        notebook = executed(nbformat.read(path, as_version=4))
        nbformat.write(notebook, path)
        print(f"{path.relative_to(ROOT)}: run and stored")


if __name__ == "__main__":
    main()
