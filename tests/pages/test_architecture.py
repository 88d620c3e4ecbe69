"""The picture of the architecture: every module in one box, every import an arrow or a path of arrows."""

from __future__ import annotations

import ast
import re
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from scripts import architecture
from scripts.architecture import ALL, PARTS, SOURCE, direct, graph, imported, levels
from scripts.layered_drawing import LEGEND, Box, drawing

IMPORTS = graph()
SVG = "{http://www.w3.org/2000/svg}"
PICTURE = ElementTree.fromstring(architecture.picture())


def test_every_module_is_in_exactly_one_part():
    named = [module for name, part in ALL.items() for module in part.modules or (name,)]
    there = {path.stem for path in SOURCE.glob("*.py")} | {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert sorted(named) == sorted(there - {"__init__"})
    assert all((SOURCE / part.first).exists() for part in ALL.values())


def test_a_module_that_no_part_names_is_told(monkeypatch):
    monkeypatch.delitem(architecture.HOMES, "key")
    with pytest.raises(architecture.UnknownModuleError, match=r"src/drfl/key .*scripts/architecture\.py"):
        graph()


def test_some_imports_that_are_known():
    assert {"experiments", "deploy", "papers"} <= IMPORTS["cli"]
    assert {"federation", "ambiguity"} <= IMPORTS["algorithm"]
    assert "engine" not in IMPORTS["algorithms"] | IMPORTS["algorithm"] | IMPORTS["loop"]
    assert IMPORTS["base"] == set()


def test_what_counts_as_an_import():
    code = """
        import drfl.core.key, torch
        from drfl import checks
        from drfl.engine.loop import Loop
        if TYPE_CHECKING:
            from drfl_papers import spec
        else:
            import drfl.task.task
        def f():
            from drfl.data import load
    """
    tree = ast.parse("if True:\n" + code)
    assert sorted(imported(tree)) == ["checks", "data", "engine", "key", "task"]


def test_arrows_are_the_imports_that_do_not_follow_from_others():
    assert direct({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}
    height = levels(IMPORTS)
    assert all(height[name] > height[other] for name, others in IMPORTS.items() for other in others)
    arrows = direct(IMPORTS)
    assert len(PICTURE.findall(f"{SVG}path[@class='arrow']")) == sum(map(len, arrows.values()))


def test_the_picture_has_every_part_and_no_boxes_overlap():
    names = [text.text for text in PICTURE.iter(f"{SVG}text") if text.get("class") == "name"]
    assert sorted(filter(None, names)) == sorted(ALL)
    boxes = [
        tuple(float(rect.get(key, "")) for key in ("x", "y", "width", "height"))
        for rect in PICTURE.iter(f"{SVG}rect")
        if rect.get("class", "").startswith("box ")
    ]
    for (x, y, w, h), (u, v, s, t) in combinations(boxes, 2):
        assert x + w <= u or u + s <= x or y + h <= v or v + t <= y
    width, height = map(float, (PICTURE.get("viewBox") or "").split()[2:])
    assert all(x >= 0 and x + w <= width and y >= 0 and y + h <= height for x, y, w, h in boxes)


def test_every_colour_is_in_the_legend():
    assert [colour for colour, _ in LEGEND] == list(PARTS)


def test_a_drawing_is_the_same_every_time_and_without_needless_crossings():
    boxes = {name: Box(name, "", "core") for name in "abcdef"}
    rows, arrows = [["a", "b"], ["c", "d"], ["e", "f"]], [("a", "d"), ("b", "c"), ("c", "f"), ("d", "e"), ("a", "e")]
    text = drawing("six", rows, boxes, arrows)
    assert text == drawing("six", rows, boxes, arrows)
    at = {name: float(x) for x, name in re.findall(r'<text class="name" x="([\d.]+)" y="\d+">(\w)<', text)}
    for row, other in pairwise(rows):
        ends = [(at[a], at[b]) for a, b in arrows if a in row and b in other]
        assert not any((x - u) * (y - v) < 0 for (x, y), (u, v) in combinations(ends, 2))
