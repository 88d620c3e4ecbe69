"""Test that the tutorials run, shortened or (in long tests) whole, and contain no machine-specific output."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from scripts import notebook_pages, tutorials
from tests.support.scripts import ROOT

SHORT = {
    "hospitals": "ROUNDS, SEEDS = 2, 2",
    "algorithm": "ROUNDS, SEEDS, TRIALS = 2, 2, 1",
    "federation": "ROUNDS = 1",
    "table": "ROUNDS, SEEDS = 2, 2",
}
"""Notebook → content of its cell of parameters in the short test."""


def read(name):
    import nbformat  # this import takes a second

    return nbformat.read(tutorials.TUTORIALS / f"{name}.ipynb", as_version=4)


def tagged(cell, tag):
    return tag in cell.metadata.get("tags", [])


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.first if name == "federation" else ()) for name in SHORT]
)
def test_shortened_tutorial_runs_and_shows_outputs_of_the_stored_kinds(name):
    stored, fresh = read(name), read(name)
    for cell in fresh.cells:
        if tagged(cell, "parameters"):
            cell.source = SHORT[name]
    for old, new in zip(stored.cells, tutorials.executed(fresh).cells, strict=True):
        assert kinds(old) == kinds(new), old.source


@pytest.mark.long
def test_failed_cell_leaves_no_program():
    import nbformat
    from nbclient.exceptions import CellExecutionError

    notebook = read("federation")
    start = next(k for k, cell in enumerate(notebook.cells) if "start-superlink.sh" in cell.source)
    notebook.cells[start + 1 :] = [nbformat.v4.new_code_cell("1 / 0")]
    with pytest.raises(CellExecutionError):
        tutorials.executed(notebook)
    for port in (8765, 8771, 8772):
        with socket.socket() as probe:
            assert probe.connect_ex(("localhost", port)) != 0


def kinds(cell):
    """Return the types of a cell's outputs, without warnings, which depend on the parameters."""
    shown = [out for out in cell.get("outputs", []) if out.get("name") != "stderr"]
    return [(out.output_type, sorted(out.get("data", {}))) for out in shown]


def test_every_tutorial_exists():
    assert sorted(SHORT) == sorted(path.stem for path in tutorials.TUTORIALS.glob("*.ipynb"))


@pytest.mark.parametrize("name", SHORT)
def test_stored_output_is_complete_and_machine_independent(name):
    notebook = read(name)
    assert sum(tagged(cell, "parameters") for cell in notebook.cells) == 1
    numbers = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert numbers == list(range(1, len(numbers) + 1))  # the notebook was run once, in order
    text = (tutorials.TUTORIALS / f"{name}.ipynb").read_text(encoding="utf-8")
    for word in ("\\u001b", "/tmp", str(ROOT), str(Path.home()), "Traceback"):
        assert word not in text, word


def test_escape_codes_and_folders_are_removed():
    assert tutorials.plain("\x1b[1;31min \x1b[0m/a/b/runs/x", Path("/a/b")) == "in runs/x"


@pytest.mark.long
def test_page_has_the_notebooks_pictures():
    text, pictures = notebook_pages.page(tutorials.TUTORIALS / "algorithm.ipynb")
    assert pictures
    for name, content in pictures.items():
        assert f"]({name})" in text
        assert content.startswith(b"\x89PNG")
