"""Test delimiters, decimal marks, encodings and words for missing values in text tables."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tests.support.refusals import check_refusal, refused

from drfl.cli.app import call
from drfl.data import ClientData, ReadOptions, TableSchema
from drfl.data.table_description import describe
from drfl.data.tables.schema import Column
from drfl.data.tables.table import Table
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


@pytest.mark.parametrize("missing", ["-9", -9, ["-9"], (-9,)])
def test_single_word_for_missing_values_is_not_split(missing):
    assert ReadOptions(missing=missing).missing == ("-9",)


FORMS = [
    ("a.csv", text().encode(), TextForm()),
    ("a.csv", b"\xef\xbb\xbf" + text().encode(), TextForm()),
    ("a.csv", text(";").encode(), TextForm(";")),
    ("a.csv", text(";", ",").encode("cp1252"), TextForm(";", ",", "cp1252")),
    ("a.tsv", text("\t").encode(), TextForm("\t")),
    ("a.csv", text("|").encode(), TextForm("|")),
    ("a.csv.gz", gzip.compress(text().encode(), mtime=0), TextForm()),
    ("a.tsv", text("\t").encode("utf-16"), TextForm("\t", encoding="utf-16")),
    ("a.csv", text(";", ",").encode("utf-16"), TextForm(";", ",", "utf-16")),
]


@pytest.mark.parametrize(("name", "content", "form"), FORMS)
def test_all_forms_give_the_same_table(name, content, form):
    Path(name).write_bytes(content)
    assert TextForm.of(Path(name))[:3] == form[:3]
    data = read_tables([Path(name)], "ill")
    assert data.name == "a"
    assert data.columns == ("age", "town_Köln")
    assert data.inputs.equal(torch.tensor([[63.5, 1], [41.25, 0], [70, 1], [55, 0]], dtype=torch.float64))
    plain = form == TextForm() or (name.endswith(".tsv") and form.encoding == "utf-8")
    assert [notice.code for notice in data.notices] == ([] if plain else ["table-format"])


def test_title_with_another_mark_is_not_the_header():
    """The mark of the title occurs nowhere else, and a row of one cell lacks the delimiter."""
    Path("a.csv").write_text("Results; 2024\na,b\n1,2\n3,4\ntotal\n")
    assert TextForm.of(Path("a.csv")).delimiter == ","


def test_comma_in_a_quoted_name_is_not_a_delimiter():
    Path("a.csv").write_text('"age, in years";ill\n63;1\n41;0\n')
    assert TextForm.of(Path("a.csv")).delimiter == ";"
    assert read_tables([Path("a.csv")], "ill").columns == ("age, in years",)


@pytest.mark.parametrize("content", [text().encode("utf-16-le"), b"age,ill\n\x81\x8d\xff,1\n"])
def test_other_encodings_are_refused(content):
    Path("a.csv").write_bytes(content)
    with refused("damaged-file", "a.csv", "UTF-8"):
        read_tables([Path("a.csv")], "ill")


def test_classes_of_large_numbers_have_different_names():
    Path("a.csv").write_text("age,ill\n" + "".join(f"{k},{1234567.0 + k % 2}\n" for k in range(8)))
    assert read_tables([Path("a.csv")], "ill").class_names == ("1234567", "1234568")


def test_words_that_pandas_reads_as_missing_stay_words():
    Path("a.csv").write_text("age,region,grade,ill\n" + "".join(f"{k},{r},{g},{k % 2}\n" for k, (r, g) in enumerate(
        [("NA", "None"), ("EU", "Mild"), ("NA", "Severe"), ("EU", "None")] * 3
    )))  # fmt: skip
    data = read_tables([Path("a.csv")], "ill", "region")
    assert set(data.groups) == {"NA", "EU"}
    assert read_tables([Path("a.csv")], "grade", "region").class_names == ("Mild", "None", "Severe")
    # in a column of numbers such words are missing values
    Path("a.csv").write_text("age,ill\n1,0\nNA,1\n3,0\n")
    with refused("missing-values", "age", "a.csv, line 3"):
        read_tables([Path("a.csv")], "ill")


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        (["1.0", "2.0", "?", "4.0"], "?"),
        (["1.0", "<0.5", "3", "4.0"], "<0.5"),
        (["12%", "13%", "9%", "7%"], "12%"),
        (["1.234,5", "2,345.6", "3", "4"], "1.234,5"),
        (["2021-03-01", "2021-03-02", "2020-01-01", "2020-02-02"], "2021-03-01"),
        (["28 Jul 2020", "1. Mai 2021", "3-Oct-19", "28 Jul 2020"], "28 Jul 2020"),
        (["70 kg", "71 kg", "65 kg", "80 kg"], "70 kg"),
        (["€ 10", "€ 20", "€ 10", "€ 30"], "€ 10"),
        (["$1,000.50", "-$20", "$ 10", "$30"], "$1,000.50"),
        (["10 €", "20€", "1 000 €", "5 €"], "10 €"),
        (["CHF 10", "CHF 20", "CHF 10", "7 CHF"], "CHF 10"),
    ],
)
def test_text_in_numeric_columns_is_refused_by_line(cells, shown):
    Path("a.csv").write_text("ca,ill\n" + "".join(f'"{cell}",{k % 2}\n' for k, cell in enumerate(cells)))
    line = 2 + cells.index(shown)
    with refused("not-a-number", "ca", f"a.csv, line {line}", f"'{shown}'"):
        read_tables([Path("a.csv")], "ill")


@pytest.mark.parametrize(("form", "is_amount"), [("€ {}", True), ("{} %", True), ("{} kg", True), ("{}A", False)])
def test_proposed_category_of_written_numbers_is_a_warning(form, is_amount):
    rows = "".join(f"{form.format(1 + k % 3)},{k % 2}\n" for k in range(40))
    Path("a.csv").write_text("fee,ill\n" + rows)
    notices = describe([Path("a.csv")], "ill").notices
    found = [(notice.code, notice.field) for notice in notices if notice.code == "numbers-as-words"]
    assert found == [("numbers-as-words", "fee")] * is_amount
    assert all(f"'{form.format(1)}'" in notice for notice in notices if notice.code == "numbers-as-words")


def test_grades_are_read_as_a_category_of_a_schema():
    rows = "".join(f"{grade},{k % 2}\n" for k, grade in enumerate(["1", "2", "3", "4A", "3"] * 4))
    Path("a.csv").write_text("grade,ill\n" + rows)
    with refused("not-a-number", "grade", "a.csv, line 5", "'4A'", "category", "schema"):
        read_tables([Path("a.csv")], "ill")
    grade = Column("grade", "category", levels=("1", "2", "3", "4A"))
    schema = TableSchema((grade, Column("ill", "yes/no", levels=("0", "1"), role="target")))
    assert read_tables([Path("a.csv")], schema=schema).columns == ("grade_2", "grade_3", "grade_4A")


@pytest.mark.parametrize("others", [[np.array([0.0, 1.0] * 10), np.array([0, 1] * 10)], [np.array([False, True] * 10)]])
def test_class_has_one_name_in_files_of_different_types(others):
    words = np.array(["0", "1", "x", "1"] * 5)
    columns = [words, *others] if len(others) > 1 else [*others, np.array([0.0, 1.0] * 10)]
    Path("in").mkdir()
    for k, y in enumerate(columns):
        pd.DataFrame({"age": np.arange(20.0), "flag": others[0], "ill": y}).to_parquet(f"in/{k}.parquet")
    data = read_tables([Path("in")], "ill")
    assert data.class_names == (("0", "1", "x") if len(others) > 1 else ("0", "1"))
    assert data.columns == ("age", "flag")
    # In the second file, 0 and 1 alternate.
    assert data.targets[20:24].tolist() == [0, 1, 0, 1]
    assert data.inputs[20:24, 1].tolist() == [0, 1, 0, 1]


def test_levels_with_digits_are_words():
    Path("a.csv").write_text("stage,ill\n" + "".join(f"{s},{k % 2}\n" for k, s in enumerate(["T1", "T2", "3b", "T1"])))
    assert read_tables([Path("a.csv")], "ill").columns == ("stage_T1", "stage_T2")


def test_other_files_of_a_folder_are_named():
    Path("in", "more").mkdir(parents=True)
    for name in ("a.csv", "b.tsv", ".hidden"):
        Path("in", name).write_text(text("\t" if name == "b.tsv" else ","))
    Path("in", "c.docx").write_bytes(b"PK")
    assert [path.name for path in files_of([Path("in")])] == ["a.csv", "b.tsv"]
    (notice,) = read_tables([Path("in")], "ill").notices
    assert (notice.code, notice.field) == ("unread-files", None)
    assert "c.docx, more/; read: a.csv, b.tsv." in notice


def test_other_column_order_in_one_file_does_not_matter():
    Path("in").mkdir()
    for k in range(3):
        Path("in", f"s{k}.csv").write_text(text())
    same = read_tables([Path("in")], "ill")
    lines = [("town", "ill", "age"), *((town, ill, age) for age, town, ill in ROWS)]
    Path("in", "s0.csv").write_text("".join(",".join(line) + "\n" for line in lines))
    again = read_tables([Path("in")], "ill")
    assert again.columns == same.columns
    assert again.inputs.equal(same.inputs)


def written(cells, name="a.csv", more="x", **options):
    """Write a file with a column of cells, a column of texts and a target; return the numbers read and notices."""
    rows = "".join(f'"{cell}";"{more}";{k % 2}\n' for k, cell in enumerate(cells))
    Path(name).write_text("ca;b;ill\n" + rows)
    data = read_tables([Path(name)], "ill", drop=["b"], reading=ReadOptions(**options))
    return data.inputs[:, 0].tolist(), [notice.code for notice in data.notices]


@pytest.mark.parametrize(
    ("cells", "more", "options", "numbers"),
    [
        (["18,5", "19,5", "20", "21,5"], "x", {}, [18.5, 19.5, 20, 21.5]),
        (["1,234.5", "2", "12,345,678", "3"], "x", {}, [1234.5, 2, 12345678, 3]),
        (["1.234,5", "-2.000", "3,5e1", "4"], "x", {}, [1234.5, -2000, 35, 4]),
        (["1'234.50", "12\u2019345", "1'000", "2"], "x", {}, [1234.5, 12345, 1000, 2]),
        (["1 234", "12 345,5", "1\u00a0000", "2\u202f000"], "x", {}, [1234, 12345.5, 1000, 2000]),
        (["1.234", "2.345", "3.456", "4.5"], "x", {}, [1.234, 2.345, 3.456, 4.5]),
        (["1,234", "2,345", "999", "3"], "2.5", {}, [1234, 2345, 999, 3]),  # another column has a decimal point
        (["1,234", "2,345", "999", "3"], "2,5", {}, [1.234, 2.345, 999, 3]),
        (["1.234", "2.345", "999", "3"], "2,5", {}, [1234, 2345, 999, 3]),
        (["1,234", "2,345", "999", "3"], "x", {"thousands": ","}, [1234, 2345, 999, 3]),
        (["1,234", "2,345", "999", "3"], "x", {"decimal": ","}, [1.234, 2.345, 999, 3]),
        (["1.234", "2.345", "999", "3"], "x", {"thousands": "."}, [1234, 2345, 999, 3]),
        (["1.234", "2.345", "999", "3"], "2,5", {"decimal": "."}, [1.234, 2.345, 999, 3]),
    ],
)
def test_unambiguous_decimal_and_thousands_marks_are_detected(cells, more, options, numbers):
    found, codes = written(cells, more=more, **options)
    assert found == numbers
    assert codes == ["table-format"]


@pytest.mark.parametrize(
    ("cells", "options", "code", "line", "quoted"),
    [
        (["1,234", "2,345", "999", "3,456"], {}, "ambiguous-number", 2, ("'1,234'", "1.234", "1234", "`thousands`")),
        (["7", "8", "-2,345", "9,100"], {}, "ambiguous-number", 4, ("'-2,345'", "-2.345", "-2345", "`decimal`")),
        (["1.5", "2,5", "3", "4"], {"decimal": ","}, "not-a-number", 2, ("'1.5'", "decimal = ','")),
        (["1.5", "2", "3", "4"], {"thousands": "."}, "not-a-number", 2, ("'1.5'", "thousands = '.'")),
        (["18,5", "2", "3", "4"], {"decimal": "."}, "not-a-number", 2, ("'18,5'",)),
    ],
)
def test_ambiguous_number_is_named_with_its_line(cells, options, code, line, quoted):
    with refused(code, "ca", f"a.csv, line {line}", *quoted):
        written(cells, **options)


def test_options_override_detection():
    Path("a.csv").write_bytes("age;town|ill\n63,5;Köln|1\n41,5;Bonn|0\n".encode("cp1252"))
    assert TextForm.of(Path("a.csv"))[:3] == (";", ",", "cp1252")
    data = read_tables([Path("a.csv")], "ill", reading=ReadOptions("|", encoding="latin-1"))
    assert data.columns == ("age;town_63,5;Köln",)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"delimiter": "ab"}, "delimiter"),
        ({"delimiter": "7"}, "delimiter"),
        ({"decimal": ";"}, "decimal"),
        ({"thousands": "_"}, "thousands"),
        ({"encoding": "utf-9"}, "encoding"),
    ],
)
def test_impossible_options_are_refused(options, field):
    with refused("unknown-name" if field == "encoding" else "invalid-value", field):
        ReadOptions(**options)
    with refused("conflicting-options", "thousands"):
        ReadOptions(decimal=",", thousands=",")
    assert ReadOptions(delimiter="tab", thousands=".") == ReadOptions("\t", ",", ".")


def test_missing_words_give_indicator_features_without_a_schema():
    rows = [("63", "north", 1), ("?", "south", 0), ("41", "", 0), ("-9", "north", 1)] * 5
    Path("a.csv").write_text("age,town,ill\n" + "".join(f"{a},{t},{i}\n" for a, t, i in rows))
    data = read_tables([Path("a.csv")], "ill", reading=ReadOptions(missing=("?", "-9")))
    assert data.columns == ("age", "age missing", "town_south", "town missing")
    assert data.inputs[:4, 1].tolist() == [0, 1, 0, 1]
    assert data.inputs[:4, 0].isnan().tolist() == [False, True, False, True]
    assert data.inputs[:4, 3].tolist() == [0, 0, 1, 0]
    assert data.schema
    with refused("not-a-number", "age", "a.csv, line 3", "'?'"):
        read_tables([Path("a.csv")], "ill", drop=["town"])
    with refused("missing-values", "town", "a.csv, line 4"):
        read_tables([Path("a.csv")], "ill", reading=ReadOptions(decimal="."), drop=["age"])


def test_schema_reads_every_file_in_the_same_way():
    Path("a.csv").write_text("age,ill\n" + '"1,234",no\n?,yes\n' * 6)
    Path("s.toml").write_text(
        'thousands = ","\nmissing = ["?"]\n[columns.age]\ntype = "number"\nmissing = [""]\n'
        '[columns.ill]\ntype = "yes/no"\nlevels = ["no", "yes"]\nrole = "target"\n'
    )
    schema = TableSchema.read("s.toml")
    data = read_tables([Path("a.csv")], schema=schema)
    assert data.inputs[0].tolist() == [1234, 0]
    assert data.inputs[1].isnan().tolist() == [True, False]
    assert data.inputs[1, 1] == 1
    schema.write("again.toml")
    assert TableSchema.read("again.toml") == schema
    assert schema.digest != replace(schema, reading=ReadOptions(thousands=",")).digest
    with refused("conflicting-options", "thousands", "'.'", "','"):
        read_tables([Path("a.csv")], schema=schema, reading=ReadOptions(thousands="."))
    with refused("conflicting-options", "ill", "'no'"):
        replace(schema, reading=ReadOptions(missing=("no",)))


def test_data_frame_is_read_like_a_file():
    frame = pd.DataFrame(
        {"site": list("ab") * 12, "dose": ["1.234,5", "2,5", "?"] * 8, "ill": [*["no", "yes"] * 11, "yes", "no"]}
    )
    data = ClientData.from_frame(
        frame, group="site", target="ill", standardise=False, reading=ReadOptions(missing=("?",))
    )
    assert data.columns == ("dose", "dose missing")
    assert data.inputs[:2].tolist() == [[1234.5, 0], [2.5, 0]]
    assert data.inputs[2, 1] == 1
    plain = frame[frame["dose"] != "?"]
    data = ClientData.from_frame(plain, group="site", target="ill", standardise=False, reading=ReadOptions(decimal=","))
    assert data.inputs[:2, 0].tolist() == [1234.5, 2.5]
    with refused("not-a-number", "dose"):
        ClientData.from_frame(plain, group="site", target="ill")
    with refused("unused-option", "delimiter"):
        ClientData.from_frame(plain, group="site", target="ill", reading=ReadOptions(";"))
    with refused("wrong-type", "reading"):
        ClientData.from_frame(plain, group="site", target="ill", reading=None)


def test_leading_zero_implies_a_decimal_comma():
    assert written(["0,125", "10,250", "1,500", "2"])[0] == [0.125, 10.25, 1.5, 2]


LINES = ["age,dose,note,ill", *(f"{k},{k % 7}.5,x{k % 3},{k % 2}" for k in range(60))]
"""A table of four columns; row k is in line k + 2."""


def changed(changes, lines=LINES):
    return "\n".join(changes.get(k, line) for k, line in enumerate(lines, start=1))


@pytest.mark.parametrize(
    ("content", "quoted"),
    [
        (changed({6: "1,2,3,x,1"}), ("line 6", "4 cells", "5", "Quote")),
        (changed({61: "1,2,3,x,1"}), ("line 61", "4 cells", "5", "Quote")),
        (changed({2: "1,2,3,x,1"}), ("line 2", "4 cells", "5", "Quote")),
        # row names of R
        (changed({k: f"{k},{line}" for k, line in enumerate(LINES, start=1) if k > 1}),
         ("line 1", "4 cells", "line 2", "5", "first column a name")),
        ("ward A\n" + changed({}), ("line 1", "1 cell", "line 2", "4", "Remove the lines above the header")),
        ("ward A\n\n# 2021\n" + changed({}), ("line 1", "1 cell", "line 4", "4", "Remove the lines")),
        ("ward A, 2021\n" + changed({}), ("line 1", "2 cells", "line 2", "4", "Remove the lines")),
        ("ward A\n" + changed({}).replace(",", ";"), ("line 1", "1 cell", "line 2", "4", "Remove the lines")),
        ("ward A, 2021\n" + changed({}).replace(",", ";").replace(".", ","), ("line 1", "line 2", "Remove the lines")),
        ("sep=;\nward A\n" + changed({}).replace(",", ";"), ("line 2", "1 cell", "line 3", "4", "Remove the lines")),
        (changed({9: '1,2,"x,1'}), ("line 9", "53 lines", "quotation mark")),
        (changed({9: '1,2,"x'}), ("line 9", "does not end", "quotation mark")),
        (changed({60: '1,2,"x\nmore",1', 61: '1,2,x,"1'}), ("line 62", "does not end", "quotation mark")),
        ('age,"dose,note,ill\n' + "\n".join(LINES[1:]), ("line 1", "does not end")),
        ("\ufeff" + changed({1: '"age, years",dose,note,ill', 4: "1,2,3,x,1"}), ("line 4", "4 cells", "5")),
        (changed({k: f"{line}," for k, line in enumerate(LINES, start=1) if k > 1} | {7: "1,2,x,1,5,"}), ("line 7",)),
    ],
)  # fmt: skip
def test_wrong_number_of_cells_is_named_with_line_and_remedy(content, quoted):
    Path("a.csv").write_text(content)
    with refused("damaged-file", "a.csv", *quoted):
        read_tables([Path("a.csv")], "ill")


def test_wrong_number_of_cells_ends_a_command(capsys):
    Path("a.csv").write_text(changed({6: "1,2,3,x,1"}))
    check_refusal(["run", "--data", "a.csv", "--target", "ill", "--out", "r"], "damaged-file", "a.csv", "line 6")
    assert capsys.readouterr().err.count("\n") == 1
    (problem,) = describe([Path("a.csv")], "ill").problems
    assert (problem.code, problem.field) == ("damaged-file", "a.csv")


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ('1,2,"severe pain,1', '2,3,severe pain",0'),
        ('1,2,"severe pain,1', '2,3,"severe pain",0'),
        ('1,2,"severe pain,1', '2,3,"severe, pain",0'),
        ('1,2,"severe pain,1', '2",3,severe pain,0'),
        ('1,2,"severe pain,1', '2,3,x,"0"'),
        ('1,"2,severe pain,1', '2,3,severe pain",0'),
        ('1,2,severe pain,"1', '2,3,severe pain,0"'),
        ('"1,2,severe pain,1', '2",3,severe pain,0'),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_stray_quotation_mark_does_not_swallow_rows(opening, closing, end):
    content = changed({11: opening, 31: closing, 5: '1,2,"x\ny",0'})
    Path("a.csv").write_bytes(content.replace("\n", end).encode())
    with refused("damaged-file", "a.csv", "line 12", "21 lines"):
        read_tables([Path("a.csv")], "ill")


def test_stray_quotation_mark_is_found_beside_truth_values():
    lines = ["ok,note,ill", *(f"TRUE,x{k % 3},{k % 2}" for k in range(20))]
    Path("a.csv").write_text(changed({5: 'TRUE,"severe pain,1', 9: 'FALSE,severe pain",0'}, lines))
    with refused("damaged-file", "a.csv", "line 5", "5 lines"):
        read_tables([Path("a.csv")], "ill")


def test_missing_quotation_mark_does_not_join_two_rows():
    quoted = [f'{k},{k % 7}.5,"x{k % 3}",{k % 2}' for k in range(20)]
    Path("a.csv").write_text(changed({8: '1,2,"severe pain,1'}, [LINES[0], *quoted]))
    with refused("damaged-file", "a.csv", "line 8", "2 lines"):
        read_tables([Path("a.csv")], "ill")
    schema = describe([Path("a.csv")], "ill").schema
    assert schema is None


@pytest.mark.parametrize(
    "note",
    ["pain", "fever, pain,\nnone, x", "one\na, b, c, d\nend", "one, two\n\na, b, c\r\nend", "\n,,,\n",
     'he said ""no""\nand left', "a, b\n1, 2, 3, 4\nc, d, e, 5\ng, h"],
)  # fmt: skip
def test_notes_with_line_breaks_are_cells(note):
    rows = [f'{k},{k % 7}.5,"{note}",{k % 2}' for k in range(12)]
    Path("a.csv").write_bytes("\n".join([LINES[0], *rows]).encode())
    data = read_tables([Path("a.csv")], "ill", drop=["note"])
    assert data.inputs[:, 0].tolist() == [*range(12)]
    Path("a.csv").write_bytes("\n".join([LINES[0], *rows, ",2,x,1"]).encode())
    line = 14 + 12 * len(re.findall(r"\r\n|\n", note))
    with refused("missing-values", "age", f"a.csv, line {line}"):
        read_tables([Path("a.csv")], "ill", drop=["note"])


@pytest.mark.parametrize("first", ["sep=;", "SEP=;", '"sep=;"', "\n\nsep=;", "\ufeffsep=;", "sep=;;"])
@pytest.mark.parametrize("encoding", ["utf-8", pytest.param("utf-16", marks=pytest.mark.long)])
def test_line_for_excel_names_the_delimiter(first, encoding):
    content = "age;b,c,d,e;ill\n63,5;x;1\n41,5;y;0\n"
    Path("a.csv").write_bytes((first + "\n" + content).encode(encoding))
    data = read_tables([Path("a.csv")], "ill")
    assert data.columns == ("age", "b,c,d,e_y")
    assert data.inputs[:, 0].tolist() == [63.5, 41.5]
    Path("a.csv").write_bytes((first + "\n" + content + "?;x;1\n").encode(encoding))
    with refused("not-a-number", "age", f"a.csv, line {first.count(chr(10)) + 5}"):
        read_tables([Path("a.csv")], "ill")
    assert TextForm.of(Path("a.csv"), ReadOptions(delimiter=",")).delimiter == ","


def test_number_of_columns_is_limited_below_a_line_for_excel():
    Path("a.csv").write_text("sep=;\n" + ";" * 200_000 + "\n1\n")
    with refused("file-too-large", "a.csv"):
        read_tables([Path("a.csv")], "ill")


COSTS = ["950", "1.367", "2.595", "12.100", "1.367", "-3.000", "820", "4.100"]


def costs(cells=COSTS, delimiter=";", more="x", first="1"):
    rows = (delimiter.join([cell, more, first if k == 0 else "1", str(k % 2)]) for k, cell in enumerate(cells))
    Path("a.csv").write_text("\n".join([delimiter.join(["cost", "town", "age", "ill"]), *rows]) + "\n")


@pytest.mark.parametrize("delimiter", [";", pytest.param("\t", marks=pytest.mark.long)])
@pytest.mark.parametrize("cells", [[*COSTS, "NA"], [f" {cell} " for cell in COSTS]])
def test_column_that_mixes_950_and_1_367_is_ambiguous(delimiter, cells):
    costs(cells, delimiter)
    with refused("ambiguous-number", "cost", "a.csv, line 3", "'1.367'", "1.367", "1367", "`decimal`", "`thousands`"):
        read_tables([Path("a.csv")], "ill", drop=["town"])
    assert [(problem.code, problem.field) for problem in describe([Path("a.csv")], "ill").problems] == [
        ("ambiguous-number", "cost")
    ]
    schema = TableSchema((
        Column("cost", "number", missing=("", "NA")), Column("town", "text"), Column("age", "number"),
        Column("ill", "yes/no", levels=("0", "1"), role="target"),
    ))  # fmt: skip
    with refused("ambiguous-number", "cost", "a.csv, line 3"):
        read_tables([Path("a.csv")], schema=schema)
    numbers = [float(cell) for cell in COSTS]
    wholes = [float(cell.replace(".", "")) for cell in COSTS]
    for options, expected in (({"decimal": "."}, numbers), ({"thousands": "."}, wholes), ({"decimal": ","}, wholes)):
        data = read_tables([Path("a.csv")], schema=schema, reading=ReadOptions(**options))
        assert data.inputs[: len(COSTS), 0].tolist() == expected


def test_marks_decide_an_ambiguous_column_in_a_command(capsys):
    costs(COSTS * 6)
    words = ["data", "describe", "a.csv", "--target", "ill"]
    check_refusal(["run", "--data", "a.csv", "--target", "ill", "--out", "r"], "ambiguous-number", "cost")
    assert call([*words, "--strict"]) == 2
    assert "1367" in capsys.readouterr().out
    assert call([*words, "--decimal", "."]) == 0
    assert "-3 to 950" in capsys.readouterr().out
    assert call([*words, "--thousands", "."]) == 0
    assert "-3000 to 12100" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"delimiter": ","}, {}),
        ({"delimiter": "|"}, {}),
        ({"first": "63.5"}, {}),  # another column has a decimal point
        ({"cells": [*COSTS, "0.367"]}, {}),
        ({"cells": [*COSTS, "1500"]}, {}),
        ({"cells": [*COSTS, "1.5"]}, {}),
        ({"cells": ["950", "1.367", "2.595", "3.000", "4.100", "4.100"]}, {}),  # too few numbers
        ({"cells": [cell for cell in COSTS if "." in cell]}, {}),  # all numbers have a mark
        ({}, {"thousands": "'"}),
    ],
)
def test_other_columns_with_three_decimals_are_numbers(change, options):
    costs(**change)
    data = read_tables([Path("a.csv")], "ill", drop=["town"], reading=ReadOptions(**options))
    cells = change.get("cells", COSTS)
    assert data.inputs[:, 0].tolist() == [float(cell) for cell in cells]


def test_decimal_comma_elsewhere_decides_that_points_separate_thousands():
    costs(first="63,5")
    data = read_tables([Path("a.csv")], "ill", drop=["town"])
    assert data.inputs[:4, 0].tolist() == [950, 1367, 2595, 12100]


def test_whole_number_beyond_64_bits_is_read(tmp_path):
    (tmp_path / "a.csv").write_text(f"age,ill\n{'9' * 60},0\n1,1\n")
    assert list(Table.read(tmp_path / "a.csv", ["ill"]).frame["age"]) == [int("9" * 60), 1]
