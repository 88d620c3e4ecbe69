"""Test that the page on own tables leads from six messy files to a comparison with the shown commands and output."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys

import pytest
from tests.support.scripts import ROOT

from drfl.cli.app import call

PAGE = (ROOT / "docs" / "start" / "your-data.md").read_text(encoding="utf-8")
STEPS = re.findall(r"<!-- messy \d -->\n```sh\ndrfl ([^\n]*)\n```\n(?:\n```text\n(.*?)```)?", PAGE, flags=re.DOTALL)
SMALL = {"compare": ["--seeds", "2", "--rounds", "2"]}
"""Appended options that override the page's, so that the test is short."""


@pytest.mark.long
def test_five_commands_turn_six_messy_files_into_a_comparison(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["messy_wards.py", "wards"])
    runpy.run_path(str(ROOT / "examples" / "own" / "messy_wards.py"), run_name="__main__")
    assert len(STEPS) == 5
    for command, shown in STEPS:
        words = shlex.split(command)
        assert call([*words, *SMALL.get(words[0], [])]) == 0, command
        printed = capsys.readouterr().out.splitlines()
        for line in shown.splitlines():
            assert line in printed, (command, line)
    assert (tmp_path / "runs" / "wards" / "report.html").is_file()
    assert call(["data", "check", "wards", "--schema", "schema.toml", "--json"]) == 0
    files = {entry["file"]: entry for entry in json.loads(capsys.readouterr().out)["files"]}
    assert (files["wards/south.csv"]["decimal"], files["wards/south.csv"]["thousands"]) == (",", ".")


def test_example_page_names_its_six_files(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["messy_wards.py", str(tmp_path / "wards")])
    runpy.run_path(str(ROOT / "examples" / "own" / "messy_wards.py"), run_name="__main__")
    tables = {path.name for path in (tmp_path / "wards").iterdir()} - {"readme.docx"}
    assert set(re.findall(r"^\| `([^`]+)` \|", PAGE, flags=re.MULTILINE)) == tables
