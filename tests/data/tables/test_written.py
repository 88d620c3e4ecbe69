"""Test dates in other formats than ISO 8601."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.support.refusals import refused

from drfl.data.table_description import describe
from drfl.data.tables.schema import Column, TableSchema
from drfl.data.tables.table_files import read_tables
from drfl.data.tables.written import days_of

DAY = {"2020-12-31": 18627.0, "2021-02-01": 18659.0, "2021-01-02": 18629.0}


@pytest.mark.parametrize(
    ("texts", "order", "days"),
    [
        (["31.12.2020", "1.2.2021"], None, [18627, 18659]),
        (["12/31/2020", "1/2/2021"], None, [18627, 18629]),
        (["31-12-2020 06:00", "01-02-2021 18:00:00"], None, [18627.25, 18659.75]),
        (["1.2.2021"], "DMY", [18659]),
        (["1.2.2021"], "MDY", [18629]),
        (["2020/12/31", "2021-02-01"], None, [18627, 18659]),
        (["1/1/2021", "2/2/2021"], None, [18628, 18660]),  # either order
        (["31.12.2020", "12.31.2020", "30.12.2020"], None, [18627, np.nan, 18626]),
        (["31.02.2021", "31.12.2020", "x", "", "31.12.20", "32.1.2020"], None, [np.nan, 18627, *[np.nan] * 4]),
        (["31.12.2020 25:00"], None, [18628 + 1 / 24]),
        (["9999-12-31", "0001-01-01", "9999-12-31T12:00:00Z", ""], None, [2932896, -719162, 2932896.5, np.nan]),
        (["31.12.9999 18:00", "1.1.0001"], None, [2932896.75, -719162]),
    ],
)
def test_dates_are_read_in_the_order_of_the_column(texts, order, days):
    found = days_of(pd.Series(texts, dtype=object), order)
    np.testing.assert_allclose(found.values, days)
    assert not found.is_ambiguous.any()


@pytest.mark.parametrize("texts", [["1.2.2021"], ["3/4/2021", "31.02.2021", "2020-12-31"], ["00.00.0000", "5.6.2021"]])
def test_column_with_ambiguous_dates_is_refused(texts):
    found = days_of(pd.Series(texts, dtype=object))
    assert found.is_ambiguous.any()
    assert np.isnan(found.values[found.is_ambiguous]).all()


def test_schema_stores_the_date_order_of_all_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    for name, day in (("a", 25), ("b", 5)):
        rows = "".join(f"{1 + k % day}.3.2021,{('no', 'yes')[k % 2]}\n" for k in range(30))
        Path("in", f"{name}.csv").write_text("seen,ill\n" + rows)
    schema = describe([Path("in")], "ill").schema
    assert schema.columns[0] == Column("seen", "date", date_order="DMY")
    data = read_tables([Path("in")], schema=schema)
    assert data.inputs[:2, 0].tolist() == [18687, 18688]
    open_schema = TableSchema((Column("seen", "date"), *schema.columns[1:]))
    with refused("ambiguous-date", "seen", "b.csv, line 2", "'1.3.2021'", "date_order"):
        read_tables([Path("in/b.csv")], schema=open_schema)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_open_ended_dates_are_described_and_read(tmp_path, kind):
    for name in "ab":
        dates = ["2020-01-01", "9999-12-31"] * 15
        frame = pd.DataFrame({"until": dates, "ill": [k // 2 % 2 for k in range(30)]})
        if kind == "csv":
            frame.to_csv(tmp_path / f"{name}.csv", index=False)
        else:
            frame["until"] = np.array(dates, dtype="datetime64[us]")
            frame.to_parquet(tmp_path / f"{name}.parquet")
    found = describe([tmp_path], "ill")
    assert found.problems == ()
    assert found.sites[0].columns["until"].range == ("2020-01-01", "9999-12-31")
    data = read_tables([tmp_path], schema=found.schema)
    assert data.inputs[:2, 0].tolist() == [18262, 2932896]


def test_description_names_ambiguous_dates_once(tmp_path):
    rows = "".join(f"{1 + k % 5}/3/2021,{('no', 'yes')[k % 2]},{k}\n" for k in range(30))
    (tmp_path / "a.csv").write_text("seen,ill,x\n" + rows)
    found = describe([tmp_path], "ill")
    assert [(problem.code, problem.field) for problem in found.problems] == [("ambiguous-date", "seen")]
    assert found.schema.columns[0].type == "date"
    assert found.sites[0].columns["seen"].range is None
