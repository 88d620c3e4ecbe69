"""Runs the tutorials' notebooks, and stores what they show in them.

    python scripts/tutorials.py [NAME ...]

A notebook runs in a copy of the folders that it reads, so that nothing of it stays behind. Its cells and their outputs
are kept in docs/tutorials, where the site takes them from; escape codes of a terminal and paths of this machine are
taken out.
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

if TYPE_CHECKING:  # the packages for notebooks take seconds
    from nbformat import NotebookNode

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
READ = ("examples/own/hospitals", "evidence/results/drdm-table-3")
"""Folders of the repository that notebooks read."""
TIMEOUT = 900
"""Seconds that a cell may take."""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\[[0-9;]+m")
"""Codes of a terminal. Colours also without their first byte, which a Flower program's stream loses."""
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
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    from nbclient import NotebookClient

    # The commands of this environment, whatever the shell's PATH has; one thread, as the runs are small.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["OMP_NUM_THREADS"] = "1"
    with copy_of_the_tree() as folder:
        NotebookClient(notebook, timeout=TIMEOUT, resources={"metadata": {"path": str(folder)}}).execute()
        return cleaned(notebook, folder)


def cleaned(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Without what differs between two machines and two runs, as far as a program can tell."""
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
    """Without a terminal's escape codes, and with paths relative to the notebook's folder."""
    return ESCAPES.sub("", text).replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")


def joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Pieces of one stream, which come as they were written, as one output."""
    found: list[NotebookNode] = []
    for out in outputs:
        if found and out.output_type == found[-1].output_type == "stream" and out.name == found[-1].name:
            found[-1].text += out.text
        else:
            found.append(out)
    return found


def main() -> None:
    """Run those that are named, or all."""
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
