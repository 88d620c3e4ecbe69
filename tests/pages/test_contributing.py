"""Test the files for contributors at the root: forms for issues and changes, citation, releases."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml
from tests.support.scripts import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
KINDS = {
    "markdown": {"value"},
    "textarea": {"label", "description", "placeholder", "value", "render"},
    "input": {"label", "description", "placeholder", "value"},
    "dropdown": {"label", "description", "multiple", "options", "default"},
    "checkboxes": {"label", "description", "options"},
}
"""The elements of an issue form, and their attributes."""


def loaded(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_issue_and_change_forms_exist():
    assert [path.name for path in FORMS] == ["algorithm_or_result.yml", "bug.yml"]
    assert loaded(".github/ISSUE_TEMPLATE/config.yml") == {"blank_issues_enabled": True}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_form_is_valid(path):
    form = loaded(path)
    assert {"name", "description", "body"} <= set(form) <= {"name", "description", "body", "labels", "title"}
    ids = [element["id"] for element in form["body"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[\w-]+", name) for name in ids)
    for element in form["body"]:
        assert set(element) <= {"type", "id", "attributes", "validations"}
        assert {"label"} <= set(element["attributes"]) <= KINDS[element["type"]]
        for option in element["attributes"].get("options", []):
            assert isinstance(option, str if element["type"] == "dropdown" else dict)
    assert any(element.get("validations", {}).get("required") for element in form["body"])


def test_change_form_names_the_check():
    assert "make check" in (ROOT / ".github" / "pull_request_template.md").read_text(encoding="utf-8")


def test_citation_is_complete_and_current():
    citation = loaded("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0"
    assert (citation["title"], citation["type"]) == (PROJECT["name"], "software")
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert set(citation["keywords"]) == set(PROJECT["keywords"])
    assert citation["authors"] == [{"name": "The drfl authors"}]


def test_citation_names_the_three_papers():
    papers = {paper["notes"]: paper for paper in loaded("CITATION.cff")["references"]}
    text = (ROOT / "EXPERIMENTS.md").read_text(encoding="utf-8")
    named = dict(re.findall(r"^- \*\*([\w-]+)\*\*: (.*? \d{4}),", text, flags=re.MULTILINE))
    assert set(papers) == set(named)
    for name, paper in papers.items():
        assert {"type", "title", "authors", "year"} <= set(paper)
        assert f"{paper['authors'][0]['family-names']} et al. {paper['year']}" == named[name]


def test_release_page_names_the_files_with_the_version():
    page = (ROOT / "docs" / "contributing" / "releases.md").read_text(encoding="utf-8")
    for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md"):
        assert f"(../../{name})" in page


def test_public_ci_runs_the_same_script_read_only():
    workflow = loaded(".github/workflows/ci.yml")
    assert workflow["permissions"] == {"contents": "read"}
    assert all("permissions" not in job for job in workflow["jobs"].values())
    assert "pull_request_target" not in workflow[True]  # YAML reads the key "on" as True
    assert "schedule" in workflow[True]
    check, audit = (workflow["jobs"][name]["steps"] for name in ("check", "audit"))
    assert [step["run"] for step in check if "run" in step][-1] == ".ci/run"
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    (command,) = (step["run"] for step in audit if step.get("run", "").startswith("pip-audit "))
    assert set(re.findall(r"-r (\S+)", command)) == {path.name for path in ROOT.glob("constraints*.txt")}
    for step in (*check, *audit):
        assert "secrets." not in str(step)
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False


def test_security_page_is_packaged_with_valid_links():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "SECURITY.md" in (ROOT / "MANIFEST.in").read_text(encoding="utf-8")
    for name in re.findall(r"\]\(([^)]+)\)", text):
        assert (ROOT / name.partition("#")[0]).is_file()
