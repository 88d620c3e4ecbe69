"""Test scripts/code_size.py on a small source with known numbers."""

from __future__ import annotations

import pytest
from scripts.code_size import Source, called_once, counted, levels

FILES = {
    "drfl/__init__.py": '"""All."""\n',
    "drfl/core/__init__.py": "",
    "drfl/core/key.py": '''"""Keys."""

class Key:
    """A key."""

    def _once(self):
        return 1  # a reason

    def fold(self):
        """Fold."""
        return self._once() + _twice() + _twice()


def _twice():  # noqa: X
    return _kept() * 2


@functools.cache
def _kept():
    return 1
''',
    "drfl/loop.py": "from drfl.core.key import Key\n\ndef run():\n    import drfl.data.rows\n",
    "drfl/data/__init__.py": "",
    "drfl/data/rows.py": (
        "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    import drfl.loop\nelse:\n    import drfl.core.key\n\n"
        "class Key: ...\n"
    ),
    "drfl/cli/new/templates/algorithm.py": "def not_counted(): ...\n",
    "drfl_papers/__init__.py": "import drfl.loop\n",
}


@pytest.fixture
def source(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Source(tmp_path)


def test_numbers_of_a_small_source(source):
    found = counted(source)
    assert (found["drfl: files"], found["drfl_papers: files"]) == (6, 1)
    assert found["import levels"] == 4  # drfl_papers, loop, data, core
    assert found["import cycles"] == 0
    assert found["packages and loose modules"] == 5
    assert (found["functions"], found["median lines of a function"]) == (5, 2)
    assert found["private functions called once"] == 1
    assert (found["class names used twice"], found["module names used twice"]) == (1, 0)
    assert found["lines of code"] == 20  # 10 of key, 3 of loop, 6 of rows, 1 of drfl_papers
    assert found["comments per 100 lines of code"] == pytest.approx(100 / 20, abs=0.05)


def test_functions_called_once_are_counted(source):
    assert called_once(source.trees["drfl.core.key"]) == ["_once"]


def test_import_cycle_is_one_level():
    assert levels({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == (3, 1)
