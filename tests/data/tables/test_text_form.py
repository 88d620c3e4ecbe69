"""Delimiters, decimal marks, encodings and words for missing values of text tables."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch
from tests.support.refusals import refused

from drfl.data.tables.table_files import read_tables
from drfl.data.tables.table_paths import files_of
from drfl.data.tables.text_form import TextForm

ROWS = [("63.5", "Köln", "1"), ("41.25", "Bonn", "0"), ("70", "Köln", "0"), ("55.0", "Bonn", "1")]


def text(delimiter=",", decimal="."):
    lines = [("age", "town", "ill"), *((age.replace(".", decimal), town, ill) for age, town, ill in ROWS)]
    return "".join(delimiter.join(line) + "\n" for line in lines)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


FORMS = [
    ("a.csv", text().encode(), TextForm()),
    ("a.csv", b"\xef\xbb\xbf" + text().encode(), TextForm()),
    ("a.csv", text(";").encode(), TextForm(";")),
    ("a.csv", text(";", ",").encode("cp1252"), TextForm(";", ",", "cp1252")),
    ("a.tsv", text("\t").encode(), TextForm("\t")),
    ("a.csv", text("|").encode(), TextForm("|")),
    ("a.csv.gz", gzip.compress(text().encode(), mtime=0), TextForm()),
]


@pytest.mark.parametrize(("name", "content", "form"), FORMS)
def test_all_forms_give_the_same_table(name, content, form):
    Path(name).write_bytes(content)
    assert TextForm.of(Path(name)) == form
    data = read_tables([Path(name)], "ill")
    assert data.name == "a"
    assert data.columns == ("age", "town_Köln")
    assert data.inputs.equal(torch.tensor([[63.5, 1], [41.25, 0], [70, 1], [55, 0]], dtype=torch.float64))
    plain = form == TextForm() or name.endswith(".tsv")
    assert [notice.code for notice in data.notices] == ([] if plain else ["table-format"])


def test_a_comma_in_a_quoted_name_is_no_delimiter():
    Path("a.csv").write_text('"age, in years";ill\n63;1\n41;0\n')
    assert TextForm.of(Path("a.csv")).delimiter == ";"
    assert read_tables([Path("a.csv")], "ill").columns == ("age, in years",)


@pytest.mark.parametrize("content", [text().encode("utf-16"), b"age,ill\n\x81\x8d\xff,1\n"])
def test_other_encodings_are_refused(content):
    Path("a.csv").write_bytes(content)
    with refused("damaged-file", "a.csv", "UTF-8"):
        read_tables([Path("a.csv")], "ill")


def test_words_that_pandas_takes_for_missing_stay_words():
    Path("a.csv").write_text("age,region,grade,ill\n" + "".join(f"{k},{r},{g},{k % 2}\n" for k, (r, g) in enumerate(
        [("NA", "None"), ("EU", "Mild"), ("NA", "Severe"), ("EU", "None")] * 3
    )))  # fmt: skip
    data = read_tables([Path("a.csv")], "ill", "region")
    assert set(data.groups) == {"NA", "EU"}
    assert read_tables([Path("a.csv")], "grade", "region").class_names == ("Mild", "None", "Severe")
    # in a column of numbers they are missing values
    Path("a.csv").write_text("age,ill\n1,0\nNA,1\n3,0\n")
    with refused("missing-values", "age", "a.csv, line 3"):
        read_tables([Path("a.csv")], "ill")


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        (["1.0", "2.0", "?", "4.0"], "?"),
        (["1.0", "<0.5", "3", "4.0"], "<0.5"),
        (["12%", "13%", "9%", "7%"], "12%"),
        (["18,5", "19,5", "20", "21,5"], "18,5"),
        (["1,234", "2,345", "999", "3,456"], "1,234"),
        (["2021-03-01", "2021-03-02", "2020-01-01", "2020-02-02"], "2021-03-01"),
        (["28 Jul 2020", "1. Mai 2021", "3-Oct-19", "28 Jul 2020"], "28 Jul 2020"),
        (["1'234.50", "12'345", "1'000", "2'000"], "1'234.50"),
        (["1 234", "12 345", "1\u00a0000", "2 000"], "1 234"),
        (["70 kg", "71 kg", "65 kg", "80 kg"], "70 kg"),
    ],
)
def test_numbers_that_are_read_as_text_are_refused_by_line(cells, shown):
    Path("a.csv").write_text("ca,ill\n" + "".join(f'"{cell}",{k % 2}\n' for k, cell in enumerate(cells)))
    line = 2 + cells.index(shown)
    with refused("not-a-number", "ca", f"a.csv, line {line}", f"'{shown}'"):
        read_tables([Path("a.csv")], "ill")


def test_levels_with_digits_are_words():
    Path("a.csv").write_text("stage,ill\n" + "".join(f"{s},{k % 2}\n" for k, s in enumerate(["T1", "T2", "3b", "T1"])))
    assert read_tables([Path("a.csv")], "ill").columns == ("stage_T1", "stage_T2")


def test_what_a_folder_holds_besides_tables_is_named():
    Path("in", "more").mkdir(parents=True)
    for name in ("a.csv", "b.tsv", ".hidden"):
        Path("in", name).write_text(text("\t" if name == "b.tsv" else ","))
    Path("in", "c.docx").write_bytes(b"PK")
    assert [path.name for path in files_of([Path("in")])] == ["a.csv", "b.tsv"]
    (notice,) = read_tables([Path("in")], "ill").notices
    assert (notice.code, notice.field) == ("unread-files", None)
    assert "c.docx, more/; read: a.csv, b.tsv." in notice


def test_one_file_with_its_columns_in_another_order_changes_nothing():
    Path("in").mkdir()
    for k in range(3):
        Path("in", f"s{k}.csv").write_text(text())
    same = read_tables([Path("in")], "ill")
    lines = [("town", "ill", "age"), *((town, ill, age) for age, town, ill in ROWS)]
    Path("in", "s0.csv").write_text("".join(",".join(line) + "\n" for line in lines))
    again = read_tables([Path("in")], "ill")
    assert again.columns == same.columns
    assert again.inputs.equal(same.inputs)
