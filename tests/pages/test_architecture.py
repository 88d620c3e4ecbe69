"""Test the picture of the architecture: each module is in one box, and each import is an arrow or a path of arrows."""

from __future__ import annotations

import ast
import re
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from scripts import architecture
from scripts.architecture import ALL, PARTS, SOURCE, direct, folder, graph, levels, package
from scripts.code_size import imported
from scripts.layered_drawing import LEGEND, Box, drawing

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def imports():
    return graph()


@pytest.fixture(scope="module")
def picture():
    return ElementTree.fromstring(architecture.picture())


def test_every_package_is_in_the_picture_once():
    there = {path.parent.name for path in (SOURCE / "drfl").glob("*/__init__.py")} | {"drfl_papers"}
    assert sorted(name for parts in PARTS.values() for name in parts) == sorted(there)
    assert all((folder(name) / part.first).exists() for name, part in ALL.items())


def test_drfl_has_no_modules_outside_packages():
    assert {path.name for path in (SOURCE / "drfl").glob("*.py")} == {"__init__.py", "__main__.py"}


def test_known_imports_are_found(imports):
    assert {"experiments", "flower", "report"} <= imports["cli"]
    assert {"federation", "ambiguity"} <= imports["algorithms"]
    assert "engine" not in imports["algorithms"] | imports["training"]
    assert imports["core"] == set()
    assert not any("drfl_papers" in others for others in imports.values())
    assert max(levels(imports).values()) < 10


def test_kinds_of_imports_that_count():
    code = """
        import drfl.core.key, torch
        from drfl import data
        from drfl.engine.loop_engine import Loop
        if TYPE_CHECKING:
            from drfl_papers import spec
        else:
            import drfl.task.task
        def f():
            from drfl.report import html
    """
    found = [package(module) for module in imported(ast.parse("if True:\n" + code))]
    assert sorted(filter(None, found)) == ["core", "data", "engine", "report", "task"]


def test_arrows_are_the_irreducible_imports(imports, picture):
    assert direct({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}
    height = levels(imports)
    assert all(height[name] > height[other] for name, others in imports.items() for other in others)
    arrows = direct(imports)
    assert len(picture.findall(f"{SVG}path[@class='arrow']")) == sum(map(len, arrows.values()))


def test_picture_has_every_part_and_no_overlapping_boxes(picture):
    names = [text.text for text in picture.iter(f"{SVG}text") if text.get("class") == "name"]
    assert sorted(filter(None, names)) == sorted(ALL)
    boxes = [
        tuple(float(rect.get(key, "")) for key in ("x", "y", "width", "height"))
        for rect in picture.iter(f"{SVG}rect")
        if rect.get("class", "").startswith("box ")
    ]
    for (x, y, w, h), (u, v, s, t) in combinations(boxes, 2):
        assert x + w <= u or u + s <= x or y + h <= v or v + t <= y
    width, height = map(float, (picture.get("viewBox") or "").split()[2:])
    assert all(x >= 0 and x + w <= width and y >= 0 and y + h <= height for x, y, w, h in boxes)


def test_functions_on_the_page_are_in_the_named_files():
    page = (architecture.PICTURE.parent / "architecture.md").read_text(encoding="utf-8")
    walks = page.partition("## Three paths")[2].partition("## Why")[0]
    named = re.findall(r"`([\w.]+)(?:\([^`]*\))?` \(`([\w/]+\.py)`\)", walks)
    assert len(named) > 20
    for name, file in named:
        tree = ast.parse((SOURCE / "drfl" / file).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        if not name.startswith("fed."):
            assert {*name.split(".")} <= defined, f"{name} is not in {file}"


def test_every_colour_is_in_the_legend():
    assert [colour for colour, _ in LEGEND] == list(PARTS)


def test_drawing_is_reproducible_with_few_crossings():
    boxes = {name: Box(name, "", "core") for name in "abcdef"}
    rows, arrows = [["a", "b"], ["c", "d"], ["e", "f"]], [("a", "d"), ("b", "c"), ("c", "f"), ("d", "e"), ("a", "e")]
    text = drawing("six", rows, boxes, arrows)
    assert text == drawing("six", rows, boxes, arrows)
    at = {name: float(x) for x, name in re.findall(r'<text class="name" x="([\d.]+)" y="\d+">(\w)<', text)}
    for row, other in pairwise(rows):
        ends = [(at[a], at[b]) for a, b in arrows if a in row and b in other]
        assert not any((x - u) * (y - v) < 0 for (x, y), (u, v) in combinations(ends, 2))
