"""Test tables that conform to a schema, and every kind of violation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tests.support.marks import crossed
from tests.support.refusals import quotes, refused

from drfl.data import ClientData
from drfl.data.tables.conform import conform, encode
from drfl.data.tables.schema import Column, TableSchema
from drfl.data.tables.table import Table
from drfl.data.tables.table_files import read_site_table, read_tables
from drfl.data.tables.text_form import ReadOptions

SCHEMA = TableSchema(
    (
        Column("age", "whole number", range=(0, 120), missing=("", "-9")),
        Column("dose", "number"),
        Column("sex", "category", levels=("f", "m"), other=True),
        Column("stage", "category", levels=("1", "2", "3"), missing=("?",)),
        Column("seen", "date"),
        Column("smoker", "yes/no", levels=("no", "yes")),
        Column("note", "text"),
        Column("site", "text", role="client"),
        Column("ill", "yes/no", levels=("0", "1"), role="target"),
    ),
    positive="1",
)


def table(**changes):
    columns = {
        "ill": [0, 1, 1, 0],
        "age": ["30", "-9", "", "41"],
        "dose": [1.5, 2, 3, 4],
        "sex": ["f", "m", "d", " m "],
        "stage": ["1", "2.0", "?", "3"],
        "seen": ["1970-01-02", "2000-01-01", "1969-12-31", "1970-01-01 12:00"],
        "smoker": ["no", "yes", "yes", "no"],
        "note": list("abcd"),
        "site": ["A", "A", "B", "B"],
    }
    return pd.DataFrame({**columns, **changes})


EXPECTED = np.array(
    [
        [30, 0, 1.5, 0, 0, 0, 0, 0, 1, 0],
        [np.nan, 1, 2, 1, 0, 1, 0, 0, 10957, 1],
        [np.nan, 1, 3, 0, 1, 0, 0, 1, -1, 1],
        [41, 0, 4, 1, 0, 0, 1, 0, 0.5, 0],
    ]
)


def named(frame):
    return Table("a.csv", frame, lambda row: f"a.csv, line {row + 2}")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"age": [30, -9, np.nan, 41], "stage": pd.Series(["1", "2", "?", "3"], dtype="category")},
        {"age": pd.Series([30, -9, None, 41], dtype="Int64"), "dose": ["1.5", "2", " 3", "4e0"]},
        {"ill": ["0", "1", "1.0", "0"]},
        {"seen": pd.to_datetime(["1970-01-02", "2000-01-01", "1969-12-31", "1970-01-01 12:00"], format="ISO8601")},
        {"ill": [0.0, 1.0, 1.0, 0.0]},
    ],
)
def test_values_are_encoded_regardless_of_their_type(changes):
    rows = conform(SCHEMA, named(table(**changes).iloc[:, ::-1]))
    np.testing.assert_array_equal(rows.inputs, EXPECTED)
    assert rows.targets.tolist() == [0, 1, 1, 0]
    assert len(SCHEMA.features) == EXPECTED.shape[1]


def test_unused_columns_may_be_absent():
    assert conform(SCHEMA, named(table().drop(columns=["note", "site"]))).inputs.shape == EXPECTED.shape


def test_positive_class_is_the_last_one():
    schema = TableSchema(SCHEMA.columns, positive="0")
    assert (schema.classes, conform(schema, named(table())).targets.tolist()) == (("1", "0"), [1, 0, 0, 1])


@pytest.mark.parametrize(
    ("changes", "code", "quoted"),
    [
        ({"age": ["30", "3.5", "3.5", "1"]}, "out-of-range", ("a.csv, line 3", "3.5", "2")),
        ({"age": [30, 121, 1, 2]}, "out-of-range", ("a.csv, line 3", "121", "120")),
        ({"age": ["30", "x", "y", "1"]}, "not-a-number", ("a.csv, line 3", "'x'")),
        ({"dose": ["1", "2", "NA", "3"]}, "not-a-number", ("a.csv, line 4", "'NA'")),
        ({"dose": [True, False, True, True]}, "not-a-number", ("a.csv, line 2", "'True'")),
        ({"dose": [1, 2, np.nan, 3]}, "missing-values", ("a.csv, line 4",)),
        ({"dose": [1, 2, np.inf, 3]}, "not-finite", ("a.csv, line 4",)),
        ({"dose": ["1", "2", "3", "1e31"]}, "not-finite", ("a.csv, line 5",)),
        ({"smoker": ["no", "yess", "yes", "no"]}, "unknown-level", ("a.csv, line 3", "'yess'", "'yes'")),
        ({"stage": [1, 2, 3, 4]}, "unknown-level", ("a.csv, line 5", "'4'")),
        ({"sex": ["f", "", "m", "f"]}, "missing-values", ("a.csv, line 3",)),
        ({"seen": ["1970-01-02", "31.1.2020", "2000-02-30", "1970-01-01"]}, "not-a-date", ("line 4", "'2000-02-30'")),
        ({"seen": ["31.1.2020", "1.31.2020", "30.1.2020", "1.1.2020"]}, "not-a-date", ("line 3", "'1.31.2020'")),
        ({"seen": ["31.1.20", "1.1.20", "1.2.20", "2.2.20"]}, "not-a-date", ("line 2", "'31.1.20'")),
        (
            {"seen": ["2020-01-01", "3/4/2020", "5/6/2020", "1.1.2020"]},
            "ambiguous-date",
            ("line 3", "'3/4/2020'", "2020-04-03", "2020-03-04", "date_order"),
        ),
        ({"ill": [1, 2, 1, 2]}, "unknown-level", ("a.csv, line 3", "'2'")),
        ({"ill": [1, None, 1, 0]}, "missing-values", ("a.csv, line 3",)),
    ],
)
def test_wrong_value_is_named_with_row_and_column(changes, code, quoted):
    (field,) = changes
    with refused(code, field, f"'{field}'", *quoted):
        conform(SCHEMA, named(table(**changes)))


def test_all_problems_are_listed_and_wrong_rows_are_marked():
    odd = table(smoker=["no", "ja", "nein", "ja"], dose=["1", "2", "<3", ""], ill=["0", "1", "x", "1"])
    odd = odd.drop(columns="sex").rename(columns={"age": "Age"})
    rows = encode(SCHEMA, named(odd))
    assert sorted((problem.code, problem.field) for problem in rows.problems) == [
        ("extra-column", "Age"),
        ("missing-column", "age"),
        ("missing-column", "sex"),
        ("missing-values", "dose"),
        ("not-a-number", "dose"),
        ("unknown-level", "ill"),
        ("unknown-level", "smoker"),
        ("unknown-level", "smoker"),
    ]
    by_code = {(problem.code, problem.field): str(problem) for problem in rows.problems}
    assert quotes(by_code["missing-column", "age"], "a.csv", "'age'", "'Age'")
    assert rows.wrong.tolist() == [False, True, True, True]
    assert rows.targets.tolist() == [0, 1, -1, 1]


def test_many_wrong_values_are_counted():
    schema = TableSchema((Column("x", "number"), Column("y", "whole number", role="target")), task="regression")
    rows = encode(schema, named(pd.DataFrame({"x": [f"a{k}" for k in range(50)], "y": range(50)})))
    assert len(rows.problems) == 21
    assert quotes(str(rows.problems[-1]), "30")


def test_several_targets():
    columns = (Column("x", "number"), *(Column(n, "number", role="target") for n in "ab"))
    frame = pd.DataFrame({"x": [1, 2], "b": [3, 4], "a": [5, 6]})
    assert conform(TableSchema(columns, "regression"), named(frame)).targets.tolist() == [[5, 3], [6, 4]]
    labels = (Column("x", "number"), *(Column(n, "yes/no", levels=("0", "1"), role="target") for n in "ab"))
    frame = pd.DataFrame({"x": [1, 2], "b": [1, 0], "a": [1, 1]})
    assert conform(TableSchema(labels, "multi-label"), named(frame)).targets.tolist() == [[1, 1], [1, 0]]


def test_unknown_labels_require_missing_in_the_schema():
    def schema(*missing):
        labels = (Column(n, "yes/no", levels=("0", "1"), role="target", missing=missing) for n in "ab")
        return TableSchema((Column("x", "number"), *labels), "multi-label")

    frame = pd.DataFrame({"x": [1, 2, 3], "b": ["1", "", "?"], "a": ["1", "0", ""]})
    found = conform(schema("", "?"), named(frame))
    np.testing.assert_array_equal(found.targets, [[1, 1], [0, np.nan], [np.nan, np.nan]])
    assert schema("").features == ("x",)
    with refused("missing-values", "a"):
        conform(schema("?"), named(frame))
    with refused("unknown-level", "b", "'?'"):
        conform(schema(""), named(frame))


def test_files_of_all_formats_are_read_by_column_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table().to_csv("a.csv", index=False)
    second = table(age=[30, -9, 7, 41]).iloc[:, ::-1]
    second.to_csv("b.tsv.gz", index=False, sep="\t", compression="gzip")
    data = read_tables([Path("a.csv"), Path("b.tsv.gz")], schema=SCHEMA)
    np.testing.assert_array_equal(data.inputs[:4], EXPECTED)
    assert (data.columns, data.class_names, data.classes) == (SCHEMA.features, ("0", "1"), 2)
    assert (data.groups, data.schema) == (("A", "A", "B", "B") * 2, SCHEMA)
    plain = table().drop(columns="site")
    plain.to_csv("a.csv", index=False)
    with refused("missing-column", "site", "a.csv"):
        read_tables([Path("a.csv"), Path("b.tsv.gz")], schema=SCHEMA)
    plain.to_csv("c.csv", index=False)
    assert read_tables([Path("a.csv"), Path("c.csv")], schema=SCHEMA).groups == ("a",) * 4 + ("c",) * 4
    with refused("conflicting-options", "target"):
        read_tables([Path("a.csv")], "age", schema=SCHEMA)


def test_decimal_commas_and_words_for_missing_values(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x;y\n1,5;0\nNA;1\n;1\n2;0\n")
    columns = (Column("x", "number", missing=("NA", "")), Column("y", "yes/no", levels=("0", "1"), role="target"))
    inputs = read_tables([path], schema=TableSchema(columns)).inputs
    np.testing.assert_array_equal(inputs, [[1.5, 0], [np.nan, 1], [np.nan, 1], [2, 0]])
    strict = TableSchema((Column("x", "number", missing=("",)), columns[1]))
    with refused("not-a-number", "x", "line 3", "'NA'"):
        read_tables([path], schema=strict)


def test_site_of_one_class_is_accepted_with_a_schema(tmp_path):
    table(ill=[1, 1, 1, 1]).to_csv(tmp_path / "a.csv", index=False)
    table().iloc[::-1, ::-1].to_csv(tmp_path / "b.csv", index=False)
    found = read_site_table(tmp_path / "a.csv", tmp_path / "b.csv", None, schema=SCHEMA)
    assert found.train[1].tolist() == [1, 1, 1, 1]
    np.testing.assert_array_equal(found.test[0], EXPECTED[::-1])
    assert (found.columns, found.classes, found.schema) == (SCHEMA.features, ("0", "1"), SCHEMA)
    with refused("constant-target", "ill", "1"):
        read_tables([tmp_path / "a.csv"], schema=SCHEMA)


def test_data_frames_take_the_same_schema(tmp_path):
    frame = pd.concat([table()] * 5, ignore_index=True)
    data = ClientData.from_frame(frame, schema=SCHEMA)
    SCHEMA.write(tmp_path / "s.toml")
    again = ClientData.from_frame(frame, schema=tmp_path / "s.toml", target="ill", group="site")
    assert torch.equal(data.inputs, again.inputs)
    assert (data.names, data.classes, data.columns, data.schema) == (
        ("A", "B"), ("0", "1"), SCHEMA.features, SCHEMA,
    )  # fmt: skip
    raw = ClientData.from_frame(frame, schema=SCHEMA, standardise=False, dtype=torch.float64)
    np.testing.assert_array_equal(raw.inputs[:4], EXPECTED)
    with refused("conflicting-options", "features"):
        ClientData.from_frame(frame, schema=SCHEMA, features=["age"])
    with refused("conflicting-options", "group"):
        ClientData.from_frame(frame, schema=SCHEMA, group="sex")
    with refused("missing-option", "group"):
        ClientData.from_frame(frame, target="ill")


def write(frame, path):
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".xlsx":
        frame.to_excel(path, index=False)
    else:
        frame.astype({"temperature": np.float32}).to_parquet(path)
    return path


@pytest.mark.parametrize(("ending", "codes"), crossed(["csv", "parquet", "xlsx"], ["columns", "reading"]))
def test_codes_for_missing_values_are_known_in_all_formats(tmp_path, ending, codes):
    seen = pd.Series(pd.date_range("2020-01-01", periods=40))
    seen[3] = pd.Timestamp("1900-01-01")
    values = {"seen": seen, "temperature": [99.9 if k == 5 else 36.5 + k / 10 for k in range(40)]}
    path = write(pd.DataFrame(values | {"site": [*"aabb"] * 10, "ill": [0, 1] * 20}), tmp_path / f"a.{ending}")
    if codes == "columns":
        columns = (
            Column("seen", "date", missing=("1900-01-01",)),
            Column("temperature", "number", missing=("99.9",)),
            Column("site", "text", role="client"),
            Column("ill", "yes/no", levels=("0", "1"), role="target"),
        )
        data = read_tables([path], schema=TableSchema(columns))
    else:
        data = read_tables([path], "ill", "site", reading=ReadOptions(missing=("99.9", "1900-01-01")))
    assert data.columns == ("seen", "seen missing", "temperature", "temperature missing")
    inputs = data.inputs.numpy()
    for column, row in ((0, 3), (2, 5)):
        assert np.flatnonzero(np.isnan(inputs[:, column])).tolist() == [row]
        assert np.flatnonzero(inputs[:, column + 1]).tolist() == [row]
    np.testing.assert_allclose(inputs[0, [0, 2]], [18262, 36.5])


def test_number_of_excel_is_named_as_its_date(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("day,ill\n2021-03-31,no\n43831,yes\n7,yes\n")
    columns = (Column("day", "date"), Column("ill", "yes/no", levels=("no", "yes"), role="target"))
    first, second = encode(TableSchema(columns), Table.read(path, ["ill", "day"])).problems
    assert (first.code, first.field) == ("not-a-date", "day")
    assert quotes(str(first), "line 3", "43831", "2020-01-01")
    assert "Excel" not in str(second)


def test_date_among_texts_of_a_workbook_can_be_a_code(tmp_path):
    seen = [pd.Timestamp("1900-01-01"), "unknown", *pd.date_range("2020-01-01", periods=22)]
    frame = pd.DataFrame({"seen": pd.Series(seen, dtype=object), "x": [*range(24)], "ill": [0, 1] * 12})
    frame.to_excel(tmp_path / "a.xlsx", index=False)
    data = read_tables([tmp_path / "a.xlsx"], "ill", reading=ReadOptions(missing=("unknown", "1900-01-01")))
    assert data.columns[:2] == ("seen", "seen missing")
    assert data.inputs[:4, 1].tolist() == [1, 1, 0, 0]
