"""Tables of the user's own, as a data set and in the command."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tests.support.marks import long_beyond
from tests.support.refusals import refused

from drfl.cli.app import call
from drfl.data.table_files import read_tables
from drfl.errors import InputError
from drfl.experiments.build import build
from drfl.experiments.config import load_config
from drfl.experiments.resume import identity

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
    assert (data.classes, data.one_pool, data.standardise) == (2, True, True)


def test_a_column_far_from_zero_keeps_its_digits():
    edited(lambda rows: [row.update(age=1_700_000_000 + k) for k, row in enumerate(rows)])
    job = build(load_config(None, {"data": "all.csv", "target": "ill", "group": "site"}))
    order = job.data.inputs[:, 0].argsort()
    steps = job.data.inputs[:, 0].diff()
    assert job.data.inputs.dtype == torch.float32
    assert order.tolist() == [*range(60)]
    assert steps.tolist() == pytest.approx([float(steps.mean())] * 59, rel=1e-4)


def test_files_are_clients():
    data = read_tables([Path("sites")], "ill")
    assert data.groups == tuple(sorted(row["site"] for row in ROWS))
    again = read_tables([Path("sites/A.csv"), Path("sites/B.csv")], "ill")
    assert torch.equal(data.inputs, again.inputs)
    assert read_tables([Path("sites/A.csv")], "ill").groups is None


def test_a_category_that_one_file_lacks_has_its_column_there_too():
    write(Path("sites/B.csv"), [{**row, "sex": "f"} for row in ROWS[:9]], ["age", "sex", "ill"])
    assert read_tables([Path("sites")], "ill").inputs.shape[1] == 2


def test_arrays():
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
    ("change", "part"),
    [
        (lambda rows: rows[7].update(age=""), "all.csv, line 9: column 'age' is blank (1 blanks in the file)"),
        (lambda rows: rows[0].update(ill=""), "all.csv, line 2: column 'ill' is blank"),
        (lambda rows: rows[3].update(site="a "), "groups 'A' and 'a ' differ by blanks or case alone"),
        (lambda rows: rows[3].update(site="   "), "a row's group is empty"),
        (lambda rows: rows[2].update(age="1e99"), "column 'age' is infinite or beyond 1e+30"),
        (lambda rows: [row.update(ill="no") for row in rows], "the target 'ill' is no in every row"),
        (
            lambda rows: [row.update(ill=i / 7) for i, row in enumerate(rows)],
            "line 3: the target 'ill' holds the fraction 0.14285",
        ),
        (lambda rows: [row.update(sex=f"w{i}") for i, row in enumerate(rows)], "column 'sex' has 60 different words"),
        (lambda rows: rows.clear() or rows.append({"site": "", "ill": "", "age": ""}), "is blank"),
    ],
)
def test_what_is_wrong_in_a_table_names_the_place(change, part):
    edited(change)
    with pytest.raises(InputError) as caught:
        read_tables([Path("all.csv")], "ill", "site")
    assert part in str(caught.value)


@pytest.mark.parametrize("rows", [["1,0,7", "2,1,7"], ["1,0", "2,1,7"]])
def test_rows_longer_than_the_head_are_no_names_of_rows(rows):
    Path("long.csv").write_text("\n".join(["age,ill", *rows]))
    with refused("damaged-file", "long.csv"):
        read_tables([Path("long.csv")], "ill")


def test_lines_are_those_of_the_file_whatever_is_between_the_rows():
    rows = ["age,ill,note", "", '1,0,"two', 'lines"', "  ", "2,1,x", ",0,y", "", "3,0.5,z"]
    text = "\n".join(rows)
    Path("odd.csv").write_text(text)
    with pytest.raises(InputError, match=r"^odd\.csv, line 7: column 'age' is blank"):
        read_tables([Path("odd.csv")], "ill")
    Path("odd.csv").write_text(text.replace(",0,y", "4,0,y"))
    with pytest.raises(InputError, match=r"^odd\.csv, line 9: the target 'ill' holds the fraction 0\.5"):
        read_tables([Path("odd.csv")], "ill")
    Path("odd.csv").write_text(text.replace(",0,y", "4,0,y").replace("age,ill", "ill,age").replace("z", "z\n1,-1e40,v"))
    with pytest.raises(InputError, match=r"^odd\.csv, line 10: column 'age' is infinite"):
        read_tables([Path("odd.csv")], "ill")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--data none.csv --target ill", "there is no file none.csv"),
        ("--data all.csv", "data needs target"),
        ("--data all.csv --target il", "unknown column for target in all.csv 'il': did you mean 'ill'?"),
        ("--data all.csv --target ill --group sit", "did you mean 'site'?"),
        ("--data all.csv --target ill --drop sx", "did you mean 'sex'?"),
        ("--data all.csv --target ill --group ill", "cannot be target and group at once"),
        ("--data all.csv --target ill --dataset digits", "leave one out"),
        ("--data all.csv --target ill --data-dir .", "data_dir has no effect on data"),
        ("--data all.csv --target ill --partition natural", "does not say who its rows belong to"),
        ("--data all.csv --target ill --group site --clients 3", "so partition 'natural' makes at most 2 clients"),
        ("--data empty --target ill", "the folder empty has no .csv"),
        ("--data odd.txt --target ill", "odd.txt is no .csv"),
        ("--data all.csv --data odd.npz --target ill", "cannot be mixed"),
        ("--data odd.npz --target ill", "cannot read odd.npz"),
        ("--data bytes.csv --target ill", "cannot read bytes.csv"),
        ("--data all.csv --data sites/A.csv --target ill", "column 'site' is in one of"),
        ("--data sites/A.csv --data other/A.csv --target ill", "two files are called A"),
        ("--data twice.csv --target ill", "column 'ill' is there twice"),
        ("--data head.csv --target ill", "head.csv has no rows"),
        ("--target ill", "target requires data"),
        ("--group site", "group requires data"),
        ("--drop site", "drop requires data"),
    ],
)
def test_a_mistake_is_one_line(words, part, folder, capsys):
    Path("empty").mkdir()
    Path("odd.txt").write_text("a,b\n1,2\n")
    Path("odd.npz").write_bytes(b"PK nothing")
    Path("bytes.csv").write_bytes(b"\xff\xfe\x00\x00age\n")
    Path("twice.csv").write_text("ill,ill \n1,2\n")
    Path("head.csv").write_text("age,ill\n")
    write(Path("other/A.csv"), ROWS, ["age", "sex", "ill"])
    assert call(f"run {words} --out r --rounds 1".split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert part in err
    assert not Path("r").exists()


def test_a_folder_of_files_is_compared_and_repeated(capsys):
    words = "compare --data sites --target ill --algorithms FedAvg,DRFA --seeds 1 --rounds 2 --out r"
    assert call(words.split()) == 0
    clients = Path("r/DRFA-seed0/clients.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in clients] == ["client", "A", "B"]
    assert call(["run", "r/DRFA-seed0/config.toml", "--out", "again"]) == 0
    assert Path("again/history.csv").read_bytes() == Path("r/DRFA-seed0/history.csv").read_bytes()


def test_a_run_is_known_by_its_rows_and_not_by_their_place():
    def known(path):
        return identity(build(load_config(None, {"data": path, "target": "ill", "group": "site"})))

    before = known("all.csv")
    Path("elsewhere").mkdir()
    Path("all.csv").rename("elsewhere/all.csv")
    edited(lambda rows: rows[0].update(age=99))
    assert known("elsewhere/all.csv") == before
    assert known("all.csv")["data"] != before["data"]


def test_a_table_without_clients_is_divided(capsys):
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
    """One file with numbers and labels to predict, and one of arrays."""
    write(Path("grid.csv"), GRID)
    x = np.random.default_rng(0).random((60, 2))
    np.savez(
        "grid.npz", inputs=x, y=x[:, 0] * 3, both=np.stack([x[:, 0] > 0.5, x[:, 1] > 0.5], 1), who=np.arange(60) % 3
    )
    np.savez("gap.npz", inputs=np.where(np.arange(12).reshape(6, 2) == 7, np.nan, 1.0), y=np.arange(6))
    np.savez("words.npz", inputs=np.full((6, 2), "x"), y=np.arange(6))


@pytest.mark.usefixtures("grid")
def test_numbers_and_labels_are_read_as_such():
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
@pytest.mark.parametrize(
    ("words", "score", "below"),
    long_beyond(
        2,
        [
            # y is linear in y2, an input
            ("--data grid.csv --target y --group who --task regression --rounds 40", "rmse", 0.5),
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
def test_a_run_has_the_loss_and_the_score_of_its_task(words, score, below, capsys):
    assert call(f"run {words} --algorithm FedAvg --out r".split()) == 0, capsys.readouterr().err
    found = json.loads(Path("r/summary.json").read_text())
    assert found["measures"][0]["name"] == score
    assert found["final"][f"avg_{score}"] < below
    config = tomllib.loads(Path("r/config.toml").read_text())
    assert config["loss"] == {"rmse": "mse", "accuracy": "binary-cross-entropy"}[score]
    assert config["partition"] == ("natural" if "group" in words else "iid")
    assert call(["run", "r/config.toml", "--out", "again"]) == 0
    assert Path("again/history.csv").read_bytes() == Path("r/history.csv").read_bytes()


def test_an_own_loss_of_numbers_is_scored_as_numbers(grid):
    Path("mine.py").write_text("def cubed(outputs, targets):\n    return (outputs[:, 0] - targets).abs() ** 3\n")
    asked = {"data": "grid.csv", "target": "y", "group": "who", "task": "regression", "loss": "mine.py:cubed"}
    assert [metric.name for metric in load_config(None, asked).measures()] == ["rmse"]


@pytest.mark.usefixtures("grid")
@pytest.mark.parametrize(
    ("words", "part"),
    [
        # known from the options alone
        ("--data grid.csv --target y --task regresion", "task = 'regresion': input should be 'classification'"),
        ("--data grid.csv --target a --target b", "task 'classification' has one target, not 2"),
        ("--data grid.csv --target a --task multi-label", "task 'multi-label' needs several targets"),
        ("--data grid.csv --target y --target y --task regression", "target 'y' is given twice"),
        ("--data grid.csv --target y --drop y --task regression", "column 'y' is needed as target: do not drop it"),
        ("--data grid.csv --target y --group who --drop who", "column 'who' is needed as group: do not drop it"),
        (
            "--data grid.csv --target y --task regression --partition one-class",
            "'one-class' divides rows by their class",
        ),
        ("--data grid.csv --target y --task regression --alpha 1", "alpha has no effect on partition 'iid'"),
        ("--data grid.csv --target y --task regression --loss cross-entropy", "'cross-entropy' is for classification"),
        ("--data grid.csv --target a --loss mse", "loss 'mse' is for regression, and task is 'classification'"),
        ("--data grid.csv --target y --task regression --score auc", "metric 'auc' is of classes"),
        ("--data grid.csv --target a --metric r2", "metric 'r2' is of numbers, and task is 'classification'"),
        ("--task regression", "task requires data"),
        ("--dataset digits --loss mse", "loss 'mse' is for regression"),
        # known from the rows
        ("--data grid.csv --target who --task regression", "grid.csv, line 2: the target 'who' holds the word 'a'"),
        (
            "--data grid.csv --target a --target x --task multi-label",
            "line 4: the target 'x' holds '2': multi-label needs",
        ),
        ("--data grid.csv --target a --target who --task multi-label", "line 2: the target 'who' holds 'a'"),
        ("--data grid.npz --target y --task multi-label", "row 1: the target 'y' holds '1.91"),
        ("--data grid.npz --target both", "task 'classification' has one target, not 2"),
        ("--data gap.npz --target y", "gap.npz, row 4: the array 'inputs' is NaN or infinite at (1,) (1 such values"),
        ("--data words.npz --target y", "words.npz: the array 'inputs' holds <U1, not numbers"),
    ],
)
def test_a_mistake_with_numbers_or_labels_is_one_line(words, part, capsys):
    assert call(f"run {words} --out r --rounds 1".split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert part in err
    assert not Path("r").exists()
