"""Test that the page on installing names the project's extras and Python versions."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from tests.support.scripts import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
PAGE = (ROOT / "docs" / "start" / "install.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `drfl\[(\w+)\]` \| (.*) \|$", PAGE, flags=re.MULTILINE))


def test_every_extra_is_listed():
    assert sorted(ROWS) == sorted(EXTRAS)


@pytest.mark.parametrize("extra", sorted(set(EXTRAS) - {"dev", "docs"}))
def test_packages_of_each_extra_are_named(extra):
    for line in EXTRAS[extra]:
        assert Requirement(line).name.partition("-")[0] in ROWS[extra]


def test_dev_includes_all_other_extras():
    (all_of,) = (Requirement(line) for line in EXTRAS["dev"] if line.startswith("drfl["))
    assert all_of.extras == set(EXTRAS) - {"dev"}


def test_python_versions_match_the_project():
    assert f"Python {PROJECT['requires-python'].removeprefix('>=')}" in PAGE
    assert f"drfl-{PROJECT['version']}-py3-none-any.whl" in PAGE
    (flwr,) = (one.specifier for one in map(Requirement, EXTRAS["flower"]) if one.name == "flwr")
    first, last = re.search(r"flwr 1\.(\d+) to 1\.(\d+)", ROWS["flower"]).groups()
    assert flwr.contains(f"1.{first}.0")
    assert flwr.contains(f"1.{last}.0")
    assert not flwr.contains(f"1.{int(first) - 1}.0")
    assert not flwr.contains(f"1.{int(last) + 1}.0")
