"""Test the widths of printed tables, and the names of options in messages."""

from __future__ import annotations

import re

import pytest
from tests.support.scripts import ROOT

from drfl.core import screen
from drfl.core.screen import PIPE_WIDTH, Screen, ScreenTable, with_options

NUMBERS = [f"{number}{number}.{number} ± 1{number}.{number}" for number in range(1, 9)]


def printed(capsys):
    table = ScreenTable("algorithm", *(f"score {number}" for number in range(1, 9)))
    table.add_row("DualDRDM †", *NUMBERS)
    Screen().print(table)
    return capsys.readouterr().out


def test_table_in_a_pipe_is_as_wide_as_its_numbers(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    out = printed(capsys)
    assert 80 < max(map(len, out.splitlines())) <= PIPE_WIDTH
    assert not [text for text in ["DualDRDM †", *NUMBERS] if text not in out]


@pytest.mark.parametrize("columns", [80, 100])
def test_narrow_table_wraps_its_numbers_and_cuts_none(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    out = printed(capsys)
    assert max(map(len, out.splitlines())) <= columns
    assert "…" not in out
    assert not [part for text in NUMBERS for part in text.split() if part not in out]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("give another `out`, or `overwrite` to replace it", "give another --out, or --overwrite to replace it"),
        ("add `features = 'entk'`", "add --features entk"),
        ("use `missing = 'not known'` or `missing = ''`", "use --missing 'not known' or --missing ''"),
        ("a folder that `drfl run` wrote, not `n`", "a folder that `drfl run` wrote, not `n`"),
    ],
)
def test_settings_become_options(text, expected, monkeypatch):
    assert with_options(text) == text
    for name in ("out", "overwrite", "features", "missing"):
        monkeypatch.setitem(screen.option_names, name, f"--{name}")
    assert with_options(text) == expected


COMMANDS_ONLY = ("drfl.cli", "drfl.flower", "drfl_papers.commands", "drfl.experiments.tuning", "drfl.engine.ray")
"""Sections with messages of commands, some of which have no equivalent in Python."""


def test_messages_of_the_library_name_no_options():
    text = (ROOT / "tests/messages.txt").read_text(encoding="utf-8")
    found = []
    for section in re.split(r"(?m)^(?=\[)", text)[1:]:
        if not section.startswith(tuple(f"[{name}" for name in COMMANDS_ONLY)):
            whole_commands = re.sub(r"'?drfl (assess|\{).*", "", section)
            found += re.findall(r"(?m)^    .*(?<![\w-])--[a-z].*$", whole_commands)
    assert found == []
