"""Test Excel workbooks: their sheets, and a machine without openpyxl."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from tests.support.refusals import refused

from drfl.data.tables.table_files import read_tables


def test_sheets_of_a_workbook_are_read(tmp_path):
    rows = pd.DataFrame({"code": ["007", "008"] * 6, "age": range(12), "ill": [0, 1, 1] * 4})
    with pd.ExcelWriter(tmp_path / "wards.xlsx") as book:
        for name in ("North", "South"):
            rows.to_excel(book, sheet_name=name, index=False)
    path = tmp_path / "wards.xlsx"
    with refused("missing-option", str(path), "'North'", "'South'"):
        read_tables([path], "ill")
    with refused("unknown-name", str(path), "'Nort'", "'North'"):
        read_tables([Path(f"{path}:Nort")], "ill")
    data = read_tables([Path(f"{path}:North"), Path(f"{path}:South")], "ill")
    assert set(data.groups) == {"wards North", "wards South"}
    assert data.columns == ("code", "age")
    assert set(read_tables([Path(f"{path}:North")], "ill", "code").groups) == {"007", "008"}


def test_errors_name_the_row_of_the_sheet(tmp_path):
    rows = pd.DataFrame({"bp": [*range(8), "high", *range(9, 12)], "ill": [0, 1, 1] * 4})
    rows.to_excel(tmp_path / "a.xlsx", index=False)  # the header is row 1, so the ninth row of data is row 10
    with refused("not-a-number", "bp", "sheet row 10", "'high'"):
        read_tables([tmp_path / "a.xlsx"], "ill")


def test_two_columns_of_one_name_are_refused(tmp_path):
    rows = pd.DataFrame({"bp": range(12), "BP": range(12), "ill": [0, 1, 1] * 4})
    rows.to_excel(tmp_path / "a.xlsx", index=False)
    assert read_tables([tmp_path / "a.xlsx"], "ill", task="classification").columns == ("bp", "BP")
    rows.set_axis(["bp", " bp", "ill"], axis=1).to_excel(tmp_path / "a.xlsx", index=False)
    with refused("duplicate-column", "bp", str(tmp_path / "a.xlsx")):
        read_tables([tmp_path / "a.xlsx"], "ill")
    rows.set_axis(["bp", "bp", "ill"], axis=1).to_excel(tmp_path / "a.xlsx", index=False)
    with refused("duplicate-column", "bp", str(tmp_path / "a.xlsx")):
        read_tables([tmp_path / "a.xlsx"], "ill")


def test_missing_openpyxl_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with refused("package-missing", "openpyxl", "a.xlsx", "'drfl[excel]'"):
        read_tables([tmp_path / "a.xlsx"], "ill")


def test_workbook_next_to_other_tables_is_named_and_not_read(tmp_path):
    rows = pd.DataFrame({"age": range(12), "ill": [0, 1, 1] * 4})
    for name in ("a", "b"):
        rows.to_excel(tmp_path / f"{name}.xlsx", index=False)
    (tmp_path / "~$a.xlsx").write_bytes(b"lock")
    assert set(read_tables([tmp_path], "ill").groups) == {"a", "b"}
    for name in ("a", "c"):
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    data = read_tables([tmp_path], "ill")
    assert set(data.groups) == {"a", "c"}
    (notice,) = [notice for notice in data.notices if notice.code == "unread-files"]
    assert "a.xlsx, b.xlsx" in notice
