"""Tables of the user's own, as a data set and in the command."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

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
        (lambda rows: [row.update(ill=i / 7) for i, row in enumerate(rows)], "the target 'ill' holds fractions"),
        (lambda rows: [row.update(sex=f"w{i}") for i, row in enumerate(rows)], "column 'sex' has 60 different words"),
        (lambda rows: rows.clear() or rows.append({"site": "", "ill": "", "age": ""}), "is blank"),
    ],
)
def test_what_is_wrong_in_a_table_names_the_place(change, part):
    edited(change)
    with pytest.raises(InputError) as caught:
        read_tables([Path("all.csv")], "ill", "site")
    assert part in str(caught.value)


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
        ("--data all.csv --target ill --data-dir .", "data_dir means nothing to data"),
        ("--data all.csv --target ill --partition natural", "does not say who its rows belong to"),
        ("--data all.csv --target ill --group site --clients 3", "so partition 'natural' makes 2 clients"),
        ("--data empty --target ill", "the folder empty has no .csv"),
        ("--data odd.txt --target ill", "odd.txt is no .csv"),
        ("--data all.csv --data odd.npz --target ill", "cannot be mixed"),
        ("--data odd.npz --target ill", "cannot read 'odd.npz'"),
        ("--data bytes.csv --target ill", "bytes.csv cannot be read"),
        ("--data all.csv --data sites/A.csv --target ill", "column 'site' is in one of"),
        ("--data sites/A.csv --data other/A.csv --target ill", "two files are called A"),
        ("--data twice.csv --target ill", "column 'ill' is there twice"),
        ("--data head.csv --target ill", "head.csv has no rows"),
        ("--target ill", "target means nothing without data"),
        ("--group site", "group means nothing without data"),
        ("--drop site", "drop means nothing without data"),
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
