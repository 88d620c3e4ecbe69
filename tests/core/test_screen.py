"""Test the widths of printed tables."""

from __future__ import annotations

import pytest

from drfl.core.screen import PIPE_WIDTH, Screen, ScreenTable

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
