"""Test the user's own tables, as a data set and in the command."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tests.support.marks import crossed, long_beyond
from tests.support.refusals import check_refusal, refused

from drfl.cli.app import call
from drfl.data.tables.table_files import read_tables
from drfl.data.tables.text_form import ReadOptions
from drfl.experiments.config.build import build
from drfl.experiments.config.config import load_config
from drfl.experiments.run.resume import identity

ROWS = [
    {"age": 30 + i, "sex": "fm"[i % 2], "site": "AB"[i % 3 > 0], "ill": ["no", "yes"][i % 5 > 2], "note": f"n{i}"}
    for i in range(60)
]


def write(path: Path, rows, columns=None) -> Path:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns or list(rows[0]), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def without(*names):
    return [{name: value for name, value in row.items() if name not in names} for row in ROWS]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("all.csv"), without("note"))
    for site in "AB":
        write(Path("sites", f"{site}.csv"), [row for row in ROWS if row["site"] == site], ["age", "sex", "ill"])
    return tmp_path


def test_words_become_columns_and_classes():
    data = read_tables([Path("all.csv")], "ill", "site")
    assert data.inputs.shape == (60, 2)  # age, and sex = m
    assert data.inputs[:4].tolist() == [[30, 0], [31, 1], [32, 0], [33, 1]]
    assert data.targets.tolist() == [int(row["ill"] == "yes") for row in ROWS]
    assert data.groups == tuple(row["site"] for row in ROWS)
    assert (data.classes, data.is_one_pool, data.standardise) == (2, True, True)


def test_column_far_from_zero_keeps_its_digits():
    edited(lambda rows: [row.update(age=1_700_000_000 + k) for k, row in enumerate(rows)])
    job = build(load_config(None, {"data": "all.csv", "target": "ill", "group": "site"}))
    order = job.data.inputs[:, 0].argsort()
    steps = job.data.inputs[:, 0].diff()
    assert job.data.inputs.dtype == torch.float32
    assert order.tolist() == [*range(60)]
    assert steps.tolist() == pytest.approx([float(steps.mean())] * 59, rel=1e-4)


def test_each_file_is_a_client():
    data = read_tables([Path("sites")], "ill")
    assert data.groups == tuple(sorted(row["site"] for row in ROWS))
    again = read_tables([Path("sites/A.csv"), Path("sites/B.csv")], "ill")
    assert torch.equal(data.inputs, again.inputs)
    assert read_tables([Path("sites/A.csv")], "ill").groups is None


def test_category_missing_in_one_file_has_a_column_there():
    write(Path("sites/B.csv"), [{**row, "sex": "f"} for row in ROWS[:9]], ["age", "sex", "ill"])
    assert read_tables([Path("sites")], "ill").inputs.shape[1] == 2


def test_npz_arrays_are_read():
    x, y, who = np.random.default_rng(0).random((12, 2, 3)), np.arange(12) % 3, np.arange(12) // 6
    np.savez("a.npz", inputs=x, label=y, who=who)
    data = read_tables([Path("a.npz")], "label", "who")
    assert torch.equal(data.inputs, torch.from_numpy(x.astype(np.float32)))
    assert data.targets.tolist() == y.tolist()
    assert data.groups == ("0",) * 6 + ("1",) * 6
    assert not data.standardise


def edited(change):
    rows = [dict(row) for row in without("note")]
    change(rows)
    write(Path("all.csv"), rows)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda rows: rows[7].update(age=""), ("missing-values", "age", "all.csv, line 9")),
        (lambda rows: rows[0].update(ill=""), ("missing-values", "ill", "all.csv, line 2")),
        (lambda rows: rows[3].update(site="a"), ("similar-names", "group", "'A'", "'a'")),
        (lambda rows: rows[3].update(site="   "), ("missing-values", "site", "all.csv, line 5")),
        (lambda rows: rows[2].update(age="1e99"), ("not-finite", "age", "all.csv, line 4", "1e+30")),
        (lambda rows: [row.update(ill="no") for row in rows], ("constant-target", "ill")),
        (
            lambda rows: [row.update(ill=i / 8) for i, row in enumerate(rows)],
            ("invalid-value", "ill", "all.csv, line 3", "0.125"),
        ),
        (lambda rows: [row.update(sex=f"w{i}") for i, row in enumerate(rows)], ("too-many-categories", "sex", "60")),
        (lambda rows: rows.clear() or rows.append({"site": "", "ill": "", "age": ""}), ("missing-values", "site")),
    ],
)
def test_error_in_a_table_names_the_place(change, error):
    edited(change)
    with refused(*error):
        read_tables([Path("all.csv")], "ill", "site")


@pytest.mark.parametrize("rows", [["1,0,7", "2,1,7"], ["1,0", "2,1,7"]])
def test_rows_longer_than_the_header_are_not_row_names(rows):
    Path("long.csv").write_text("\n".join(["age,ill", *rows]))
    with refused("damaged-file", "long.csv"):
        read_tables([Path("long.csv")], "ill")


def test_line_numbers_are_those_of_the_file():
    rows = ["age,ill,note", "", '1,0,"two', 'lines"', "  ", "2,1,x", ",0,y", "", "3,0.5,z"]
    text = "\n".join(rows)
    Path("odd.csv").write_text(text)
    with refused("missing-values", "age", "odd.csv, line 7"):
        read_tables([Path("odd.csv")], "ill")
    Path("odd.csv").write_text(text.replace(",0,y", "4,0,y"))
    with refused("invalid-value", "ill", "odd.csv, line 9", "0.5"):
        read_tables([Path("odd.csv")], "ill")
    Path("odd.csv").write_text(text.replace(",0,y", "4,0,y").replace("age,ill", "ill,age").replace("z", "z\n1,-1e40,v"))
    with refused("not-finite", "age", "odd.csv, line 10"):
        read_tables([Path("odd.csv")], "ill")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--data none.csv --target ill", ("file-not-found", "none.csv")),
        ("--data all.csv", ("missing-option", "target")),
        ("--data all.csv --target il", ("unknown-name", "target", "all.csv", "'il'", "'ill'")),
        ("--data all.csv --target ill --group sit", ("unknown-name", "group", "'site'")),
        ("--data all.csv --target ill --drop sx", ("unknown-name", "drop", "'sex'")),
        ("--data all.csv --target ill --group ill", ("conflicting-options", "ill")),
        ("--data all.csv --target ill --dataset digits", ("conflicting-options", "data")),
        ("--data all.csv --target ill --data-dir .", ("unused-option", "data_dir")),
        ("--data all.csv --target ill --partition natural", ("missing-groups", "partition")),
        ("--data all.csv --target ill --group site --clients 3", ("out-of-range", "clients", "'natural'", "2")),
        ("--data empty --target ill", ("file-not-found", "empty")),
        ("--data odd.txt --target ill", ("unsupported-file", "odd.txt")),
        ("--data all.csv --data bare.npz --target ill", ("conflicting-options", "data")),
        ("--data odd.npz --target ill", ("damaged-file", "odd.npz")),
        ("--data bytes.csv --target ill", ("damaged-file", "bytes.csv")),
        ("--data all.csv --data sites/A.csv --target ill", ("columns-differ", "site")),
        ("--data sites/A.csv --data other/A.csv --target ill", ("duplicate-name", "A")),
        ("--data twice.csv --target ill", ("duplicate-column", "ill")),
        ("--data sites/A.csv --data headless.csv --target ill", ("columns-differ", "1", "line")),
        ("--data sites/A.csv --data zeros.csv --target ill", ("duplicate-column", "0", "line")),
        ("--data head.csv --target ill", ("no-rows", "head.csv")),
        ("--target ill", ("unused-option", "target")),
        ("--group site", ("unused-option", "group")),
        ("--drop site", ("unused-option", "drop")),
    ],
)
def test_mistake_is_a_one_line_error(words, error, folder, capsys):
    Path("empty").mkdir()
    Path("odd.txt").write_text("a,b\n1,2\n")
    Path("odd.npz").write_bytes(b"PK nothing")
    np.savez("bare.npz", inputs=np.ones((4, 2)), ill=[0, 1, 0, 1])
    Path("bytes.csv").write_bytes(b"\xff\xfe\x00\x00age\n")
    Path("twice.csv").write_text("ill,ill \n1,2\n")
    Path("head.csv").write_text("age,ill\n")
    Path("headless.csv").write_text("62,m,1\n48,f,0\n")
    Path("zeros.csv").write_text("0,m,0\n48,f,1\n")
    write(Path("other/A.csv"), ROWS, ["age", "sex", "ill"])
    check_refusal(f"run {words} --out r --rounds 1".split(), *error)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert not Path("r").exists()


def test_folder_of_files_is_compared_and_repeated(capsys):
    words = "compare --data sites --target ill --algorithms DRFA --seeds 1 --rounds 2 --out r"
    assert call(words.split()) == 0
    clients = Path("r/DRFA-seed0/clients.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in clients] == ["client", "A", "B"]
    assert call(["run", "r/DRFA-seed0/config.toml", "--out", "again"]) == 0
    assert Path("again/history.csv").read_bytes() == Path("r/DRFA-seed0/history.csv").read_bytes()


def test_run_is_identified_by_rows_and_not_by_path():
    def known(path):
        return identity(build(load_config(None, {"data": path, "target": "ill", "group": "site"})))

    before = known("all.csv")
    Path("elsewhere").mkdir()
    Path("all.csv").rename("elsewhere/all.csv")
    edited(lambda rows: rows[0].update(age=99))
    assert known("elsewhere/all.csv") == before
    assert known("all.csv")["data"] != before["data"]


def test_table_without_clients_is_partitioned(capsys):
    pd.DataFrame({"x": np.arange(90.0), "y": np.arange(90) % 3}).to_csv("plain.csv", index=False)
    words = "run --data plain.csv --target y --clients 3 --alpha 1 --rounds 1 --out r"
    assert call(words.split()) in (0, 1)
    assert len(Path("r/clients.csv").read_text().splitlines()) == 4


GRID = [
    {"x": i % 7, "z": (i * i) % 11, "who": "abc"[i % 3], "y": i / 8, "y2": -3.0 * i, "a": i % 2, "b": int(i % 5 < 2)}
    for i in range(60)
]


@pytest.fixture
def grid(folder):
    """Write a file with numbers and labels to predict, and files of arrays."""
    write(Path("grid.csv"), GRID)
    x = np.random.default_rng(0).random((60, 2))
    np.savez(
        "grid.npz", inputs=x, y=x[:, 0] * 3, both=np.stack([x[:, 0] > 0.5, x[:, 1] > 0.5], 1), who=np.arange(60) % 3
    )
    np.savez("gap.npz", inputs=np.where(np.arange(12).reshape(6, 2) == 7, np.nan, 1.0), y=np.arange(6))
    np.savez("words.npz", inputs=np.full((6, 2), "x"), y=np.arange(6))


@pytest.mark.usefixtures("grid")
def test_numeric_targets_and_labels_are_read():
    one = read_tables([Path("grid.csv")], "y", "who", ["y2"], "regression")
    assert one.targets.tolist() == pytest.approx([row["y"] for row in GRID])
    assert (one.task, one.classes, one.columns, one.targets.dtype) == (
        "regression",
        1,
        ("x", "z", "a", "b"),
        torch.float32,
    )
    two = read_tables([Path("grid.csv")], ("y2", "y"), "who", task="regression")
    assert two.targets[3].tolist() == [-9.0, 0.375]
    labels = read_tables([Path("grid.csv")], ("a", "b"), "who", ("y", "y2"), "multi-label")
    assert (labels.classes, labels.targets[:3].tolist()) == (2, [[0, 1], [1, 1], [0, 0]])
    arrays = read_tables([Path("grid.npz")], "both", "who", task="multi-label")
    assert (arrays.classes, arrays.targets.shape) == (2, (60, 2))
    assert read_tables([Path("grid.npz")], "y", "who", task="regression").targets.shape == (60,)


@pytest.mark.usefixtures("grid")
def test_blank_labels_are_unknown(capsys):
    """At one of the clients, label b is unknown in all rows."""
    rows = [{**row, "a": "" if i % 7 == 0 else row["a"], "b": "" if row["who"] == "c" else row["b"]}
            for i, row in enumerate(GRID)]  # fmt: skip
    expected = np.array([[row["a"] or np.nan if row["a"] == "" else row["a"], np.nan if row["b"] == "" else row["b"]]
                         for row in rows], dtype=float)  # fmt: skip
    write(Path("gaps.csv"), rows)
    words = ("y", "y2")
    found = read_tables([Path("gaps.csv")], ("a", "b"), "who", words, "multi-label")
    np.testing.assert_array_equal(found.targets, expected)
    for name in "abc":
        write(Path(f"sites/{name}.csv"), [{k: v for k, v in row.items() if k != "who"} for row in rows
                                          if row["who"] == name])  # fmt: skip
    files = [Path(f"sites/{name}.csv") for name in "abc"]
    by_file = read_tables(files, ("a", "b"), None, words, "multi-label")
    order = [i for name in "abc" for i, row in enumerate(rows) if row["who"] == name]
    np.testing.assert_array_equal(by_file.targets, expected[order])
    np.savez("gaps.npz", inputs=np.ones((60, 2)), both=expected)
    np.testing.assert_array_equal(read_tables([Path("gaps.npz")], "both", task="multi-label").targets, expected)
    with refused("missing-values", "a", "gaps.csv", "2"):
        read_tables([Path("gaps.csv")], ("a", "b"), "who", words, "regression")
    run = "run --data gaps.csv --target a --target b --drop y --drop y2 --group who --task multi-label --metric auc"
    assert call(f"{run} --algorithm DRFA --rounds 2 --out r".split()) == 0, capsys.readouterr().err
    assert json.loads(Path("r/summary.json").read_text())["final"]["avg_loss"] < 5
    assert "label 1 at c" in capsys.readouterr().err


@pytest.mark.usefixtures("grid")
@pytest.mark.parametrize(
    ("words", "score", "below"),
    long_beyond(
        2,
        [
            # y is linear in the input y2
            ("--data grid.csv --target y --group who --task regression --rounds 15", "rmse", 0.5),
            ("--data grid.csv --target y --target y2 --task regression --clients 4 --rounds 2", "rmse", 99),
            ("--data grid.npz --target both --group who --task multi-label --rounds 2", "accuracy", 1.01),
            (
                "--data grid.csv --target a --target b --group who --task multi-label --metric f1 --rounds 2",
                "accuracy",
                1.01,
            ),
        ],
    ),
)
def test_run_uses_the_loss_and_score_of_its_task(words, score, below, capsys):
    assert call(f"run {words} --algorithm FedAvg --out r".split()) == 0, capsys.readouterr().err
    found = json.loads(Path("r/summary.json").read_text())
    assert found["measures"][0]["name"] == score
    assert found["final"][f"avg_{score}"] < below
    config = tomllib.loads(Path("r/config.toml").read_text())
    assert config["loss"] == {"rmse": "mse", "accuracy": "binary-cross-entropy"}[score]
    assert config["partition"] == ("natural" if "group" in words else "iid")
    assert call(["run", "r/config.toml", "--out", "again"]) == 0
    assert Path("again/history.csv").read_bytes() == Path("r/history.csv").read_bytes()


def test_own_regression_loss_uses_a_regression_score(grid):
    Path("mine.py").write_text("def cubed(outputs, targets):\n    return (outputs[:, 0] - targets).abs() ** 3\n")
    asked = {"data": "grid.csv", "target": "y", "group": "who", "task": "regression", "loss": "mine.py:cubed"}
    assert [metric.name for metric in load_config(None, asked).measures] == ["rmse"]


@pytest.mark.usefixtures("grid")
@pytest.mark.parametrize(
    ("words", "error"),
    [
        # known from the options alone
        ("--data grid.csv --target y --task regresion", ("invalid-value", "task", "'regresion'", "'classification'")),
        ("--data grid.csv --target a --target b", ("wrong-task", "target", "'classification'", "2")),
        ("--data grid.csv --target a --task multi-label", ("wrong-task", "target", "'multi-label'")),
        ("--data grid.csv --target y --target y --task regression", ("given-twice", "target", "'y'")),
        ("--data grid.csv --target y --drop y --task regression", ("conflicting-options", "drop", "'y'")),
        ("--data grid.csv --target y --group who --drop who", ("conflicting-options", "drop", "'who'")),
        (
            "--data grid.csv --target y --task regression --partition one-class",
            ("wrong-task", "partition", "'one-class'"),
        ),
        ("--data grid.csv --target y --task regression --alpha 1", ("unused-option", "alpha", "'iid'")),
        (
            "--data grid.csv --target y --task regression --loss cross-entropy",
            ("wrong-task", "loss", "'cross-entropy'"),
        ),
        ("--data grid.csv --target a --loss mse", ("wrong-task", "loss", "'mse'", "'classification'")),
        ("--data grid.csv --target y --task regression --score auc", ("wrong-task", "score", "'auc'")),
        ("--data grid.csv --target a --metric r2", ("wrong-task", "score", "'r2'", "'classification'")),
        ("--task regression", ("unused-option", "task")),
        ("--dataset digits --loss mse", ("wrong-task", "loss", "'mse'")),
        # known from the rows
        ("--data grid.csv --target who --task regression", ("invalid-value", "who", "grid.csv, line 2", "'a'")),
        (
            "--data grid.csv --target a --target x --task multi-label",
            ("invalid-value", "x", "4", "'2'"),
        ),
        ("--data grid.csv --target a --target who --task multi-label", ("invalid-value", "who", "2", "'a'")),
        ("--data grid.npz --target y --task multi-label", ("invalid-value", "y", "'1.910885061964363'")),
        ("--data grid.npz --target both", ("wrong-task", "target", "'classification'", "2")),
        ("--data gap.npz --target y", ("not-finite", "inputs", "gap.npz", "4", "(1,)")),
        ("--data words.npz --target y", ("not-a-number", "inputs", "words.npz", "<U1")),
    ],
)
def test_mistake_with_numbers_or_labels_is_a_one_line_error(words, error, capsys):
    check_refusal(f"run {words} --out r --rounds 1".split(), *error)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert not Path("r").exists()


@pytest.mark.parametrize(("ending", "missing"), crossed(["csv", "xlsx", "parquet", "npz"], [(), ("",)]))
def test_column_of_one_file_can_be_dropped(tmp_path, ending, missing):
    folder = tmp_path / "mixed"
    folder.mkdir()
    for name in "abc":
        frame = pd.DataFrame({"x": np.arange(30) % 7 / 2, "ill": np.arange(30) % 2})
        if name == "b":
            frame.insert(0, "Unnamed: 0", np.arange(30))
        file = folder / f"{name}.{ending}"
        if ending == "npz":
            np.savez(file, **{column: frame[column].to_numpy() for column in frame})
        else:
            {"csv": frame.to_csv, "xlsx": frame.to_excel, "parquet": frame.to_parquet}[ending](file, index=False)
    reading = ReadOptions(missing=missing)
    read = read_tables([folder], "ill", drop=["Unnamed: 0"], reading=reading)
    assert read.columns == ("x",)
    assert read.groups == tuple(np.repeat([*"abc"], 30))
    with refused("unknown-name", "drop", "'z'"):
        read_tables([folder], "ill", drop=["z"], reading=reading)


def test_other_spelling_of_a_column_is_suggested(tmp_path):
    files = [tmp_path / name for name in ("a.csv", "b.csv")]
    for file, column in zip(files, ("Age", "age"), strict=True):
        pd.DataFrame({column: np.arange(9.0), "ill": np.arange(9) % 2}).to_csv(file, index=False)
    with refused("columns-differ", "Age", "'age'"):
        read_tables(files, "ill")


def test_empty_file_and_folder_of_folders(tmp_path):
    (tmp_path / "zero.csv").write_text("")
    with refused("damaged-file", str(tmp_path / "zero.csv"), "is empty"):
        read_tables([tmp_path / "zero.csv"], "ill")
    (tmp_path / "nested/north").mkdir(parents=True)
    (tmp_path / "nested/north/data.csv").write_text("x,ill\n1,0\n2,1\n")
    with refused("file-not-found", str(tmp_path / "nested"), "subfolders", "north/data.csv"):
        read_tables([tmp_path / "nested"], "ill")
