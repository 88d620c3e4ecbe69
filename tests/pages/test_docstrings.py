"""Run the examples in docstrings."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
from tests.support.marks import long_except

import drfl
import drfl_papers

SOURCE = Path(drfl.__file__).parents[1]
WITH_EXAMPLES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for package in (drfl, drfl_papers)
    for path in sorted(Path(package.__file__).parent.rglob("*.py"))
    if "templates" not in path.parts and ">>> " in path.read_text(encoding="utf-8")
]
SLOW = [
    "drfl.experiments.api",
    "drfl.experiments.sweep.api",
    "drfl.testing.ambiguity_battery",
    "drfl.testing.federation_battery",
]


@pytest.mark.parametrize("name", long_except([name for name in WITH_EXAMPLES if name not in SLOW], WITH_EXAMPLES))
def test_docstring_examples_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_public_name_has_a_docstring_and_exists():
    for name in drfl.__all__:
        assert (getattr(drfl, name).__doc__ or "").strip(), name
