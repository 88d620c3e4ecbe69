"""Test that the tested versions are those that pyproject.toml allows."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from scripts import versions
from tests.support.scripts import ROOT

TABLE = versions.project()
STORED = versions.stored()
RERUN = "a requirement has changed: python scripts/versions.py"
PAGE = " ".join((ROOT / "docs" / "start" / "install.md").read_text(encoding="utf-8").split())


def bounds(extras):
    return [Requirement(line) for line in versions.named(extras, TABLE)]


@pytest.mark.parametrize("name", versions.SETS)
def test_tested_versions_match_the_required_ones(name):
    _, extras = versions.SETS[name]
    stored = STORED[name]
    assert stored["requirements"] == versions.named(extras, TABLE), RERUN
    for one in bounds(extras):
        assert one.specifier.contains(stored["versions"][canonicalize_name(one.name)]), RERUN


@pytest.mark.parametrize("name", versions.SETS)
def test_tests_passed_with_these_versions(name):
    stored = STORED[name]
    assert stored["tests"] == list(versions.TESTS[versions.SETS[name][1]])
    assert stored["failed"] == []
    for path in stored["tests"]:
        assert (ROOT / path).exists(), path
        module = path.removesuffix(".py").replace("/", ".")
        passed = [counts["passed"] for key, counts in stored["modules"].items() if f"{key}.".startswith(f"{module}.")]
        assert sum(passed) > 0, path


def test_every_lowest_version_was_tested():
    """torch is an exception: the locked version is tested."""
    lows = [stored["versions"] for name, stored in STORED.items() if name.startswith("lowest")]
    for one in bounds((*versions.EXTRAS, "flower", *versions.ONNX)):
        if one.name != "torch":
            bound = Version(versions.lowest(str(one)).partition("==")[2])
            assert bound in [Version(low[one.name]) for low in lows if one.name in low], f"{one.name}: {RERUN}"


def test_torch_version_is_locked_and_stated():
    (locked,) = versions.lines_of(versions.pins(versions.TORCH)).values()
    assert {Version(stored["versions"]["torch"]).public for stored in STORED.values()} == {locked}
    assert f"torch {locked}" in PAGE


def test_every_user_extra_was_tested():
    tried = {extra for _, extras in versions.SETS.values() for extra in extras}
    assert set(TABLE["optional-dependencies"]) - tried == {"dev", "docs"}


def test_lowest_versions_of_extras_are_exact():
    table = {"dependencies": ["numpy>=2.0"], "optional-dependencies": {"pdf": ["typst>=0.15,<1", "numpy>=2.0"]}}
    locked = "pytest==9.2.0\nhypothesis==6.170.15\nruff==0.17.5\n"
    tools = ["pytest==9.2.0", "hypothesis==6.170.15"]
    assert versions.asked("highest", ["pdf"], table, locked) == ["numpy>=2.0", "typst>=0.15,<1", *tools]
    assert versions.asked("lowest-direct", ["pdf"], table, locked) == ["numpy>=2.0", "typst==0.15", *tools]


def test_pytest_report_is_counted(tmp_path):
    (tmp_path / "report.xml").write_text(
        '<testsuites><testsuite><testcase classname="tests.a" name="one"/>'
        '<testcase classname="tests.a" name="two"><failure message="no"/></testcase>'
        '<testcase classname="tests.b" name="three"><skipped/></testcase>'
        '<testcase classname="" name="tests.c"><error/></testcase></testsuite></testsuites>'
    )
    assert versions.tests_of(tmp_path / "report.xml") == (
        {"tests.a": {"passed": 1, "failure": 1}, "tests.b": {"skipped": 1}, "tests.c": {"error": 1}},
        ["::tests.c", "tests.a::two"],
    )


def test_versions_are_read_from_uv_output():
    assert versions.lines_of("Jinja2==3.1.0\n-e file:///drfl\ntorch==2.13.0+cpu\n") == {
        "jinja2": "3.1.0",
        "torch": "2.13.0+cpu",
    }
