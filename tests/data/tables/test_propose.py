"""Test proposed schemas and the description of tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.support.refusals import quotes, refused

from drfl.data.table_description import check_files, describe
from drfl.data.tables.propose import propose
from drfl.data.tables.table_files import read_tables
from drfl.data.tables.text_form import ReadOptions


def table(n=60, seed=0, **changes):
    rng = np.random.default_rng(seed)
    columns = {
        "row": range(n),
        "age": rng.integers(20, 80, n),
        "dose": rng.normal(size=n).round(2),
        "sex": rng.choice(["f", "m"], n),
        "smoker": rng.choice(["Yes", "No"], n),
        "grade": rng.choice(["a", "b", "c"], n),
        "seen": rng.choice(["2021-03-01", "2021-04-01"], n),
        "flag": rng.integers(0, 2, n),
        "name": [f"Person {seed} {k}" for k in range(n)],
        "note": [f"words {k % 35}" for k in range(n)],
        "ill": rng.integers(0, 2, n),
    }
    return pd.DataFrame({**columns, **changes})


def columns_of(schema):
    return {column.name: column for column in schema.columns}


def test_types_are_inferred():
    found = propose([table(), table(seed=1).iloc[:, ::-1]], "ill", drop=["note"])
    columns = columns_of(found.schema)
    assert {name: column.type for name, column in columns.items()} == {
        "row": "id", "age": "whole number", "dose": "number", "sex": "category", "smoker": "yes/no",
        "grade": "category", "seen": "date", "flag": "whole number", "name": "id", "note": "text", "ill": "yes/no",
    }  # fmt: skip
    assert columns["smoker"].levels == ("No", "Yes")
    assert (columns["ill"].levels, found.schema.positive, found.schema.task) == (("0", "1"), "1", "classification")
    assert columns["note"].role == "excluded"
    assert columns["age"].range is None
    assert [(notice.code, notice.field) for notice in found.notices] == [("identifier", "row"), ("identifier", "name")]


def test_rare_values_are_not_written():
    grades = ["a", "b"] * 28 + ["rare"] * 4
    found = propose([table(grade=grades)], "ill", drop=["note"])
    grade = columns_of(found.schema)["grade"]
    assert (grade.levels, grade.other) == (("a", "b"), True)
    assert ("rare-levels", "grade") in [(notice.code, notice.field) for notice in found.notices]
    target = propose([table(ill=grades)], "ill", drop=["note"])
    assert target.schema.classes == ("a", "b")
    assert ("rare-levels", "ill") in [(notice.code, notice.field) for notice in target.notices]
    with refused("constant-target", "ill"):
        propose([table(ill=["a"] * 56 + ["rare"] * 4)], "ill")


def test_missing_values_get_codes():
    words = ["1.5", "", "NA", "?"] + ["2"] * 56
    found = columns_of(propose([table(dose=words, sex=[""] + ["f", "m"] * 29 + ["f"])], "ill").schema)
    assert found["dose"].missing == ("", "?", "NA")
    assert found["sex"].missing == ("",)


def test_task_follows_from_the_target():
    assert propose([table()], "dose").schema.task == "regression"
    assert propose([table()], ("dose", "age")).schema.task == "regression"
    assert propose([table()], ("flag", "ill")).schema.task == "multi-label"
    unknown = propose([table(flag=["", "NA"] + [0, 1] * 29)], ("flag", "ill")).schema
    assert unknown.task == "multi-label"
    assert {column.name: column.missing for column in unknown.targets} == {"flag": ("", "NA"), "ill": ()}
    assert propose([table()], "flag", task="regression").schema.targets[0].type == "whole number"
    with refused("unknown-name", "target", "'ill'"):
        propose([table()], "il")
    with refused("conflicting-options", "ill"):
        propose([table()], "ill", "ill")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    for seed, name in enumerate("abc"):
        rows = table(seed=seed).drop(columns=["row", "name", "note"])
        if name == "a":
            rows["dose"] = ["1.0", "<0.5", ""] + ["2.5", "3.5", "4.5"] * 19
        if name == "b":
            rows["age"] = rows["age"] * 12
            rows.loc[7, "sex"] = "F"
        rows.to_csv(f"in/{name}.csv", index=False)
    Path("in/d.csv").write_text("")
    Path("in/notes.pdf").write_text("")
    return tmp_path


def test_description_continues_after_the_first_problem(folder):
    found = describe([Path("in")], "ill")
    assert [(site.name, site.rows) for site in found.sites] == [("a", 60), ("b", 60), ("c", 60)]
    rows = table(seed=2)
    last = found.sites[2]
    assert last.positive == int(rows["ill"].sum())
    assert last.columns["smoker"].levels == rows["smoker"].value_counts().sort_index().to_dict()
    assert last.columns["age"].range == (str(rows["age"].min()), str(rows["age"].max()))
    assert (found.sites[0].columns["dose"].missing, found.sites[1].columns["sex"].levels["F"]) == (1, 1)
    assert sorted((problem.code, problem.field) for problem in found.problems) == [
        ("damaged-file", "in/d.csv"),
        ("not-a-number", "dose"),
        ("similar-values", "sex"),
    ]
    codes = {notice.code for notice in found.notices}
    assert {"unit-mismatch", "rare-levels"} <= codes


def test_file_without_a_column_is_described_with_the_others(tmp_path):
    for seed, name in enumerate("abc"):
        rows = table(seed=seed).drop(columns=["row", "name", "note", *(["age"] if name == "a" else [])])
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    found = describe([tmp_path], "ill")
    assert [(problem.code, problem.field) for problem in found.problems] == [("missing-column", "age")]
    assert [site.rows for site in found.sites] == [60, 60, 60]


@pytest.mark.parametrize(
    ("dates", "order"),
    [
        ((["31.03.2021", "01.02.2021"], ["30.4.2021", "2.1.2021"]), "DMY"),
        ((["31.03.2021", "01.02.2021"], ["3/4/2021", "2/1/2021"]), None),
        ((["31.03.2021", "01.02.2021"], ["2021-04-03", "2021-02-01"]), "DMY"),
        ((["3/31/2021", "1/2/2021"], ["4/30/2021", "2/1/2021"]), "MDY"),
        ((["31.03.2021", "01.02.2021"], ["3/31/2021", "2/1/2021"]), None),
    ],
)
def test_order_of_dates_is_taken_from_dates_with_the_same_marks(dates, order):
    parts = [pd.DataFrame({"seen": own * 20, "ill": [0, 1] * 20}) for own in dates]
    columns = {column.name: column for column in propose(parts, "ill").schema.columns}
    assert (columns["seen"].type, columns["seen"].date_order) == ("date", order)


def test_check_lists_every_problem_of_every_file(folder):
    schema = describe([Path("in")], "ill").schema
    good = {check.path.name: check for check in check_files([Path("in")], schema).files}
    assert [len(check.problems) for check in good.values()] == [1, 1, 0, 1]
    assert quotes(str(good["a.csv"].problems[0]), "in/a.csv, line 3", "'dose'", "'<0.5'")
    assert quotes(str(good["b.csv"].problems[0]), "in/b.csv, line 9", "'sex'", "'F'", "'f'")
    assert (good["b.csv"].rows, good["d.csv"].rows) == (60, None)
    read = pd.read_csv("in/c.csv").rename(columns={"age": "Age"})
    read.loc[2, "smoker"] = "maybe"
    read.to_csv("in/c.csv", index=False)
    problems = check_files([Path("in/c.csv")], schema).files[0].problems
    assert [problem.code for problem in problems] == ["missing-column", "extra-column", "unknown-level"]


def test_client_can_be_a_column(folder):
    whole = pd.concat([table(seed=k, who=f"site {k}") for k in range(2)])
    whole.to_csv("all.csv", index=False)
    found = describe([Path("all.csv")], "ill", "who", ["row", "name", "note"])
    assert [site.name for site in found.sites] == ["site 0", "site 1"]
    assert (found.schema.client, found.problems) == ("who", ())


def test_client_of_one_row_or_patient_is_a_problem(folder):
    frame = pd.concat([table(seed=k, who=f"site {k}") for k in range(2)], ignore_index=True)
    frame = frame.drop(columns=["row", "name", "note"])
    frame["patient"] = np.arange(len(frame)) // 2
    lone = frame[-1:].assign(who="lonely")
    pd.concat([frame, lone]).to_csv("all.csv", index=False)
    (problem,) = describe([Path("all.csv")], "ill", "who", ["patient"]).problems
    assert (problem.code, "'lonely' has 1 row" in str(problem)) == ("few-rows", True)
    pd.concat([frame, frame[-2:].assign(who="lonely", patient=-1)]).to_csv("all.csv", index=False)
    assert describe([Path("all.csv")], "ill", "who", ["patient"]).problems == ()
    (problem,) = describe([Path("all.csv")], "ill", "who", patient="patient").problems
    assert (problem.code, "'lonely' has 1 patient" in str(problem)) == ("few-rows", True)


def test_blank_column_is_reported_as_blank():
    frame = table().assign(crp=np.nan)
    notices = propose([frame.drop(columns=["row", "name", "note", "who"], errors="ignore")], "ill").notices
    (notice,) = [notice for notice in notices if notice.field == "crp"]
    assert notice.code == "blank-column"


def test_column_in_another_spelling_is_reported_for_the_minority_of_files(tmp_path):
    for seed, name in enumerate("abc"):
        rows = table(seed=seed).drop(columns=["row", "name", "note"])
        rows.rename(columns={"age": "Age"} if name == "b" else {}).to_csv(tmp_path / f"{name}.csv", index=False)
    problems = [problem for problem in describe([tmp_path], "ill").problems if problem.code == "missing-column"]
    assert {problem.field for problem in problems} == {"age", "Age"}
    for problem in problems:
        assert quotes(str(problem), "b.csv", "'Age'", "'age'")
        assert "a.csv" not in str(problem)


@pytest.mark.parametrize("task", [None, "regression"])
@pytest.mark.parametrize("targets", [("y",), ("y", "z")])
def test_numbers_to_predict_may_have_decimal_commas(tmp_path, task, targets):
    y = np.random.default_rng(0).normal(size=(60, 2)).round(2) + 20
    frame = pd.DataFrame({"site": [*"ab"] * 30, "x": np.arange(60) % 7 / 4, "y": y[:, 0], "z": y[:, 1]})
    frame = frame[["site", "x", *targets]]
    frame.to_csv(tmp_path / "a.csv", sep=";", decimal=",", index=False)
    found = describe([tmp_path / "a.csv"], targets, "site", task=task)
    assert not found.problems
    assert found.schema.task == "regression"
    assert found.files[str(tmp_path / "a.csv")].columns == targets
    expected = frame[[*targets]].to_numpy(np.float32).squeeze()
    for options in ({"schema": found.schema}, {"reading": ReadOptions(missing=("?",))}):
        data = read_tables([tmp_path / "a.csv"], targets, "site", task="regression", **options)
        np.testing.assert_array_equal(data.targets, expected)


def test_classes_keep_their_marks(tmp_path):
    rows = [f"{k % 7},5;{('1,5', '2,5', 'x')[k % 3]};{'ab'[k % 2]}" for k in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["x;y;site", *rows]))
    found = describe([tmp_path / "a.csv"], "y", "site")
    assert not found.problems
    assert found.schema.classes == ("1,5", "2,5", "x")
    assert read_tables([tmp_path / "a.csv"], schema=found.schema).class_names == ("1,5", "2,5", "x")
