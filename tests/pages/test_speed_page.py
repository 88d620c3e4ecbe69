"""The pages on speed and scale say what the benchmarks have stored."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("speed", "scale")}
SPEC = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
assert SPEC is not None
assert SPEC.loader is not None
TABLES = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(TABLES)


@pytest.mark.parametrize("name", TABLES.TABLES)
def test_tables(name):
    page = PAGES["scale" if name == "scaling" else "speed"]
    for table in TABLES.TABLES[name]:
        assert table(TABLES.stored(name)) in page


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    targets = [t for t in re.findall(r"\]\(([^)#]+)\)", PAGES[page]) if not t.startswith("http")]
    assert [target for target in targets if not (ROOT / "docs" / target).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_name_scripts_that_are_there(page):
    scripts = set(re.findall(r"python (benchmarks/\w+\.py)", PAGES[page]))
    assert scripts
    assert [script for script in scripts if not (ROOT / script).exists()] == []


def test_the_example_on_scale_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGES["scale"], flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    assert names["result"].rounds == 5  # pyright: ignore[reportAttributeAccessIssue]
