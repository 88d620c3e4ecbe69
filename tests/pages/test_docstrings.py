"""Run the examples in docstrings."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import drfl
import drfl_papers

MODULES = [
    package.__name__ if module is None else module.name
    for package in (drfl, drfl_papers)
    for module in (None, *pkgutil.walk_packages(package.__path__, f"{package.__name__}."))
    if module is None or not module.name.endswith("__main__")
]
FINDER = doctest.DocTestFinder()
WITH_EXAMPLES = [name for name in MODULES if any(t.examples for t in FINDER.find(importlib.import_module(name)))]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_docstring_examples_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_public_name_has_a_docstring_and_exists():
    for name in drfl.__all__:
        assert (getattr(drfl, name).__doc__ or "").strip(), name
